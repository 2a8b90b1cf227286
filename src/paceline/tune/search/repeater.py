"""A searcher whose every suggestion is tried several times, so that it learns from averages."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline._core.plain import looked_up
from paceline.tune.search.searcher import Searcher, checked_searcher

TRIAL_INDEX = "__trial_index__"
"""The key in a configuration that has the index of the repetition, from 0: good for a seed."""


@dataclass
class _Group:
    """The repetitions of one suggestion."""

    first: str
    """The trial that the searcher knows of."""
    config: Mapping[str, Any]
    trials: list[str] = field(default_factory=list)
    results: dict[str, Mapping[str, Any] | None] = field(default_factory=dict)


class Repeater(Searcher):
    """Each suggestion of `searcher` is tried `repeat` times.

    `num_samples` counts all trials; what is left over when it is divided by `repeat` is not run. The searcher sees one
    trial for each suggestion, with the average of the metric over the repetitions that had one; if none had, it failed.
    With `set_index` the configuration has the index of the repetition, as `config["__trial_index__"]`.
    """

    counts_samples = True

    def __init__(self, searcher: Searcher, repeat: int = 1, set_index: bool = True) -> None:
        self.searcher = checked_searcher(searcher)
        if isinstance(repeat, bool) or not isinstance(repeat, int) or repeat < 1:
            raise ValueError(f"repeat={repeat!r} is not a whole number of 1 or more")
        if not isinstance(set_index, bool):
            raise ValueError(f"set_index={set_index!r} is not True or False")
        self.repeat = repeat
        self.set_index = set_index
        super().__init__(searcher.metric, searcher.mode)
        self.needs_metric = searcher.needs_metric
        self._newest: _Group | None = None
        self._num_left: int | None = None
        self._groups: dict[str, _Group] = {}

    def set_search_properties(
        self, metric: str | list[str] | None, mode: str | list[str] | None, config: Mapping[str, Any], **spec: Any
    ) -> bool:
        num_samples = spec.get("num_samples", 1)
        if num_samples != -1:
            if num_samples < self.repeat:
                raise ValueError(
                    f"num_samples={num_samples} is less than repeat={self.repeat}, so nothing would be run\n\n"
                    "hint: num_samples counts all trials: use a multiple of repeat"
                )
            spec["num_samples"] = num_samples // self.repeat
            self._num_left = None if self.searcher.counts_samples else spec["num_samples"]
        taken = self.searcher.set_search_properties(metric, mode, config, **spec)
        self.metric, self.mode = self.searcher.metric, self.searcher.mode
        return taken

    def set_max_concurrency(self, max_concurrent: int) -> bool:
        return False  # The searcher sees suggestions, and one of them is several trials.

    def suggest(self, trial_id: str) -> Mapping[str, Any] | str | None:
        group = self._open_group()
        if group is None and self._num_left == 0:
            return self.FINISHED
        if group is None:
            suggested = self.searcher.suggest(trial_id)
            if suggested is None or isinstance(suggested, str):
                return suggested
            group = self._begun(trial_id, suggested)
        return self._joined(group, trial_id)

    def on_trial_complete(self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False) -> None:
        group = self._groups.pop(trial_id, None)
        if group is None:
            return
        group.results[trial_id] = None if error else result
        if len(group.results) < self.repeat:
            return
        average = self._average(group)
        self.searcher.on_trial_complete(group.first, average, error=average is None)

    def rebuild(self, trial_id: str, config: Mapping[str, Any]) -> None:
        group = self._open_group()
        if group is None:
            suggested = {key: value for key, value in config.items() if key != TRIAL_INDEX or not self.set_index}
            self.searcher.rebuild(trial_id, suggested)
            group = self._begun(trial_id, suggested)
        self._joined(group, trial_id)

    def _open_group(self) -> _Group | None:
        group = self._newest
        return group if group is not None and len(group.trials) < self.repeat else None

    def _begun(self, trial_id: str, suggested: Mapping[str, Any]) -> _Group:
        if self._num_left is not None:
            self._num_left -= 1
        self._newest = _Group(trial_id, suggested)
        return self._newest

    def _joined(self, group: _Group, trial_id: str) -> dict[str, Any]:
        index = len(group.trials)
        group.trials.append(trial_id)
        self._groups[trial_id] = group
        return {**group.config, TRIAL_INDEX: index} if self.set_index else {**group.config}

    def _average(self, group: _Group) -> dict[str, Any] | None:
        """The results as one, with the average of each metric; None where a metric has none."""
        results = [result for trial in group.trials if (result := group.results[trial]) is not None]
        metrics = [self.metric] if isinstance(self.metric, str) else self.metric or []
        if not results:
            return None
        average = dict(results[-1])
        for metric in metrics:
            values = [value for result in results if _is_number(value := looked_up(dict(result), metric))]
            if not values:
                return None
            average[metric] = sum(values) / len(values)
        return average


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
