"""Stoppers with a limit: a number of iterations, metric values, or seconds of the whole search."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

from paceline._core.arguments import bad_value, check_int, is_finite_number
from paceline._core.system import Clock, SystemClock
from paceline.tune.stoppers.stopper import MetricLookup, Stopper


class MaximumIterationStopper(Stopper):
    """Ends a trial at its `max_iter`-th iteration."""

    def __init__(self, max_iter: int) -> None:
        self.max_iter: int = check_int("max_iter", max_iter, at_least=1)
        self._reports: Counter[str] = Counter()

    def __call__(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        self._reports[trial_id] += 1
        # Only the report counts the iterations before cloning.
        iteration = result.get("training_iteration", self._reports[trial_id])
        return bool(iteration >= self.max_iter)

    @property
    def why(self) -> str:
        return f"reached {self.max_iter} iterations (max_iter)"


class ThresholdStopper(Stopper):
    """Ends a trial when one of these metrics reaches its limit, that is, equals or exceeds it.

    A dict has this meaning: `{"training_iteration": 10, "eval/accuracy": 0.9}`. A report without a metric does not
    reach its limit; if the first report lacks one, that is logged.
    """

    def __init__(self, limits: Mapping[str, Any]) -> None:
        self.limits = dict(_flatten_limits(limits))
        self._metric_lookup = MetricLookup("stop")
        self._why = "a limit was reached"

    def __call__(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        reached = []
        for name, limit in self.limits.items():
            value = self._metric_lookup.get_number(name, trial_id, result)
            if value is not None and value >= limit:
                reached.append(f"{name} {value} reached {limit}")
        if reached:
            self._why = ", ".join(reached)
        return bool(reached)


class TimeoutStopper(Stopper):
    """Ends the search after it has run this long, in seconds or as a `timedelta`; only time with a driver counts."""

    decides = False

    def __init__(self, timeout: float | timedelta, clock: Clock | None = None) -> None:
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        if not is_finite_number(seconds) or seconds <= 0:
            raise bad_value("timeout", "a positive number of seconds or a timedelta", timeout)
        self.timeout_s = seconds
        self._clock = clock or SystemClock()
        self._began: float | None = None
        self._before_s = 0.0

    @property
    def ran_s(self) -> float:
        """How long the search has run. This driver's time starts at the first call."""
        now = self._clock.now()
        if self._began is None:
            self._began = now
        return self._before_s + now - self._began

    def __call__(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self.ran_s >= self.timeout_s

    def continued(self, ran_s: float) -> None:
        self._before_s = ran_s

    @property
    def why(self) -> str:
        return f"the search has run for {self.timeout_s:g} s (timeout)"


def _flatten_limits(limits: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, float]]:
    for name, limit in limits.items():
        if not isinstance(name, str) or not name:
            raise bad_value("the keys of stop", "names of metrics", name)
        if isinstance(limit, Mapping):
            yield from _flatten_limits(limit, f"{path}{name}/")
        elif not isinstance(limit, (int, float)) or limit != limit:
            hint = "for other conditions use a function: stop=lambda trial_id, result: result['loss'] < 0.1"
            raise bad_value(f"stop[{path + name!r}]", "a number to reach", limit, hint)
        else:
            yield path + name, limit
