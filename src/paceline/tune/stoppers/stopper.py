"""What a stopper is asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Stopper:
    """Ends trials, or the whole search. Told the same in the same order it answers the same, a clock aside."""

    decides: bool = True
    """Trials wait in each report for what it says about them. False: it never ends a single trial."""

    def __call__(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        """Whether this trial is to end with this result, which each report is given as once."""
        raise NotImplementedError

    def stop_all(self) -> bool:
        """Whether the search is to end. Asked after every result and now and then."""
        return False

    def continued(self, ran_s: float) -> None:
        """A driver begins, and earlier ones have run the search for so many seconds: 0 for a new one."""

    @property
    def why(self) -> str:
        """For a person, why it stopped a trial or the search last."""
        return type(self).__name__
