"""The job sent to the workers: the user's function, its config, and the backend around it."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Mapping
from typing import Any

import cloudpickle

from paceline._core.arguments import check_callable, check_instance
from paceline.train.backend import BackendConfig
from paceline.train.driver.unpicklable import explain_unpicklable


def resolve_loop_config(function: Any, config: Any) -> Any:
    """Return the config that the function is called with, or None to call it without arguments."""
    check_callable("train_loop_per_worker", function)
    check_instance("train_loop_config", config, Mapping, "a dict", optional=True)
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return config
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL)]
    required = [p for p in positional if p.default is p.empty and p.kind is not p.VAR_POSITIONAL]
    if len(required) > 1:
        raise ValueError(
            f"train_loop_per_worker must take train_loop_config or no argument, "
            f"got a function with {len(required)} arguments: {', '.join(p.name for p in required)}"
        )
    if config and not positional:
        raise ValueError("train_loop_config needs a train_loop_per_worker that takes it as an argument")
    if not positional:
        return None
    return {} if config is None and required else config


def pickle_job(function: Any, config: Any, backend: BackendConfig) -> bytes:
    """Pickle the job. If part of it does not pickle, the error names that object and the path to it."""
    try:
        with _keep_references():
            return bytes(cloudpickle.dumps((function, config, backend)))
    except Exception as problem:
        parts = {"train_loop_per_worker": function, "train_loop_config": config, "backend_config": backend}
        path, reason = explain_unpicklable(parts, "something that goes with train_loop_per_worker", problem)
        raise TypeError(
            f"{path} cannot be sent to the workers: {reason}\n\n"
            "hint: create locks, connections, files and data loaders inside train_loop_per_worker"
        ) from problem


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
        return bytes(cloudpickle.dumps(filesystem))
    except Exception as error:
        raise ValueError(f"cannot send storage_filesystem {filesystem!r} to workers: {error}") from error
