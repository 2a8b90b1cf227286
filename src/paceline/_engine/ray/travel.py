"""What goes with a run from the driver to the nodes, and what becomes of it there.

The driver packs a `Luggage`: what every actor is told (`Kit`), and the files that travel. An actor settles: it takes
out what Ray set for a worker process of its own, puts in what the driver's settings say, and has the module path, the
directory and the arguments that a worker would have on the driver's machine, as far as the node has them.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

import paceline
from paceline._core import settings
from paceline._engine.ray.connect import imported
from paceline._engine.ray.parcel import Packed, Parcel, homes, own_modules, packed, split
from paceline._engine.ray.unpack import lies_here, path_with, unpacked

_OF_RAY = (
    "RAY_JOB_ID",
    "RAY_RAYLET_PID",
    "RAY_CLIENT_MODE",
    "RAY_LD_PRELOAD_ON_WORKERS",
    "SPT_NOENV",
    "PYTHONBREAKPOINT",
)
"""What Ray sets for its own worker processes. A worker of ours is none: it would be taken for the actor around it."""


class Kit(msgspec.Struct, frozen=True):
    """What an actor is told when it starts."""

    version: str = ""
    """Of Paceline and of Python, where the driver is."""
    python: str = ""
    env: dict[str, str] = {}
    """Settings of ours that hold for the driver."""
    argv: tuple[str, ...] = ()
    cwd: str = ""
    namespace: str = ""
    """Of Ray: in which the driver's named actors are."""
    parcel: Parcel = Parcel()
    has_working_dir: bool = False
    """The actor is where it is to be: Ray has put it there."""


@dataclass(frozen=True)
class Luggage:
    kit: Kit = field(default_factory=Kit)
    data: bytes = b""
    """The files of the kit's parcel."""
    runtime_env: Mapping[str, Any] | None = None
    """What is left for Ray to see to."""


def luggage(runtime_env: Mapping[str, Any] | None) -> Luggage:
    """What a run of this process takes along. Ray is connected."""
    given = _variables(runtime_env)
    rest, roots = split(runtime_env)
    _check_ray_takes(rest)
    alone = any(root.as_it_is for root in roots) or "working_dir" in (rest or {})
    modules = [] if alone else own_modules(sys.modules, homes(sys.modules.get("__main__")))
    found: Packed = packed(modules, roots)
    kit = Kit(
        version=paceline.__version__,
        python=platform.python_version(),
        env={name: value for name, value in settings.own_variables().items() if name not in given},
        argv=tuple(sys.argv),
        cwd=_directory(),
        namespace=imported().get_runtime_context().namespace,
        parcel=found.parcel,
        has_working_dir="working_dir" in (rest or {}),
    )
    return Luggage(kit, found.data, rest)


def settle_environment(kit: Kit) -> None:
    """In the actor, before it starts anything."""
    for name in _OF_RAY:
        os.environ.pop(name, None)
    os.environ.update(kit.env)


def lacking(kit: Kit) -> tuple[int, ...]:
    """The trees of the parcel that this node does not have already, at the same place and with the same contents."""
    return tuple(n for n, tree in enumerate(kit.parcel.trees) if tree.as_it_is or not lies_here(tree))


def settle(kit: Kit, lacking: tuple[int, ...], data: bytes) -> None:
    """In the actor: have the module path, the arguments and the directory that its workers are to have.

    `data`: the files that travelled, where any are lacking.
    """
    roots = [tree.root for tree in kit.parcel.trees]
    if lacking:
        here = unpacked(kit.parcel, data)
        for number in lacking:
            roots[number] = str(here / str(number))
    sys.path[:] = path_with(roots, sys.path)
    if kit.argv:
        sys.argv[:] = kit.argv
    working_dir = next((roots[n] for n, tree in enumerate(kit.parcel.trees) if tree.as_it_is), None)
    if working_dir is not None:
        os.chdir(working_dir)
    elif os.path.isdir(kit.cwd) and not kit.has_working_dir and not _has_working_dir():
        os.chdir(kit.cwd)


def _check_ray_takes(runtime_env: Mapping[str, Any] | None) -> None:
    try:
        imported().runtime_env.RuntimeEnv(**(runtime_env or {}))
    except (ValueError, TypeError) as error:
        raise ValueError(f"worker_runtime_env={dict(runtime_env or {})!r} is refused by Ray: {error}") from error


def _has_working_dir() -> bool:
    """Whether Ray was told where all processes of the job are to be."""
    return bool(imported().get_runtime_context().runtime_env.get("working_dir"))


def _variables(runtime_env: Mapping[str, Any] | None) -> Mapping[str, str]:
    given = (runtime_env or {}).get("env_vars") or {}
    if not isinstance(given, Mapping) or not all(isinstance(x, str) for each in given.items() for x in each):
        raise ValueError(f"worker_runtime_env: env_vars={given!r} is not a dict of texts such as {{'NAME': '1'}}")
    return given


def _directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""
