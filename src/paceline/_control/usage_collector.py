"""Decides when to poll the ranks for their usage, and collects the answers: values and times, no threads.

The polling interval grows with the number of ranks: a thousand ranks write about as many bytes per minute to the
journal as forty. It also grows with the age of an attempt, because nobody needs seconds in a plot of a day.
"""

from __future__ import annotations

from collections.abc import Callable

from paceline._control.events import StageUse, UsageMeasured
from paceline._control.run import Run, Running
from paceline._engine.messages import RankUsage, UsageReported

EVERY_S = 2.0
AT_LAST_EVERY_S = 10.0
_AGE_PER_EVERY = 300.0
"""The polling interval grows by 1 s for every 300 s of an attempt's age."""
PER_RANK_S = 0.05
PATIENCE_S = 1.0
"""How long to wait for the slowest rank; a later answer is recorded with the next measurement."""

ReadStages = Callable[[], tuple[tuple[StageUse, ...], bool]]
"""Returns the current state of the datasets, and whether their consumers wait. Neither blocks nor raises."""


def poll_interval_s(size: int, age_s: float) -> float:
    """The time between two polls of the ranks."""
    return max(EVERY_S, min(AT_LAST_EVERY_S, age_s / _AGE_PER_EVERY), PER_RANK_S * size)


class UsageCollector:
    def __init__(self, stages: ReadStages | None = None) -> None:
        self._stages = stages
        self._began_at = 0.0
        self._asked_at = float("-inf")
        self._usages: dict[int, RankUsage] = {}
        self._first_answer_at = 0.0
        """When the first of these answers arrived."""

    def start_attempt(self, now: float) -> None:
        """Workers are starting; do not poll them at once."""
        self._began_at = self._asked_at = now
        self._usages = {}

    def should_poll(self, run: Run, now: float) -> bool:
        """Whether to poll the ranks now. If True, the poll counts as done."""
        if not isinstance(run.phase, Running) or now - self._asked_at < poll_interval_s(run.size, now - self._began_at):
            return False
        self._asked_at = now
        return True

    def add_usage(self, report: UsageReported, run: Run, now: float) -> None:
        if report.attempt == run.attempt:
            if not self._usages:
                self._first_answer_at = now
            self._usages[report.usage.rank] = report.usage

    def should_record(self, run: Run, now: float) -> bool:
        """Whether to record the answers now: all ranks have answered, or the timeout has passed."""
        return len(self._usages) >= run.size or (bool(self._usages) and now - self._first_answer_at >= PATIENCE_S)

    def take_measurement(self, run: Run, wall: float) -> UsageMeasured | None:
        """The answers since the last call; None if there are none."""
        if not self._usages:
            return None
        ranks = tuple(self._usages[rank] for rank in sorted(self._usages))
        self._usages = {}
        stages, wait = self._stages() if self._stages is not None else ((), False)
        return UsageMeasured(run.attempt, wall, ranks, stages, wait)
