"""Where the workers of a run live (this machine or a cluster), what they get there, and what serves them.

A run uses its target only through this protocol, which hides all differences between one machine and a cluster.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from paceline._core.arguments import parse_env_vars
from paceline._core.engine_choice import choose_engine
from paceline._engine.base import Engine, WorkerResources
from paceline._engine.local.devices import DeviceShare, Machine, assign_devices, assign_devices_beside, this_machine
from paceline._engine.local.engine import LocalEngine
from paceline._engine.local.launchers import InlineLauncher
from paceline._view.formatting import format_count
from paceline.train.config import RunConfig, ScalingConfig
from paceline.train.driver.datasets import DataEndpoint, DatasetSpec, serve_datasets

_RAY_HINT = "hint: paceline.init(engine='ray', address=...) or RunConfig(engine='ray') runs it on a Ray cluster"

log = logging.getLogger("paceline")
_announced: set[tuple[str, Any]] = set()
"""Which options that mean nothing on one machine were pointed out in this process."""

Say = Callable[[str], None]


class ExecutionTarget(Protocol):
    preload: tuple[str, ...]
    """Modules to preload in workers that read datasets."""

    def check(self) -> None:
        """Raise if the requested resources can never be available here."""
        ...

    def describe(self) -> str:
        """Describe the run's resources for a person: `2 workers on this machine (1 thread each)`."""
        ...

    def compute_shares(self, size: int) -> tuple[DeviceShare, ...]:
        """Return what each of `size` workers gets, as far as it is known before placement."""
        ...

    def compute_auxiliary_share(self, *, num_cpus: float, num_gpus: float) -> DeviceShare:
        """Return what a process beside the workers gets."""
        ...

    def make_engine(self, inline: InlineLauncher | None, say: Say, beside: WorkerResources | None = None) -> Engine:
        """`beside`: make the engine for one process beside the workers, with these resources."""
        ...

    def serve_datasets(self, data: DatasetSpec | None, say: Say) -> AbstractContextManager[DataEndpoint]:
        """Serve the rows of the datasets to workers while the run is driven."""
        ...


class LocalTarget:
    """This machine, or a part of it."""

    preload: tuple[str, ...] = ()

    def __init__(self, scaling: ScalingConfig, config: RunConfig, machine: Machine | None = None) -> None:
        """`machine`: the part of this machine that the run may use; None: whatever is available when it is needed."""
        self._scaling = scaling
        self._config = config
        self._given_machine = machine

    @property
    def _machine(self) -> Machine:
        return self._given_machine if self._given_machine is not None else this_machine()

    def check(self) -> None:
        env_vars = parse_env_vars(self._config.worker_runtime_env)
        if env_vars and self._scaling.num_workers == 0:
            raise ValueError(
                "RunConfig(worker_runtime_env=...) needs workers, but num_workers=0 runs in this process\n\n"
                "hint: set os.environ in the script"
            )
        beyond = {*(self._config.worker_runtime_env or {})} - {"env_vars"}
        for argument, value in (
            ("ScalingConfig(label_selector=...)", self._scaling.label_selector),
            (f"RunConfig(worker_runtime_env=...) with {', '.join(sorted(beyond))}", beyond),
            ("RunConfig(detached=True)", self._config.detached),
        ):
            if value:
                raise ValueError(f"{argument} needs a cluster, but this run is on this machine\n\n{_RAY_HINT}")
        self.compute_shares(self._scaling.sizes[0])
        scaling = self._scaling
        ignored = {**scaling.additional_resources_per_worker, "accelerator_type": scaling.accelerator_type}
        ignored["placement_strategy"] = None if scaling.placement_strategy == "PACK" else scaling.placement_strategy
        for name, option in ignored.items():
            if option is not None and (name, option) not in _announced:
                _announced.add((name, option))
                log.warning("ScalingConfig: %s=%r has no effect on one machine; it is for a cluster", name, option)

    def describe(self) -> str:
        least, most = self._scaling.sizes[0], self._scaling.sizes[-1]
        if least < most:
            workers, threads = f"{least} to {format_count(most, 'worker')}", "as many as fit"
        else:
            workers = format_count(most, "worker")
            threads = format_count(self.compute_shares(most)[0].num_threads, "thread") + (" each" if most > 1 else "")
        num_cpus, cores = least * self._scaling.num_cpus_per_worker, format_count(self._machine.num_cores, "core")
        if num_cpus > self._machine.num_cores and "CPU" in (self._scaling.resources_per_worker or {}):
            threads += f"; {num_cpus:g} CPUs were requested, but there are only {cores} here"
        elif least == most > self._machine.num_cores:
            threads += f"; more workers than the {cores} here"
        return f"{workers} on this machine ({threads})"

    def compute_shares(self, size: int) -> tuple[DeviceShare, ...]:
        return assign_devices(
            self._machine,
            size,
            cpus_per_worker=self._scaling.num_cpus_per_worker,
            gpus_per_worker=self._scaling.num_gpus_per_worker,
        )

    def compute_auxiliary_share(self, *, num_cpus: float, num_gpus: float) -> DeviceShare:
        shares = self.compute_shares(self._scaling.sizes[0])
        return assign_devices_beside(self._machine, shares, num_cpus=num_cpus, num_gpus=num_gpus)

    def make_engine(self, inline: InlineLauncher | None, say: Say, beside: WorkerResources | None = None) -> Engine:
        return LocalEngine(inline, self._given_machine, parse_env_vars(self._config.worker_runtime_env))

    def serve_datasets(self, data: DatasetSpec | None, say: Say) -> AbstractContextManager[DataEndpoint]:
        if data is not None and self._given_machine is not None:
            data = data.limit_to_cores(self._given_machine.num_cores)
        return serve_datasets(data)


def choose_target(scaling: ScalingConfig, config: RunConfig) -> ExecutionTarget:
    choice = choose_engine(config.engine)
    if choice.engine == "ray" and scaling.num_workers != 0:
        from paceline.train.driver.cluster_target import ClusterTarget

        return ClusterTarget(scaling, config, choice)
    return LocalTarget(scaling, config)
