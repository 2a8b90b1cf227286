"""Stoppers that detect a plateau: in one trial, or in the best values over all trials."""

from __future__ import annotations

import bisect
import math
import statistics
from collections import defaultdict, deque
from collections.abc import Mapping
from typing import Any

from paceline.tune.stoppers.metric_lookup import MetricLookup
from paceline.tune.stoppers.stopper import Stopper


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
        if isinstance(std, bool) or not isinstance(std, (int, float)) or not 0 <= std < math.inf:
            raise ValueError(f"std={std!r} is not a number of 0 or more")
        _check_count("num_results", num_results, 2)
        _check_count("grace_period", grace_period, 0)
        if metric_threshold is not None and mode not in ("min", "max"):
            raise ValueError(f"mode={mode!r} is neither 'min' nor 'max', which metric_threshold needs")
        if mode not in (None, "min", "max"):
            raise ValueError(f"mode={mode!r} is neither 'min' nor 'max'")
        self.std = std
        self.num_results = num_results
        self.grace_period = grace_period
        self.metric_threshold = metric_threshold
        self.mode = mode
        self._counts: dict[str, int] = defaultdict(int)
        self._windows: dict[str, deque[float]] = {}
        self._why = "it has reached a plateau"

    def __call__(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        value = self._metric_lookup.get_number(self.metric, trial_id, result)
        if value is None:
            return False
        window = self._windows.setdefault(trial_id, deque(maxlen=self.num_results))
        window.append(value)
        self._counts[trial_id] += 1
        if self._counts[trial_id] < self.grace_period or len(window) < self.num_results:
            return False
        if not self._is_good_enough(value):
            return False
        spread = _standard_deviation(window)
        if not spread <= self.std:
            return False
        self._why = (
            f"{self.metric} has reached a plateau: its last {self.num_results} values differ by {spread:.2g} "
            f"(std {self.std:g})"
        )
        return True

    @property
    def why(self) -> str:
        return self._why

    def _is_good_enough(self, value: float) -> bool:
        if self.metric_threshold is None:
            return True
        return value >= self.metric_threshold if self.mode == "max" else value <= self.metric_threshold


class ExperimentPlateauStopper(Stopper):
    """Ends the search when the `top` best values of a metric, over all trials, have a standard deviation of at most
    `std`.

    This must hold for more than `patience` results in a row.
    """

    def __init__(self, metric: str, std: float = 0.001, top: int = 10, mode: str = "min", patience: int = 0) -> None:
        self.metric = _check_name(metric)
        self._metric_lookup = MetricLookup(type(self).__name__)
        if isinstance(std, bool) or not isinstance(std, (int, float)) or not 0 < std < math.inf:
            raise ValueError(f"std={std!r} is not a number above 0")
        _check_count("top", top, 2)
        _check_count("patience", patience, 0)
        if mode not in ("min", "max"):
            raise ValueError(f"mode={mode!r} is neither 'min' nor 'max'")
        self.std = std
        self.top = top
        self.mode = mode
        self.patience = patience
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
        raise ValueError(f"metric={metric!r} is not the name of a metric")
    return metric


def _check_count(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name}={value!r} is not a whole number of {least} or more")
