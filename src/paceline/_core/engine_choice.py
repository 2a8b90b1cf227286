"""Chooses the engine that runs a script, and says why.

A script sets it with `RunConfig(engine=...)` or `paceline.init(engine=...)`, an operator with `PACELINE_ENGINE`. By
default it is Ray if Ray is already initialised or `RAY_ADDRESS` names a cluster, and this machine otherwise.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from paceline._core import settings, system

ENGINES = ("local", "ray")


@dataclass(frozen=True)
class EngineChoice:
    engine: str = "local"
    reason: str = "it is the default"
    address: str | None = None
    """Of the cluster; None: the one in use, that of `RAY_ADDRESS`, or a new one."""


_RAY_OPTIONS = {
    "num_cpus",
    "num_gpus",
    "resources",
    "labels",
    "object_store_memory",
    "local_mode",
    "ignore_reinit_error",
    "include_dashboard",
    "dashboard_host",
    "dashboard_port",
    "job_config",
    "configure_logging",
    "logging_level",
    "logging_config",
    "logging_format",
    "log_to_driver",
    "namespace",
    "runtime_env",
    "enable_resource_isolation",
}

_NO_CHOICE = EngineChoice(engine="")
_init = _NO_CHOICE


def check_engine(argument: str, engine: Any) -> None:
    if engine is not None and engine not in ENGINES:
        raise ValueError(f"{argument}={engine!r} is not one of {', '.join(map(repr, ENGINES))}")


def remember_init(engine: str | None, address: str | None, connect: Callable[[str | None], object]) -> None:
    """Store the arguments of `paceline.init`, unless connecting fails. `connect` is called with a cluster's address."""
    global _init
    check_engine("engine", engine)
    if address is not None and not isinstance(address, str):
        raise ValueError(f"address={address!r} is not the address of a cluster, such as '10.0.0.1:6379' or 'auto'")
    if address is not None and engine == "local":
        raise ValueError(f"address={address!r} names a cluster, and engine='local' is this machine alone")
    if engine is None and address is not None:
        engine = "ray"
    before, _init = _init, EngineChoice(engine or "", "paceline.init() says so", address)
    try:
        if choose_engine().engine == "ray":
            connect(choose_engine().address)
    except BaseException:
        _init = before
        raise


def check_options(engine: Any, address: Any, options: Mapping[str, Any]) -> None:
    """Refuse options that `ray.init` does not have either, and those that only Ray itself can take."""
    unknown = [name for name in options if name not in _RAY_OPTIONS]
    if unknown:
        raise TypeError(f"init() has no argument {unknown[0]!r}: it takes engine, address, and those of ray.init()")
    if options and (engine == "ray" or address is not None):
        raise ValueError(
            f"{next(iter(options))}=... is for Ray itself\n\n"
            "hint: call ray.init(...) with it first; a Ray that is initialised is used as it is"
        )


def has_init_choice() -> bool:
    return _init != _NO_CHOICE


def forget_init() -> None:
    """Forget the arguments of `paceline.init`."""
    global _init
    _init = _NO_CHOICE


def choose_engine(asked: str | None = None) -> EngineChoice:
    """`asked` is the value of `RunConfig(engine=...)`."""
    known = settings.load()
    address = _init.address
    if asked is not None:
        return EngineChoice(asked, f"RunConfig(engine={asked!r}) says so", address)
    if _init.engine:
        return _init
    if known.engine is not None:
        return EngineChoice(known.engine, f"PACELINE_ENGINE={known.engine}", address)
    if system.in_worker:
        return EngineChoice(reason="this is a worker")
    if is_ray_in_use():
        return EngineChoice("ray", "Ray is initialised in this process")
    if known.ray_address is not None:
        return EngineChoice("ray", f"RAY_ADDRESS={known.ray_address}", known.ray_address)
    return EngineChoice()


def is_ray_in_use() -> bool:
    ray: Any = sys.modules.get("ray")
    return ray is not None and hasattr(ray, "is_initialized") and bool(ray.is_initialized())
