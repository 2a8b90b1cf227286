"""What a run sends from the driver to the nodes, and how a node applies it.

The driver builds a `CodeBundle`: the `ActorConfig` that every actor receives, and the packed files. An actor applies
it: it takes on the settings, module path, directory and arguments that a worker would have on the driver's machine.
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
from paceline._engine.ray.code import packing
from paceline._engine.ray.code.unpacking import has_same_files, unpack_code
from paceline._engine.ray.connection import import_ray

_RAY_VARIABLES = (
    "RAY_JOB_ID",
    "RAY_RAYLET_PID",
    "RAY_CLIENT_MODE",
    "RAY_LD_PRELOAD_ON_WORKERS",
    "SPT_NOENV",
    "PYTHONBREAKPOINT",
)
"""Set by Ray for its own worker processes. With them, our worker would be taken for the actor around it."""


class ActorConfig(msgspec.Struct, frozen=True):
    """What an actor receives when it starts."""

    version: str = ""
    """Of Paceline on the driver; `python` likewise."""
    python: str = ""
    env: dict[str, str] = {}
    """The driver's Paceline settings."""
    argv: tuple[str, ...] = ()
    cwd: str = ""
    namespace: str = ""
    """The Ray namespace of the driver's named actors."""
    manifest: packing.CodeManifest = packing.CodeManifest()
    has_working_dir: bool = False
    """Ray has already put the actor into its working directory."""


@dataclass(frozen=True)
class CodeBundle:
    config: ActorConfig = field(default_factory=ActorConfig)
    data: bytes = b""
    """The files of the manifest, packed."""
    runtime_env: Mapping[str, Any] | None = None
    """The part of `worker_runtime_env` that Ray handles."""


def build_code_bundle(runtime_env: Mapping[str, Any] | None) -> CodeBundle:
    """Build the bundle for a run of this process. Ray must be connected."""
    env_vars = _env_vars(runtime_env)
    rest, roots = packing.split_runtime_env(runtime_env)
    _check_runtime_env(rest)
    has_own_dir = any(root.is_working_dir for root in roots) or "working_dir" in (rest or {})
    homes = packing.script_directories(sys.modules.get("__main__"))
    packed = packing.pack_code([] if has_own_dir else packing.find_user_modules(sys.modules, homes), roots)
    config = ActorConfig(
        version=paceline.__version__,
        python=platform.python_version(),
        env={name: value for name, value in settings.paceline_variables().items() if name not in env_vars},
        argv=tuple(sys.argv),
        cwd=_current_directory(),
        namespace=import_ray().get_runtime_context().namespace,
        manifest=packed.manifest,
        has_working_dir="working_dir" in (rest or {}),
    )
    return CodeBundle(config, packed.data, rest)


def apply_environment(config: ActorConfig) -> None:
    """Set up the environment of the actor, before it starts anything."""
    for name in _RAY_VARIABLES:
        os.environ.pop(name, None)
    os.environ.update(config.env)


def find_missing_trees(config: ActorConfig) -> tuple[int, ...]:
    """Return the trees that this node does not already have at the same path with the same contents."""
    return tuple(n for n, tree in enumerate(config.manifest.trees) if tree.is_working_dir or not has_same_files(tree))


def apply_config(config: ActorConfig, missing: tuple[int, ...], data: bytes) -> None:
    """Set up the actor's module path, arguments and directory, which its workers inherit.

    `data`: the packed files, if any trees are missing.
    """
    roots = [tree.root for tree in config.manifest.trees]
    if missing and config.manifest.size_problem:
        raise ModuleNotFoundError(f"the user's modules are missing on this node: {config.manifest.size_problem}")
    if missing:
        directory = unpack_code(config.manifest, data)
        for number in missing:
            roots[number] = str(directory / str(number))
    sys.path[:] = dict.fromkeys([*roots, *sys.path])  # what came with the job first, then what the node has
    if config.argv:
        sys.argv[:] = config.argv
    working_dir = next((roots[n] for n, tree in enumerate(config.manifest.trees) if tree.is_working_dir), None)
    if working_dir is not None:
        os.chdir(working_dir)
    elif os.path.isdir(config.cwd) and not config.has_working_dir and not _has_working_dir():
        os.chdir(config.cwd)


def _check_runtime_env(runtime_env: Mapping[str, Any] | None) -> None:
    try:
        import_ray().runtime_env.RuntimeEnv(**(runtime_env or {}))
    except (ValueError, TypeError) as error:
        raise ValueError(f"Ray rejects worker_runtime_env={dict(runtime_env or {})!r}: {error}") from error


def _has_working_dir() -> bool:
    """Whether Ray was given a working directory for the whole job."""
    return bool(import_ray().get_runtime_context().runtime_env.get("working_dir"))


def _env_vars(runtime_env: Mapping[str, Any] | None) -> Mapping[str, str]:
    env_vars = (runtime_env or {}).get("env_vars") or {}
    if not isinstance(env_vars, Mapping) or not all(isinstance(x, str) for each in env_vars.items() for x in each):
        raise ValueError(
            f"env_vars of worker_runtime_env must be a dict of strings such as {{'NAME': '1'}}, got {env_vars!r}"
        )
    return env_vars


def _current_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""
