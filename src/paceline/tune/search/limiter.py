"""Limits how many trials a searcher has running, so that it learns before it suggests more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from paceline._core.arguments import check_bool, check_instance, check_int
from paceline.tune.search.searcher import Searcher


class ConcurrencyLimiter(Searcher):
    """At most `max_concurrent` trials of `searcher` run at a time.

    With `batch`, trials are suggested in groups of that size: the searcher gets the results of a group once all of its
    trials have ended, in the order they ended, and only then suggests the next group.
    """

    def __init__(self, searcher: Searcher, max_concurrent: int, batch: bool = False) -> None:
        self.searcher: Searcher = check_instance("searcher", searcher, Searcher, "a Searcher")
        self.max_concurrent: int = check_int("max_concurrent", max_concurrent, at_least=1)
        self.batch: bool = check_bool("batch", batch)
        super().__init__(searcher.metric, searcher.mode)
        self.needs_metric = searcher.needs_metric
        self.counts_samples = searcher.counts_samples
        self._live: set[str] = set()
        self._unreported: list[Callable[[], None]] = []
        # A searcher with its own limit uses this one from now on.
        searcher.set_max_concurrency(max_concurrent)

    @property
    def total_samples(self) -> int | None:
        """How many trials there will be; None: unknown."""
        return getattr(self.searcher, "total_samples", None)

    def set_search_properties(
        self, metric: str | list[str] | None, mode: str | list[str] | None, config: Mapping[str, Any], **spec: Any
    ) -> bool:
        is_accepted = self.searcher.set_search_properties(metric, mode, config, **spec)
        self.metric, self.mode = self.searcher.metric, self.searcher.mode
        return is_accepted

    def set_max_concurrency(self, max_concurrent: int) -> bool:
        return True  # The limit that the user set on it stays.

    def suggest(self, trial_id: str) -> Mapping[str, Any] | str | None:
        if len(self._live) + len(self._unreported) >= self.max_concurrent:
            return None
        suggested = self.searcher.suggest(trial_id)
        if suggested is not None and suggested != self.FINISHED:
            self._live.add(trial_id)
        return suggested

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        self.searcher.on_trial_result(trial_id, result)

    def on_trial_complete(self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False) -> None:
        self._end_trial(trial_id, partial(self.searcher.on_trial_complete, trial_id, result, error))

    def on_trial_stopped(self, trial_id: str, result: Mapping[str, Any] | None = None) -> None:
        self._end_trial(trial_id, partial(self.searcher.on_trial_stopped, trial_id, result))

    def rebuild(self, trial_id: str, config: Mapping[str, Any]) -> None:
        self.searcher.rebuild(trial_id, config)
        self._live.add(trial_id)

    def _end_trial(self, trial_id: str, report: Callable[[], None]) -> None:
        self._live.discard(trial_id)
        self._unreported.append(report)
        if self.batch and self._live:
            return
        # The searcher may have had fewer trials than a full group; the group is complete all the same.
        reports, self._unreported = self._unreported, []
        for report in reports:
            report()
