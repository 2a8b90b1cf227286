"""The job sent to the workers: the user's function, its config, and the backend around it."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Mapping
from typing import Any

import cloudpickle

from paceline.train.backend import BackendConfig
from paceline.train.unpicklable import find_unpicklable


def resolve_loop_config(function: Any, config: Any) -> Any:
    """Return the config that the function is called with, or None to call it without arguments."""
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
    if config and not positional:
        raise ValueError("train_loop_config was given, but train_loop_per_worker takes no argument to receive it")
    if not positional:
        return None
    return {} if config is None and required else config


def pickle_job(function: Any, config: Any, backend: BackendConfig) -> bytes:
    """Pickle the job. If part of it does not pickle, the error names that object and the path to it."""
    try:
        with _keep_references():
            job: bytes = cloudpickle.dumps((function, config, backend))
    except Exception as problem:
        found = find_unpicklable(
            {"train_loop_per_worker": function, "train_loop_config": config, "backend_config": backend}
        )
        path = found.path if found is not None else "something that goes with train_loop_per_worker"
        reason = found.problem if found is not None else problem
        raise TypeError(
            f"{path} cannot be sent to the workers: {type(reason).__name__}: {reason}\n\n"
            "hint: create locks, connections, files and data loaders inside train_loop_per_worker"
        ) from problem
    return job


def _keep_references() -> contextlib.AbstractContextManager[None]:
    if "ray" not in sys.modules:
        return contextlib.nullcontext()
    from paceline._engine.ray.ray_in_worker import keep_reference_owners

    return keep_reference_owners()


def pickle_filesystem(filesystem: Any) -> bytes | None:
    """Pickle a user's filesystem, so that workers can open it themselves."""
    if filesystem is None:
        return None
    try:
        data: bytes = cloudpickle.dumps(filesystem)
    except Exception as error:
        raise ValueError(f"storage_filesystem={filesystem!r} cannot be sent to workers: {error}") from error
    return data
