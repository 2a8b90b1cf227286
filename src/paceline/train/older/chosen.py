"""Which function a trainer runs, and which backend a name stands for."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

from paceline.train.backend import BackendConfig
from paceline.train.job import called_with

DEFAULT_NAMES = ("train_loop_per_worker", "train_func")

_BACKENDS = {
    "torch": ("paceline.train.torch", "TorchConfig"),
    "tensorflow": ("paceline.train.tensorflow", "TensorflowConfig"),
    "jax": ("paceline.train.jax", "JaxConfig"),
    "xgboost": ("paceline.train.xgboost", "XGBoostConfig"),
    "lightgbm": ("paceline.train.lightgbm", "LightGBMConfig"),
}


def backend_named(backend: str | BackendConfig | None) -> BackendConfig:
    """The backend that a name stands for; one that is none already is left as it is, and None sets nothing up."""
    if backend is None:
        return BackendConfig()
    if isinstance(backend, BackendConfig):
        return backend
    known = _BACKENDS.get(backend) if isinstance(backend, str) else None
    if known is None:
        names = ", ".join(map(repr, _BACKENDS))
        raise ValueError(
            f"backend={backend!r} is not one of {names}, a paceline.train.BackendConfig, or None for none\n\n"
            "hint: a framework of your own is set up by a subclass of BackendConfig"
        )
    module, name = known
    found: BackendConfig = getattr(importlib.import_module(module), name)()
    return found


def function_for(fn: Callable[..., Any] | str | None, own: Any, depth: int) -> Callable[..., Any]:
    """What is to be run: `fn`, the trainer's own, or the caller's by its name. `depth`: how far up the caller is."""
    chosen = fn if fn is not None else own
    if chosen is not None and not isinstance(chosen, str):
        found: Callable[..., Any] = chosen
        return found
    names = DEFAULT_NAMES if chosen is None else (chosen,)
    frame = sys._getframe(depth)
    for name in names:
        there = frame.f_locals.get(name, frame.f_globals.get(name))
        if callable(there):
            named: Callable[..., Any] = there
            return named
    raise ValueError(
        f"there is no function to run: neither run(fn=...) nor Trainer(train_loop_per_worker=...) was given one, and "
        f"{frame.f_globals.get('__name__')} has no function called {' or '.join(names)}"
    )


def called(function: Any, config: Mapping[str, Any] | None) -> Any:
    """What the function is called with. One without a parameter is called without, as it always was here."""
    if config is not None and _takes_nothing(function):
        config = None
    return called_with(function, dict(config) if isinstance(config, Mapping) else config)


def _takes_nothing(function: Any) -> bool:
    try:
        return not inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
