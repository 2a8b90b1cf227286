"""Turns `RunConfig(stop=...)` into one stopper; and stoppers built from functions and other stoppers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

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
        if not callable(function):
            raise ValueError(f"function={function!r} is not a function of a trial's id and its result")
        _check_takes_two(function)
        self.function = function

    def __call__(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        return bool(self.function(trial_id, dict(result)))

    @property
    def why(self) -> str:
        return f"{getattr(self.function, '__name__', type(self.function).__name__)}() has stopped it"


class CombinedStopper(Stopper):
    """Ends whatever any of its stoppers ends. All of them see every result."""

    def __init__(self, *stoppers: Stopper) -> None:
        for stopper in stoppers:
            if not isinstance(stopper, Stopper):
                raise ValueError(f"{stopper!r} is not a Stopper, of which alone a CombinedStopper is made")
        self.stoppers = stoppers
        self.decides = any(stopper.decides for stopper in stoppers)
        self._why = "one of its stoppers has stopped it"

    def __call__(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        return self._ask_all([stopper for stopper in self.stoppers if stopper(trial_id, result)])

    def stop_all(self) -> bool:
        return self._ask_all([stopper for stopper in self.stoppers if stopper.stop_all()])

    def continued(self, ran_s: float) -> None:
        for stopper in self.stoppers:
            stopper.continued(ran_s)

    @property
    def why(self) -> str:
        return self._why

    def _ask_all(self, stopped: list[Stopper]) -> bool:
        if stopped:
            self._why = ", ".join(stopper.why for stopper in stopped)
        return bool(stopped)


def stopper_of(stop: Any) -> Stopper:
    """Convert `RunConfig(stop=...)` to a stopper: None, a dict, a function, a `Stopper`, or a list of these."""
    if stop is None:
        return NoopStopper()
    if isinstance(stop, type):
        raise ValueError(f"stop={stop.__name__} is a class\n\nhint: stop={stop.__name__}(...) makes a stopper of it")
    if isinstance(stop, Stopper):
        return stop
    if isinstance(stop, Mapping):
        return ThresholdStopper(stop)
    if isinstance(stop, list | tuple):
        return CombinedStopper(*map(stopper_of, stop))
    if callable(stop):
        return FunctionStopper(stop)
    raise ValueError(
        f"stop={stop!r} is neither a dict such as {{'training_iteration': 10}}, nor a function of a trial's id and its "
        "result, nor a Stopper, nor a list of these"
    )


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
            f"stop={name}{signature} cannot be called with a trial's id and its result\n\n"
            f"hint: def {name}(trial_id, result): return result['training_iteration'] >= 10"
        ) from None
