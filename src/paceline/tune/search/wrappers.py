"""Searchers around another one: `ConcurrencyLimiter` limits its trials, and `Repeater` repeats each suggestion."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline._core.arguments import bad_value, check_bool, check_instance, check_int, is_number
from paceline._core.plain_values import get_metric
from paceline.tune.search.searcher import Names, Searcher

TRIAL_INDEX = "__trial_index__"
"""The configuration key with the index of the repetition, from 0: useful as a seed."""


@dataclass(eq=False, repr=False)
class SearcherWrapper(Searcher):
    """A searcher with the metric, the mode and the space of another one."""

    searcher: Searcher

    def __post_init__(self) -> None:
        check_instance("searcher", self.searcher, Searcher, "a Searcher")
        super().__init__(self.searcher.metric, self.searcher.mode)
        self.needs_metric = self.searcher.needs_metric

    def set_search_properties(self, metric: Names, mode: Names, config: Mapping[str, Any], **spec: Any) -> bool:
        is_accepted = self.searcher.set_search_properties(metric, mode, config, **spec)
        self.metric, self.mode = self.searcher.metric, self.searcher.mode
        return is_accepted

    def on_pause(self, trial_id: str) -> None:
        self.searcher.on_pause(trial_id)

    def on_unpause(self, trial_id: str) -> None:
        self.searcher.on_unpause(trial_id)

    def add_evaluated_point(self, *args: Any, **named: Any) -> None:
        self.searcher.add_evaluated_point(*args, **named)

    def get_state(self) -> dict[str, Any]:
        return {"own": super().get_state(), "searcher": self.searcher.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state["own"])
        self.searcher.set_state(state["searcher"])


@dataclass(eq=False, repr=False)
class ConcurrencyLimiter(SearcherWrapper):
    """At most `max_concurrent` trials of `searcher` run at a time, so that it learns before it suggests more.

    With `batch`, trials are suggested in groups of that size: the searcher gets the results of a group once all of its
    trials have ended, in the order they ended, and only then suggests the next group.
    """

    max_concurrent: int
    batch: bool = False
    _live: set[str] = field(default_factory=set, init=False)
    _unreported: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list, init=False)
    """Methods of the searcher to call once the group is complete, and their arguments."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int("max_concurrent", self.max_concurrent, at_least=1)
        check_bool("batch", self.batch)
        self.counts_samples = self.searcher.counts_samples
        # A searcher with its own limit uses this one from now on.
        self.searcher.set_max_concurrency(self.max_concurrent)

    @property
    def total_samples(self) -> int | None:
        """How many trials there will be; None: unknown."""
        return getattr(self.searcher, "total_samples", None)

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
        self._end_trial("on_trial_complete", trial_id, result, error)

    def on_trial_stopped(self, trial_id: str, result: Mapping[str, Any] | None = None) -> None:
        self._end_trial("on_trial_stopped", trial_id, result)

    def rebuild(self, trial_id: str, config: Mapping[str, Any]) -> None:
        self.searcher.rebuild(trial_id, config)
        self._live.add(trial_id)

    def _end_trial(self, method: str, trial_id: str, *results: Any) -> None:
        self._live.discard(trial_id)
        self._unreported.append((method, (trial_id, *results)))
        if self.batch and self._live:
            return
        # The searcher may have had fewer trials than a full group; the group is complete all the same.
        reports, self._unreported = self._unreported, []
        for method, args in reports:
            getattr(self.searcher, method)(*args)


@dataclass
class _RepetitionGroup:
    """The repetitions of one suggestion."""

    first: str
    """The only trial of the group that the searcher knows."""
    config: Mapping[str, Any]
    trials: list[str] = field(default_factory=list)
    results: dict[str, Mapping[str, Any] | None] = field(default_factory=dict)


@dataclass(eq=False, repr=False)
class Repeater(SearcherWrapper):
    """Runs each suggestion of `searcher` `repeat` times, so that it learns from averages.

    `num_samples` counts all trials; a remainder that does not fill `repeat` is not run. The searcher sees one trial per
    suggestion, with the metric averaged over the repetitions that reported it; if none did, the trial has failed. With
    `set_index`, the configuration has the index of the repetition, as `config["__trial_index__"]`.
    """

    counts_samples = True

    repeat: int = 1
    set_index: bool = True
    _newest: _RepetitionGroup | None = field(default=None, init=False)
    _num_left: int | None = field(default=None, init=False)
    _groups: dict[str, _RepetitionGroup] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int("repeat", self.repeat, at_least=1)
        check_bool("set_index", self.set_index)

    def set_search_properties(self, metric: Names, mode: Names, config: Mapping[str, Any], **spec: Any) -> bool:
        num_samples = spec.get("num_samples", 1)
        if num_samples != -1:
            if num_samples < self.repeat:
                hint = "num_samples counts all trials; use a multiple of repeat"
                raise bad_value("num_samples", f"at least repeat={self.repeat}", num_samples, hint)
            spec["num_samples"] = num_samples // self.repeat
            self._num_left = None if self.searcher.counts_samples else spec["num_samples"]
        return super().set_search_properties(metric, mode, config, **spec)

    def set_max_concurrency(self, max_concurrent: int) -> bool:
        return False  # The searcher counts suggestions, and each one is several trials.

    def suggest(self, trial_id: str) -> Mapping[str, Any] | str | None:
        if self._is_group_full:
            if self._num_left == 0:
                return self.FINISHED
            suggested = self.searcher.suggest(trial_id)
            if suggested is None or isinstance(suggested, str):
                return suggested
            self._begin_group(trial_id, suggested)
        return self._join_group(trial_id)

    def on_trial_complete(self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False) -> None:
        group = self._groups.pop(trial_id, None)
        if group is None:
            return
        group.results[trial_id] = None if error else result
        if len(group.results) < self.repeat:
            return
        average = self._average_results(group)
        self.searcher.on_trial_complete(group.first, average, error=average is None)

    def rebuild(self, trial_id: str, config: Mapping[str, Any]) -> None:
        if self._is_group_full:
            suggested = {key: value for key, value in config.items() if key != TRIAL_INDEX or not self.set_index}
            self.searcher.rebuild(trial_id, suggested)
            self._begin_group(trial_id, suggested)
        self._join_group(trial_id)

    @property
    def _is_group_full(self) -> bool:
        return self._newest is None or len(self._newest.trials) == self.repeat

    def _begin_group(self, trial_id: str, suggested: Mapping[str, Any]) -> None:
        if self._num_left is not None:
            self._num_left -= 1
        self._newest = _RepetitionGroup(trial_id, suggested)

    def _join_group(self, trial_id: str) -> dict[str, Any]:
        group = self._newest
        assert group is not None
        self._groups[trial_id] = group
        group.trials.append(trial_id)
        return {**group.config, TRIAL_INDEX: len(group.trials) - 1} if self.set_index else {**group.config}

    def _average_results(self, group: _RepetitionGroup) -> dict[str, Any] | None:
        """Combine the results into one with the average of each metric; None if a metric has no values."""
        results = [result for trial in group.trials if (result := group.results[trial]) is not None]
        metrics = [self.metric] if isinstance(self.metric, str) else self.metric or []
        if not results:
            return None
        average = dict(results[-1])
        for metric in metrics:
            reported = (get_metric(dict(result), metric) for result in results)
            values = [value for value in reported if is_number(value) and not math.isnan(value)]
            if not values:
                return None
            average[metric] = sum(values) / len(values)
        return average
