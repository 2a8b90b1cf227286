"""This process's connection to a Ray cluster: the only place that initialises Ray."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")

_EXTRA = 'pip install "paceline[ray]"'


def imported() -> ModuleType:
    """Ray; the error of a missing one names what to install."""
    try:
        import ray
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise ModuleNotFoundError(f"the Ray engine needs Ray, which is not installed\n\nhint: {_EXTRA}") from None
    return ray


CONNECTING = threading.RLock()
"""Held while this process connects: a worker may do so for its rows while its function does."""


def _one_at_a_time(connect: Callable[_P, _R]) -> Callable[_P, _R]:
    @wraps(connect)
    def alone(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with CONNECTING:
            return connect(*args, **kwargs)

    return alone


@_one_at_a_time
def connected(address: str | None, namespace: str | None = None) -> Any:
    """Ray, initialised: as it is, or with the cluster at an address; a cluster of this machine alone where none is."""
    ray = imported()
    if ray.is_initialized():
        return ray
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": False}
    if namespace is not None:
        options["namespace"] = namespace
    try:
        ray.init(address=address, **options)
    except ConnectionError as error:
        raise ConnectionError(
            f"no Ray cluster answers at address={address!r}: {str(error).splitlines()[0]}\n\n"
            "hint: start one with `ray start --head`, or name another with paceline.init(engine='ray', address=...)"
        ) from error
    return ray


def gcs_address() -> str:
    """Where processes that are no part of this one find the same cluster."""
    address: str = imported().get_runtime_context().gcs_address
    return address


@contextlib.contextmanager
def quietly() -> Any:
    """Ray's own loggers keep still below errors for as long as a block lasts."""
    logger = logging.getLogger("ray")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
