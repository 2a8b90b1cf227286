"""Which engine runs a script, and why: what was asked for, and what the surroundings say.

A script asks with `RunConfig(engine=...)` or `paceline.init(engine=...)`; an operator with `PACELINE_ENGINE`. Without
either it is Ray where Ray is already in use, or where `RAY_ADDRESS` names a cluster, and else this machine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from paceline._core import settings, system

ENGINES = ("local", "ray")


@dataclass(frozen=True)
class Choice:
    engine: str = "local"
    reason: str = "it is the default"
    address: str | None = None
    """Of the cluster; None: the one in use, or that of `RAY_ADDRESS`, or a new one."""


_OPTIONS_OF_RAY = {
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

_UNTOLD = Choice(engine="")
_init = _UNTOLD


def check_engine(argument: str, engine: Any) -> None:
    if engine is not None and engine not in ENGINES:
        raise ValueError(f"{argument}={engine!r} is not one of {', '.join(map(repr, ENGINES))}")


def remember(engine: str | None, address: str | None, connect: Callable[[str | None], object]) -> None:
    """What `paceline.init` was told; nothing where it cannot be had. `connect` is called with a cluster's address."""
    global _init
    check_engine("engine", engine)
    if address is not None and not isinstance(address, str):
        raise ValueError(f"address={address!r} is not the address of a cluster, such as '10.0.0.1:6379' or 'auto'")
    if address is not None and engine == "local":
        raise ValueError(f"address={address!r} names a cluster, and engine='local' is this machine alone")
    if engine is None and address is not None:
        engine = "ray"
    before, _init = _init, Choice(engine or "", "paceline.init() says so", address)
    try:
        if chosen().engine == "ray":
            connect(chosen().address)
    except BaseException:
        _init = before
        raise


def check_options(engine: Any, address: Any, options: Mapping[str, Any]) -> None:
    """Refuse what is no argument of `ray.init` either, and what only Ray itself can be told."""
    unknown = [name for name in options if name not in _OPTIONS_OF_RAY]
    if unknown:
        raise TypeError(f"init() has no argument {unknown[0]!r}: it takes engine, address, and those of ray.init()")
    if options and (engine == "ray" or address is not None):
        raise ValueError(
            f"{next(iter(options))}=... is for Ray itself\n\n"
            "hint: call ray.init(...) with it first; a Ray that is initialised is used as it is"
        )


def is_told() -> bool:
    return _init != _UNTOLD


def forget() -> None:
    """What `paceline.init` was told."""
    global _init
    _init = _UNTOLD


def chosen(asked: str | None = None) -> Choice:
    """`asked`: what `RunConfig(engine=...)` says."""
    known = settings.load()
    address = _init.address
    if asked is not None:
        return Choice(asked, f"RunConfig(engine={asked!r}) says so", address)
    if _init.engine:
        return _init
    if known.engine is not None:
        return Choice(known.engine, f"PACELINE_ENGINE={known.engine}", address)
    if system.in_worker:
        return Choice(reason="this is a worker")
    if ray_is_in_use():
        return Choice("ray", "Ray is initialised in this process")
    if known.ray_address is not None:
        return Choice("ray", f"RAY_ADDRESS={known.ray_address}", known.ray_address)
    return Choice()


def ray_is_in_use() -> bool:
    ray: Any = sys.modules.get("ray")
    return ray is not None and hasattr(ray, "is_initialized") and bool(ray.is_initialized())
