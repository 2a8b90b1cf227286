"""The capacity of a search: what its engine has, each trial's allocation, and the execution target of a trial's run.

Only the search loop calls `allocate` and `release`; the thread that drives the trial calls `make_target`.
"""

from __future__ import annotations

import functools
import threading
from dataclasses import dataclass, replace
from typing import Protocol

from paceline._core.engine_choice import choose_engine
from paceline._core.resource_planner import PlacementNode
from paceline._engine.local.devices import Machine, this_machine
from paceline.train.config import RunConfig, ScalingConfig
from paceline.train.driver.execution_target import ExecutionTarget, LocalTarget, Say
from paceline.tune.driver.resource_ledger import ResourceAllocation, ResourceLedger, TrialNeeds


class TrialAllocation(Protocol):
    """What a trial holds, from `allocate` to `release`."""

    def make_target(self, scaling: ScalingConfig, run_config: RunConfig) -> ExecutionTarget:
        """Return the checked target of a trial's run. Raises `ValueError` for what can never be available."""


class SearchCapacity(Protocol):
    def allocate(self, needs: TrialNeeds) -> TrialAllocation | None:
        """Allocate everything a trial needs, or return None: it is retried after each release, and periodically."""

    def release(self, allocation: TrialAllocation) -> None:
        """Called once the trial's run has ended in any way."""

    def find_refusal(self, needs: TrialNeeds) -> str | None:
        """Return why such a trial can never run here; None if it can."""

    def total_resources(self) -> dict[str, float]:
        """Return what there is, in use or not, such as `{"CPU": 8.0, "GPU": 1.0}`."""

    def refresh(self) -> None:
        """Take in changes, without blocking. Raises `ClusterLostError` if the whole cluster is gone."""

    def is_capacity_loss(self, error: BaseException) -> bool:
        """Whether a trial's run failed because all capacity was lost, which is not the trial's fault."""

    def close(self) -> None: ...


def open_search_capacity(run_config: RunConfig, say: Say = lambda _: None) -> SearchCapacity:
    """Open the capacity of the selected engine. `say` receives messages for the user, from any thread."""
    choice = choose_engine(run_config.engine)
    if choice.engine == "ray":
        from paceline.tune.driver.cluster_capacity import ClusterSearchCapacity

        return ClusterSearchCapacity(run_config, choice, say)
    machine = this_machine()
    with _lock:
        ledger = _ledgers.setdefault(machine, make_local_ledger(machine))
    return LocalSearchCapacity(machine, say, ledger)


def make_local_ledger(machine: Machine) -> ResourceLedger:
    return ResourceLedger([PlacementNode("", machine.num_cores, len(machine.gpus))], shares_cores=True)


_lock = threading.Lock()
"""Protects the ledgers: searches that run in threads of one process share the machine."""
_ledgers: dict[Machine, ResourceLedger] = {}


class LocalSearchCapacity:
    """This machine. Its capacity does not change."""

    def __init__(self, machine: Machine, say: Say = lambda _: None, ledger: ResourceLedger | None = None) -> None:
        """`ledger`: shared with the other searches of this process."""
        self._machine = machine
        self._say = say
        self._said_notes: set[str] = set()
        self._ledger = ledger if ledger is not None else make_local_ledger(machine)
        self._held: dict[int, ResourceAllocation] = {}
        self._find_refusal = functools.lru_cache(maxsize=64)(self._ledger.find_refusal)

    def allocate(self, needs: TrialNeeds) -> LocalTrialAllocation | None:
        with _lock:
            allocation = self._ledger.allocate(_without_cluster_resources(needs))
        if allocation is None:
            return None
        self._held[allocation.number] = allocation
        if allocation.note and allocation.note not in self._said_notes:
            self._said_notes.add(allocation.note)
            self._say(allocation.note)
        return LocalTrialAllocation(allocation, self._machine)

    def release(self, allocation: TrialAllocation) -> None:
        assert isinstance(allocation, LocalTrialAllocation)
        self._release(allocation.allocation)

    def _release(self, allocation: ResourceAllocation) -> None:
        with _lock:
            self._ledger.release(allocation)
        self._held.pop(allocation.number, None)

    def find_refusal(self, needs: TrialNeeds) -> str | None:
        return self._find_refusal(_without_cluster_resources(needs))

    def total_resources(self) -> dict[str, float]:
        return self._ledger.total_resources()

    def refresh(self) -> None:
        pass

    def is_capacity_loss(self, error: BaseException) -> bool:
        return False

    def close(self) -> None:
        for allocation in list(self._held.values()):  # Of a search that failed: its trials have been stopped.
            self._release(allocation)


@dataclass(frozen=True)
class LocalTrialAllocation:
    allocation: ResourceAllocation
    whole_machine: Machine

    def make_target(self, scaling: ScalingConfig, run_config: RunConfig) -> ExecutionTarget:
        target = LocalTarget(scaling, run_config, self.make_machine(scaling))
        target.check()
        return target

    def make_machine(self, scaling: ScalingConfig) -> Machine:
        """Return the machine a run sees: the cores and GPUs of the allocation, and which worker has which GPU."""
        gpus = sorted({gpu for place in self.allocation.placements for gpu in place.gpus})
        seats = tuple(tuple(map(gpus.index, place.gpus)) for place in self.allocation.placements)
        if scaling.sizes[-1] == 1 and len(seats[:1]) and len(seats[0]) < scaling.num_gpus_per_worker:
            seats = (tuple(range(len(gpus))),)  # One process for all bundles; it has their combined resources.
        return Machine(self._num_cores(len(gpus)), tuple(self.whole_machine.gpus[gpu] for gpu in gpus), seats)

    def _num_cores(self, num_gpus: int) -> int:
        """The requested cores; if only GPUs were requested, the cores in proportion to them."""
        if self.allocation.num_cores:
            return max(1, int(self.allocation.num_cores))
        return max(1, self.whole_machine.num_cores * num_gpus // max(1, len(self.whole_machine.gpus)))


def _without_cluster_resources(needs: TrialNeeds) -> TrialNeeds:
    """Drop cluster resources, which mean nothing here, so that a script for a cluster also runs on this machine."""
    return replace(needs, bundles=tuple(replace(bundle, others=()) for bundle in needs.bundles))
