"""Stoppers, which end a trial or the whole search; `stopper_of` turns `RunConfig(stop=...)` into one."""

from __future__ import annotations

import bisect
import difflib
import inspect
import logging
import math
import statistics
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from paceline._core import arguments
from paceline._core.arguments import bad_value
from paceline._core.lazy_imports import explain_module
from paceline._core.plain_values import get_metric
from paceline._core.system import Clock, SystemClock

__all__ = [
    "CombinedStopper",
    "ExperimentPlateauStopper",
    "FunctionStopper",
    "MaximumIterationStopper",
    "NoopStopper",
    "Stopper",
    "ThresholdStopper",
    "TimeoutStopper",
    "TrialPlateauStopper",
    "stopper_of",
]

log = logging.getLogger("paceline")


class Stopper:
    """Ends trials, or the whole search. Apart from a clock, the same calls in the same order give the same answers."""

    decides: bool = True
    """If True, trials wait in each report for its answer. False: it never ends a single trial."""
    _why: str = ""

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
        return self._why or type(self).__name__


@dataclass
class MetricLookup:
    """Looks up numbers by name or path, and logs once per name if the first reports lack it."""

    _stopper_name: str
    _checked_names: set[str] = field(default_factory=set)

    def get_number(self, name: str, trial_id: str, result: Mapping[str, Any]) -> float | None:
        metrics = result if isinstance(result, dict) else dict(result)
        value = get_metric(metrics, name)
        has_number = isinstance(value, (int, float))
        if name not in self._checked_names:
            self._checked_names.add(name)
            if not has_number:
                self._warn(name, trial_id, value, metrics)
        return value if has_number else None

    def _warn(self, name: str, trial_id: str, value: Any, metrics: Mapping[str, Any]) -> None:
        similar = difflib.get_close_matches(name, map(str, metrics), n=1)
        other = f" but {value!r}" if value is not None else ""
        if similar and similar[0] != name:
            other += f" (did you mean {similar[0]!r}?)"
        text = "%s: the first report, of trial %s, has no number %r%s. Reports without it stop nothing; this one has %s"
        log.warning(text, self._stopper_name, trial_id, name, other, ", ".join(map(str, metrics)))


