"""What is sent to the workers: the user's function, what it is called with, and the backend around it."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Mapping
from typing import Any

import cloudpickle

from paceline.train.backend import BackendConfig


def called_with(function: Any, config: Any) -> Any:
    """The configuration that the function is called with; None where it is called without."""
    if not callable(function):
        raise ValueError(f"train_loop_per_worker={function!r} is not a function")
    if config is not None and not isinstance(config, Mapping):
        raise ValueError(f"train_loop_config={config!r} is not a dict")
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return config
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL)]
    required = [p for p in positional if p.default is p.empty and p.kind is not p.VAR_POSITIONAL]
    if len(required) > 1:
        raise ValueError(
            f"train_loop_per_worker takes {len(required)} arguments "
            f"({', '.join(p.name for p in required)}): it may take one, the train_loop_config, or none"
        )
    if config is not None and not positional:
        raise ValueError("train_loop_config was given, but train_loop_per_worker takes no argument to receive it")
    return {} if config is None and required else config


def pickled_job(function: Any, config: Any, backend: BackendConfig) -> bytes:
    """The job as bytes; what does not pickle is named."""
    try:
        job: bytes = cloudpickle.dumps((function, config, backend))
    except (TypeError, pickle.PicklingError, AttributeError, RecursionError) as problem:
        raise TypeError(
            f"train_loop_per_worker cannot be sent to the workers: {_culprit(function, config)} "
            f"({type(problem).__name__}: {problem})\n\n"
            "hint: create locks, connections, files and data loaders inside the function"
        ) from problem
    return job


def _culprit(function: Any, config: Any) -> str:
    """Which of the things that the function carries along does not pickle."""
    closure = inspect.getclosurevars(function) if inspect.isfunction(function) else None
    carried: dict[str, Any] = {f"train_loop_config[{name!r}]": v for name, v in (config or {}).items()}
    if closure is not None:
        carried |= {f"the variable {name!r} that it uses": v for name, v in closure.nonlocals.items()}
        carried |= {f"the global {name!r} that it uses": v for name, v in closure.globals.items()}
    for name, value in carried.items():
        try:
            cloudpickle.dumps(value)
        except Exception:  # noqa: BLE001  any failure names it
            return f"{name} is a {type(value).__name__}, which does not pickle"
    return "something it refers to does not pickle"
