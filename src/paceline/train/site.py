"""Where the workers of a run live: this machine, or a cluster; what they get there, and what serves them.

A run knows its site by this protocol alone: all that differs between one machine and a cluster is behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from paceline._core.choice import chosen
from paceline._engine.base import Engine, Needs
from paceline._engine.local.devices import Machine, Share, share_beside, shares, this_machine
from paceline._engine.local.engine import LocalEngine
from paceline._engine.local.inline import InlineLauncher
from paceline._view.words import counted
from paceline.train.config import RunConfig, ScalingConfig
from paceline.train.datasets import AskedData, Served, served

_ON_RAY = "hint: paceline.init(engine='ray', address=...) or RunConfig(engine='ray') has it on a Ray cluster"

Say = Callable[[str], None]


class Site(Protocol):
    preload: tuple[str, ...]
    """What workers that take rows of datasets are to have imported before they begin."""

    def check(self) -> None:
        """Refuse what can never be had here."""
        ...

    def described(self) -> str:
        """What the run has here, for a person: `2 workers on this machine (1 thread each)`."""
        ...

    def shares(self, size: int) -> tuple[Share, ...]:
        """What each of so many workers gets, as far as it is known before they have a place."""
        ...

    def share_beside(self, *, num_cpus: float, num_gpus: float) -> Share:
        """What a process beside the workers gets."""
        ...

    def engine(self, inline: InlineLauncher | None, say: Say, beside: Needs | None = None) -> Engine:
        """`beside`: for one process beside the workers, with these needs."""
        ...

    def served(self, data: AskedData | None, say: Say) -> AbstractContextManager[Served]:
        """The rows of datasets, to be had by workers for as long as the run is driven."""
        ...


class LocalSite:
    """This machine, or a part of it."""

    preload: tuple[str, ...] = ()

    def __init__(self, scaling: ScalingConfig, config: RunConfig, machine: Machine | None = None) -> None:
        """`machine`: the part that the run has of it; None: all that there is when it is asked for."""
        self._scaling = scaling
        self._config = config
        self._part = machine

    @property
    def _machine(self) -> Machine:
        return self._part if self._part is not None else this_machine()

    def check(self) -> None:
        for argument, given in (
            ("ScalingConfig(label_selector=...)", self._scaling.label_selector),
            ("RunConfig(worker_runtime_env=...)", self._config.worker_runtime_env),
            ("RunConfig(detached=True)", self._config.detached),
        ):
            if given:
                raise ValueError(f"{argument} is for a cluster, and this run is on this machine\n\n{_ON_RAY}")
        self.shares(self._scaling.sizes[0])

    def described(self) -> str:
        least, most = self._scaling.sizes[0], self._scaling.sizes[-1]
        if least < most:
            workers, threads = f"{least} to {counted(most, 'worker')}", "as many as there is room for"
        else:
            num_cores = self._machine.num_cores
            workers = counted(most, "worker")
            threads = counted(self.shares(most)[0].num_threads, "thread") + (" each" if most > 1 else "")
            if most > num_cores:
                threads += f"; more than the {num_cores} cores here, so they take turns"
        return f"{workers} on this machine ({threads})"

    def shares(self, size: int) -> tuple[Share, ...]:
        return shares(
            self._machine,
            size,
            cpus_per_worker=self._scaling.num_cpus_per_worker,
            gpus_per_worker=self._scaling.num_gpus_per_worker,
        )

    def share_beside(self, *, num_cpus: float, num_gpus: float) -> Share:
        given = self.shares(self._scaling.sizes[0])
        return share_beside(self._machine, given, num_cpus=num_cpus, num_gpus=num_gpus)

    def engine(self, inline: InlineLauncher | None, say: Say, beside: Needs | None = None) -> Engine:
        return LocalEngine(inline, self._part)

    def served(self, data: AskedData | None, say: Say) -> AbstractContextManager[Served]:
        if data is not None and self._part is not None:
            data = data.within(self._part.num_cores)
        return served(data)


def site_of(scaling: ScalingConfig, config: RunConfig) -> Site:
    choice = chosen(config.engine)
    if choice.engine == "ray" and scaling.num_workers != 0:
        from paceline.train.cluster import ClusterSite

        return ClusterSite(scaling, config, choice)
    return LocalSite(scaling, config)
