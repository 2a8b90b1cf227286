"""What to do about a failure. Pure."""

from collections.abc import Sequence

from paceline._control.run import Run
from paceline._engine.messages import Failure


def first_failure(failures: Sequence[Failure]) -> Failure:
    """The failure that caused the others: the earliest that is not itself the echo of somebody's end."""
    return min(failures, key=lambda failure: (failure.collateral, failure.at, failure.rank))


def may_retry(run: Run, failures: Sequence[Failure]) -> bool:
    """Whether the budget allows another attempt; -1 is no limit."""
    if not first_failure(failures).retriable:
        return False
    return run.max_failures < 0 or run.num_failures < run.max_failures
