"""Paceline: train models on many processes, on one machine or a cluster, without losing work.

The map of the package:

    paceline.train          trainers, report(), checkpoints, results: what a train function and its script import
    paceline.train.torch    TorchTrainer and its helpers; one folder per framework
    paceline.data           streaming datasets: read, transform, split, iterate, resume
    paceline.tune           search over many runs: spaces, searchers, schedulers, results
    paceline.air            the older names of the same: session.report(), ScalingConfig, RunConfig, Result
    paceline.testing        faults, a fake engine and a fake clock, for tests of scripts and of Paceline itself
    paceline.cli            the command `paceline`; each of its commands is a module of paceline._commands
    paceline._control       the life of a run: events in, commands out, a journal of it all
    paceline._engine        where workers live: `local` forks them on this machine, `ray` has them on a cluster
    paceline._worker        what runs inside a worker process
    paceline._storage       checkpoints on disk: staged, committed, verified, retained
    paceline._core          clock, codec, settings, operating system; imports nothing of ours

Importing this package loads the standard library only; each part loads what it needs when it is used.
"""

import importlib
import sys
from typing import Any

__version__ = "0.1.0"

_SUBMODULES = ("air", "data", "testing", "train", "tune")

__all__ = ["__version__", "init", "is_initialized", "shutdown", *_SUBMODULES]


def init(engine: str | None = None, address: str | None = None, **options: Any) -> None:
    """Choose where the runs of this script live: `engine="local"`, this machine, or `engine="ray"`, a Ray cluster.

    `address` is the cluster's, as in `ray.init`. This connects at once, so that a wrong address fails here. Not needed
    on this machine, nor if `RAY_ADDRESS` is set or Ray is already initialised. On this machine, other arguments of
    `ray.init`, such as `num_cpus`, are ignored.
    """
    from paceline._core.engine_choice import check_options, remember_init

    check_options(engine, address, options)

    def connect(address: str | None) -> object:
        from paceline._engine.ray.connection import connect_to_cluster

        return connect_to_cluster(address)

    remember_init(engine, address, connect)


def is_initialized() -> bool:
    """Whether `init()` was called, without a later `shutdown()`."""
    from paceline._core.engine_choice import has_init_choice

    return has_init_choice()


def shutdown() -> None:
    """Undo `init()` and stop the processes kept for further runs. Current runs are not affected."""
    from paceline._core.engine_choice import forget_init
    from paceline._engine.local.launchers import close_prewarmed_processes

    forget_init()
    close_prewarmed_processes()


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"paceline.{name}")
    from paceline._core.lazy_imports import raise_missing

    return raise_missing(__name__, name, __all__)


class _RayModules:
    """The last finder of modules, asked only for one that is not there: it says what to use if Ray has it."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> Any:
        if not name.startswith("paceline."):
            return None
        from paceline._core.ray_names import find_ray_module

        return find_ray_module(name)


sys.meta_path.append(_RayModules)
