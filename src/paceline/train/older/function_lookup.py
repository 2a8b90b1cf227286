"""Find the function that a trainer runs, and the backend for a name."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any, cast

from paceline.train.backend import BackendConfig
from paceline.train.driver.job import resolve_loop_config

DEFAULT_NAMES = ("train_loop_per_worker", "train_func")

_BACKENDS = {
    "torch": ("paceline.train.torch", "TorchConfig"),
    "tensorflow": ("paceline.train.tensorflow", "TensorflowConfig"),
    "jax": ("paceline.train.jax", "JaxConfig"),
    "xgboost": ("paceline.train.xgboost", "XGBoostConfig"),
    "lightgbm": ("paceline.train.lightgbm", "LightGBMConfig"),
}


def find_backend(backend: str | BackendConfig | None) -> BackendConfig:
    """Return the backend for a name; a `BackendConfig` is returned as it is, and None sets nothing up."""
    if backend is None:
        return BackendConfig()
    if isinstance(backend, BackendConfig):
        return backend
    if not isinstance(backend, str) or backend not in _BACKENDS:
        names = ", ".join(map(repr, _BACKENDS))
        raise ValueError(
            f"backend must be {names}, a paceline.train.BackendConfig or None, got {backend!r}\n\n"
            "hint: subclass BackendConfig to set up another framework"
        )
    module, name = _BACKENDS[backend]
    config: BackendConfig = getattr(importlib.import_module(module), name)()
    return config


def find_function(fn: Callable[..., Any] | str | None, default: Any, depth: int) -> Callable[..., Any]:
    """Return the function to run: `fn`, the trainer's own, or the caller's by name, `depth` frames up."""
    chosen = fn if fn is not None else default
    if chosen is not None and not isinstance(chosen, str):
        return cast(Callable[..., Any], chosen)
    names = DEFAULT_NAMES if chosen is None else (chosen,)
    frame = sys._getframe(depth)
    for name in names:
        value = frame.f_locals.get(name, frame.f_globals.get(name))
        if callable(value):
            return cast(Callable[..., Any], value)
    raise ValueError(
        f"no function to run: pass run(fn=...) or Trainer(train_loop_per_worker=...), or define "
        f"{' or '.join(names)} in {frame.f_globals.get('__name__')}"
    )


def resolve_call_config(function: Any, config: Mapping[str, Any] | None) -> Any:
    """Return the function's config. A function without parameters is called without, as in Ray 1.x."""
    if config is not None and _has_no_parameters(function):
        config = None
    return resolve_loop_config(function, dict(config) if isinstance(config, Mapping) else config)


def _has_no_parameters(function: Any) -> bool:
    try:
        return not inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
