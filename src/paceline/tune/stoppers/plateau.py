"""Stoppers that detect a plateau: in one trial, or in the best values over all trials."""

from __future__ import annotations

import bisect
import math
import statistics
from collections import defaultdict, deque
from collections.abc import Mapping
from typing import Any

from paceline._core.arguments import bad_value, check_choice, check_int, check_number, is_number
from paceline.tune.stoppers.stopper import MetricLookup, Stopper


class TrialPlateauStopper(Stopper):
    """Ends a trial when the standard deviation of its last `num_results` values of a metric is at most `std`.

    Not before its `grace_period`-th result; and with `metric_threshold`, not before the metric is at least that good
    according to `mode`.
    """

    def __init__(
        self,
        metric: str,
        std: float = 0.01,
        num_results: int = 4,
        grace_period: int = 4,
        metric_threshold: float | None = None,
        mode: str | None = None,
    ) -> None:
        self.metric = _check_name(metric)
        self._metric_lookup = MetricLookup(type(self).__name__)
        self.std = check_number("std", std, at_least=0)
        self.num_results = check_int("num_results", num_results, at_least=2)
        self.grace_period = check_int("grace_period", grace_period, at_least=0)
        if metric_threshold is None:
            check_choice("mode", mode, ("min", "max", None))
        elif not is_number(metric_threshold):
            raise bad_value("metric_threshold", "a number or None", metric_threshold)
        else:
            check_choice("mode", mode, ("min", "max"), hint="metric_threshold is compared according to it")
        self.metric_threshold = metric_threshold
        self.mode = mode
        self._counts: dict[str, int] = defaultdict(int)
        self._windows: dict[str, deque[float]] = {}
        self._why = "reached a plateau"

    def __call__(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        value = self._metric_lookup.get_number(self.metric, trial_id, result)
        if value is None:
            return False
        window = self._windows.setdefault(trial_id, deque(maxlen=self.num_results))
        window.append(value)
        self._counts[trial_id] += 1
        if self._counts[trial_id] < self.grace_period or len(window) < self.num_results:
            return False
        threshold = self.metric_threshold
        if threshold is not None and not (value >= threshold if self.mode == "max" else value <= threshold):
            return False
        spread = _standard_deviation(window)
        if not spread <= self.std:
            return False
        self._why = (
            f"{self.metric} reached a plateau: its last {self.num_results} values differ by {spread:.2g} "
            f"(std {self.std:g})"
        )
        return True


class ExperimentPlateauStopper(Stopper):
    """Ends the search when the `top` best values of a metric, over all trials, hardly differ.

    Their standard deviation must be at most `std` for more than `patience` results in a row.
    """

    def __init__(self, metric: str, std: float = 0.001, top: int = 10, mode: str = "min", patience: int = 0) -> None:
        self.metric = _check_name(metric)
        self._metric_lookup = MetricLookup(type(self).__name__)
        self.std = check_number("std", std, above=0)
        self.top = check_int("top", top, at_least=2)
        self.mode = check_choice("mode", mode, ("min", "max"))
        self.patience: int = check_int("patience", patience, at_least=0)
        self._best: list[float] = []
        """Scores, where more is better, from worst to best."""
        self._num_flat = 0

    def __call__(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        value = self._metric_lookup.get_number(self.metric, trial_id, result)
        if value is None:
            return self.stop_all()
        if value == value:
            bisect.insort(self._best, value if self.mode == "max" else -value)
            del self._best[: -self.top]
        is_flat = len(self._best) == self.top and _standard_deviation(self._best) <= self.std
        self._num_flat = self._num_flat + 1 if is_flat else 0
        return self.stop_all()

    def stop_all(self) -> bool:
        return self._num_flat > self.patience

    @property
    def why(self) -> str:
        return (
            f"the best {self.top} values of {self.metric} over all trials have differed by no more than "
            f"{self.std:g} (std) at the last {self._num_flat} of their reports"
        )


def _standard_deviation(values: deque[float] | list[float]) -> float:
    """Return the standard deviation; nan if it is undefined."""
    if any(value != value or abs(value) == math.inf for value in values):
        return math.nan
    try:
        return statistics.pstdev(values)
    except OverflowError:  # Integers beyond the range of floats.
        return math.inf


def _check_name(metric: Any) -> str:
    if not isinstance(metric, str) or not metric:
        raise bad_value("metric", "the name of a metric", metric)
    return metric
