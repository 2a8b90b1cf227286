"""What a searcher is asked, and what it is told."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, ClassVar

from paceline.tune.made import Made

log = logging.getLogger("paceline")


class Searcher(Made):
    """Base of searchers: subclass it and implement `suggest`.

    It runs in the driver, and is asked for one trial at a time. Randomness comes from a seed of its own: when a search
    is continued its knowledge is rebuilt by `rebuild` and the `on_trial_...` methods, in the order of the first time.
    """

    FINISHED: ClassVar[str] = "FINISHED"

    needs_metric: bool = True
    """It learns from results: there has to be a metric."""
    counts_samples: bool = False
    """It ends by itself after `num_samples` of them, however many trials that are. Else the search ends it."""

    def __init__(self, metric: str | list[str] | None = None, mode: str | list[str] | None = None) -> None:
        self.metric = metric
        self.mode = mode

    def set_search_properties(
        self, metric: str | list[str] | None, mode: str | list[str] | None, config: Mapping[str, Any], **spec: Any
    ) -> bool:
        """Take the metric and the space of the `Tuner`; False where the searcher was given its own already.

        `spec` has `num_samples` and `seed`.
        """
        return False

    def set_max_concurrency(self, max_concurrent: int) -> bool:
        """Take the limit of a `ConcurrencyLimiter`; False where the searcher keeps none of its own."""
        return False

    def suggest(self, trial_id: str) -> Mapping[str, Any] | str | None:
        """The configuration of the next trial; None: not now, ask again after a result; FINISHED: never again."""
        raise NotImplementedError

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        """A trial has made a report with the metric in it."""

    def on_trial_complete(self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False) -> None:
        """A trial is over, with its last result; `error` where it failed."""

    def on_trial_stopped(self, trial_id: str, result: Mapping[str, Any] | None = None) -> None:
        """A scheduler has ended a trial early; told in place of `on_trial_complete`, which it is unless overridden."""
        self.on_trial_complete(trial_id, result)

    def rebuild(self, trial_id: str, config: Mapping[str, Any]) -> None:
        """A trial was suggested with this configuration by an earlier driver."""
        again = self.suggest(trial_id)
        if again != config:
            log.warning(
                "%s suggests another configuration for trial %s than before: its knowledge of the search is not what "
                "it was. Give it a seed, or let it implement rebuild()",
                type(self).__name__,
                trial_id,
            )


def checked_searcher(searcher: Any) -> Searcher:
    """What is to be a searcher inside another one."""
    if not isinstance(searcher, Searcher):
        raise ValueError(f"searcher={searcher!r} is not a Searcher")
    return searcher
