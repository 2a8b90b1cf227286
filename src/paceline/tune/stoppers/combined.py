"""Turns `RunConfig(stop=...)` into one stopper; and stoppers built from functions and other stoppers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from paceline._core.arguments import bad_value, check_callable, check_instance
from paceline.tune.stoppers.limits import ThresholdStopper
from paceline.tune.stoppers.stopper import Stopper


class NoopStopper(Stopper):
    """Never stops anything."""

    decides = False

    def __call__(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        return False


class FunctionStopper(Stopper):
    """Ends a trial when `function(trial_id, result)` returns true."""

    def __init__(self, function: Callable[[str, dict[str, Any]], bool]) -> None:
        check_callable("function", function)
        _check_takes_two(function)
        self.function = function

    def __call__(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        return bool(self.function(trial_id, dict(result)))

    @property
    def why(self) -> str:
        return f"stopped by {getattr(self.function, '__name__', type(self.function).__name__)}()"


class CombinedStopper(Stopper):
    """Ends whatever any of its stoppers ends. All of them see every result."""

    def __init__(self, *stoppers: Stopper) -> None:
        for stopper in stoppers:
            check_instance("each of stoppers", stopper, Stopper, "a Stopper")
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
