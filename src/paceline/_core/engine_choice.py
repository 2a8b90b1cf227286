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
from paceline._core.arguments import check_choice, check_instance

ENGINES = ("local", "ray")


@dataclass(frozen=True)
class EngineChoice:
    engine: str = "local"
    reason: str = "it is the default"
    address: str | None = None
    """Of the cluster; None: the one in use, that of `RAY_ADDRESS`, or a new one."""


_RAY_OPTIONS = """
    num_cpus num_gpus resources labels object_store_memory local_mode ignore_reinit_error include_dashboard
    dashboard_host dashboard_port job_config configure_logging logging_level logging_config logging_format
    log_to_driver namespace runtime_env enable_resource_isolation
"""

_NO_CHOICE = EngineChoice(engine="")
_init = _NO_CHOICE


def check_engine(argument: str, engine: Any) -> None:
    check_choice(argument, engine, (*ENGINES, None))


def remember_init(engine: str | None, address: str | None, connect: Callable[[str | None], object]) -> None:
    """Store the arguments of `paceline.init`, unless connecting fails. `connect` is called with a cluster's address."""
    global _init
    check_engine("engine", engine)
    check_instance(
        "address", address, str, "the address of a cluster, such as '10.0.0.1:6379' or 'auto',", optional=True
    )
    if address is not None and engine == "local":
        raise ValueError(f"address must be None with engine='local', got {address!r}")
    if engine is None and address is not None:
        engine = "ray"
    before, _init = _init, EngineChoice(engine or "", "set by paceline.init()", address)
    try:
        if choose_engine().engine == "ray":
            connect(choose_engine().address)
    except BaseException:
        _init = before
        raise


def check_options(engine: Any, address: Any, options: Mapping[str, Any]) -> None:
    """Refuse options that `ray.init` does not have either, and those that only Ray itself can take."""
    unknown = [name for name in options if name not in _RAY_OPTIONS.split()]
    if unknown:
        raise TypeError(
            f"init() got an unknown argument {unknown[0]!r}; it takes engine, address and those of ray.init()"
        )
    if options and (engine == "ray" or address is not None):
        raise ValueError(
            f"{next(iter(options))} is an option of Ray itself\n\n"
            "hint: call ray.init(...) with it first; Paceline uses a Ray that is already initialised"
        )


def has_init_choice() -> bool:
    return _init != _NO_CHOICE


def forget_init() -> None:
    """Forget the arguments of `paceline.init`."""
    global _init
    _init = _NO_CHOICE


def choose_engine(engine: str | None = None) -> EngineChoice:
    """`engine` is the value of `RunConfig(engine=...)`."""
    environment = settings.load()
    address = _init.address
    if engine is not None:
        return EngineChoice(engine, f"set by RunConfig(engine={engine!r})", address)
    if _init.engine:
        return _init
    if environment.engine is not None:
        return EngineChoice(environment.engine, f"PACELINE_ENGINE={environment.engine}", address)
    if system.in_worker:
        return EngineChoice(reason="this is a worker")
    if is_ray_in_use():
        return EngineChoice("ray", "Ray is initialised in this process")
    if environment.ray_address is not None:
        return EngineChoice("ray", f"RAY_ADDRESS={environment.ray_address}", environment.ray_address)
    return EngineChoice()


def is_ray_in_use() -> bool:
    ray: Any = sys.modules.get("ray")
    return ray is not None and hasattr(ray, "is_initialized") and bool(ray.is_initialized())