class NoopStopper(Stopper):
    """Never stops anything."""

    decides = False

    def __call__(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        return False


class FunctionStopper(Stopper):
    """Ends a trial when `function(trial_id, result)` returns true."""

    def __init__(self, function: Callable[[str, dict[str, Any]], bool]) -> None:
        self.function = arguments.check_callable("function", function)
        _check_takes_two(function)

    def __call__(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        return bool(self.function(trial_id, dict(result)))

    @classmethod
    def is_valid_function(cls, fn: Any) -> bool:
        """Whether it is a function of two arguments, and no `Stopper`."""
        if not callable(fn) or isinstance(fn, Stopper | type):
            return False
        try:
            _check_takes_two(fn)
        except ValueError:
            return False
        return True

    @property
    def why(self) -> str:
        return f"stopped by {getattr(self.function, '__name__', type(self.function).__name__)}()"


class CombinedStopper(Stopper):
    """Ends whatever any of its stoppers ends. All of them see every result."""

    def __init__(self, *stoppers: Stopper) -> None:
        for stopper in stoppers:
            arguments.check_instance("each of stoppers", stopper, Stopper, "a Stopper")
        self.stoppers = stoppers
        self.decides = any(stopper.decides for stopper in stoppers)
        self._why = "stopped by one of its stoppers"

    def __call__(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        return self._record_stopped([stopper for stopper in self.stoppers if stopper(trial_id, result)])

    def stop_all(self) -> bool:
        return self._record_stopped([stopper for stopper in self.stoppers if stopper.stop_all()])

    def continued(self, ran_s: float) -> None:
        for stopper in self.stoppers:
            stopper.continued(ran_s)

    def _record_stopped(self, stopped: list[Stopper]) -> bool:
        if stopped:
            self._why = ", ".join(stopper.why for stopper in stopped)
        return bool(stopped)


def stopper_of(stop: Any) -> Stopper:
    """Convert `RunConfig(stop=...)` to a stopper: None, a dict, a function, a `Stopper`, or a list of these."""
    if stop is None:
        return NoopStopper()
    if isinstance(stop, type):
        raise ValueError(f"stop must be an object, got the class {stop.__name__}\n\nhint: use {stop.__name__}(...)")
    if isinstance(stop, Stopper):
        return stop
    if isinstance(stop, Mapping):
        return ThresholdStopper(stop)
    if isinstance(stop, list | tuple):
        return CombinedStopper(*map(stopper_of, stop))
    if callable(stop):
        return FunctionStopper(stop)
    allowed = "a dict such as {'training_iteration': 10}, a function of a trial's id and result, a Stopper, or a list"
    raise bad_value("stop", allowed, stop)


def _check_takes_two(function: Callable[..., Any]) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # Some functions written in C have no signature.
    try:
        signature.bind("trial_id", {})
    except TypeError:
        name = getattr(function, "__name__", type(function).__name__)
        raise ValueError(
            f"stop must be a function of a trial's id and its result, got {name}{signature}\n\n"
            f"hint: def {name}(trial_id, result): return result['training_iteration'] >= 10"
        ) from None


class MaximumIterationStopper(Stopper):
    """Ends a trial at its `max_iter`-th iteration."""

    def __init__(self, max_iter: int) -> None:
        self.max_iter: int = arguments.check_int("max_iter", max_iter, at_least=1)
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
        if not arguments.is_finite_number(seconds) or seconds <= 0:
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


@dataclass(eq=False, repr=False)
class TrialPlateauStopper(Stopper):
    """Ends a trial when the standard deviation of its last `num_results` values of a metric is at most `std`.

    Not before its `grace_period`-th result; and with `metric_threshold`, not before the metric is at least that good
    according to `mode`.
    """

    metric: str
    std: float = 0.01
    num_results: int = 4
    grace_period: int = 4
    metric_threshold: float | None = None
    mode: str | None = None

    def __post_init__(self) -> None:
        _check_name(self.metric)
        arguments.check_number("std", self.std, at_least=0)
        arguments.check_int("num_results", self.num_results, at_least=2)
        arguments.check_int("grace_period", self.grace_period, at_least=0)
        if self.metric_threshold is None:
            arguments.check_choice("mode", self.mode, ("min", "max", None))
        elif not arguments.is_number(self.metric_threshold):
            raise bad_value("metric_threshold", "a number or None", self.metric_threshold)
        else:
            arguments.check_choice(
                "mode", self.mode, ("min", "max"), hint="metric_threshold is compared according to it"
            )
        self._metric_lookup = MetricLookup(type(self).__name__)
        self._counts: Counter[str] = Counter()
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


@dataclass(eq=False, repr=False)
class ExperimentPlateauStopper(Stopper):
    """Ends the search when the `top` best values of a metric, over all trials, hardly differ.

    Their standard deviation must be at most `std` for more than `patience` results in a row.
    """

    metric: str
    std: float = 0.001
    top: int = 10
    mode: str = "min"
    patience: int = 0

    def __post_init__(self) -> None:
        _check_name(self.metric)
        arguments.check_number("std", self.std, above=0)
        arguments.check_int("top", self.top, at_least=2)
        arguments.check_choice("mode", self.mode, ("min", "max"))
        arguments.check_int("patience", self.patience, at_least=0)
        self._metric_lookup = MetricLookup(type(self).__name__)
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

    def has_plateaued(self) -> bool:
        """Whether the best values hardly differ now, however long they have."""
        return self._num_flat > 0

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


def _check_name(metric: Any) -> None:
    if not isinstance(metric, str) or not metric:
        raise bad_value("metric", "the name of a metric", metric)


explain_module(__name__)
