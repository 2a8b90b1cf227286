"""The interface of stoppers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Stopper:
    """Ends trials, or the whole search. Apart from a clock, the same calls in the same order give the same answers."""

    decides: bool = True
    """If True, trials wait in each report for its answer. False: it never ends a single trial."""

    def __call__(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        """Whether this trial should end with this result. Called once per report."""
        raise NotImplementedError

    def stop_all(self) -> bool:
        """Whether the search should end. Called after every result and periodically."""
        return False

    def continued(self, ran_s: float) -> None:
        """A driver starts; earlier ones ran the search for `ran_s` seconds, 0 for a new search."""

    @property
    def why(self) -> str:
        """Why it last stopped a trial or the search."""
        return type(self).__name__
