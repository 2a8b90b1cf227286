"""A Ray cluster as the capacity of a search.

The search does its own accounting of what its trials hold, on the nodes where they were found. Ray decides the
placement, and places each group completely or not at all. A background thread observes the cluster every second: nodes
come and go, and others use part of it. Trials that have waited long for placement hold nothing and are not counted.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field

from paceline._core import settings
from paceline._core.engine_choice import EngineChoice
from paceline._core.errors import ControllerError
from paceline._core.resource_planner import PlacementNode, ResourceBundle
from paceline._engine.base import Engine, WorkerResources
from paceline._engine.local.launchers import InlineLauncher
from paceline._engine.ray import cluster_capacity as ray_capacity
from paceline._engine.ray.cluster_monitor import ClusterLostError, ClusterMonitor, DaemonThreadExecutor
from paceline._engine.ray.code_bundle import CodeBundle, build_code_bundle
from paceline._engine.ray.connection import connect_to_cluster, gcs_address
from paceline._engine.ray.nodes import read_cluster
from paceline.train.config import RunConfig, ScalingConfig
from paceline.train.driver.cluster_target import ClusterTarget
from paceline.train.driver.execution_target import ExecutionTarget, LocalTarget, Say
from paceline.tune.driver.resource_ledger import ResourceAllocation, ResourceLedger, TrialNeeds
from paceline.tune.driver.search_capacity import TrialAllocation

log = logging.getLogger("paceline")

_OBSERVE_EVERY_S = 1.0
_PATIENCE_S = 30.0
"""A trial that has waited this long for placement no longer blocks others."""
_MAX_AWAITING_NODES = 8
"""Maximum number of trials that wait at a time for nodes from an autoscaler."""
_BUNDLE_RESOURCES = ("CPU", "GPU")


class _TrialClusterTarget(ClusterTarget):
    """Prints its engine's messages about what placement is waiting for: little else of a trial's run is shown."""

    announce: Say

    def make_engine(self, inline: InlineLauncher | None, say: Say, beside: WorkerResources | None = None) -> Engine:
        return super().make_engine(inline, lambda text: self.announce(f"{self._config.name}: {text}"), beside)


@dataclass
class ClusterTrialAllocation:
    allocation: ResourceAllocation
    choice: EngineChoice
    code_bundle: CodeBundle
    say: Say
    presence: ClusterMonitor
    targets: list[ClusterTarget] = field(default_factory=list)
    """One per run of the trial; the last run may be active."""

    def make_target(self, scaling: ScalingConfig, run_config: RunConfig) -> ExecutionTarget:
        if scaling.num_workers == 0:
            local_target = LocalTarget(scaling, run_config)
            local_target.check()
            return local_target
        max_workers = max(1, len(self.allocation.bundles))
        target = _TrialClusterTarget(scaling, run_config, self.choice, code_bundle=self.code_bundle, most=max_workers)
        target.announce = self.say
        self.presence.call_cluster(target.check)
        self.targets.append(target)
        return target

    def worker_nodes(self) -> list[str]:
        """Return the nodes its workers are, or will be, on. May query the cluster."""
        return [node for target in self.targets[-1:] for engine in target.engines[-1:] for node in engine.list_nodes()]

    def is_waiting(self) -> bool:
        return any(engine.waits for target in self.targets[-1:] for engine in target.engines[-1:])


class ClusterSearchCapacity:
    def __init__(self, run_config: RunConfig, choice: EngineChoice, say: Say = lambda _: None) -> None:
        connect_to_cluster(choice.address)
        self._choice = choice
        self._say = say
        self._code_bundle = build_code_bundle(run_config.worker_runtime_env)
        self._ledger = ResourceLedger((), machine="the cluster")
        self._allocations: dict[int, ClusterTrialAllocation] = {}
        self._waits_since: dict[int, float] = {}
        self._in_use: dict[str, ResourceBundle] = {}
        """By node, what others used at the last observation."""
        self._threads = DaemonThreadExecutor()
        self._observing: Future[_CapacityObservation] | None = None
        self._observed_at = 0.0
        self._is_failure_logged = False
        self._presence = ClusterMonitor(gcs_address(), settings.load().cluster_patience_s)
        try:
            observation = self._presence.call_cluster(lambda: _observe_cluster({}))
        except BaseException:
            self._presence.close()
            raise
        self._cluster = observation.cluster
        self._apply_observation(observation)

    def allocate(self, needs: TrialNeeds) -> ClusterTrialAllocation | None:
        allocation = self._ledger.allocate(needs)
        if allocation is None and self._cluster.can_grow and self._ledger.num_unplaced < _MAX_AWAITING_NODES:
            allocation = self._ledger.allocate(needs, overcommit=True)
        if allocation is None:
            return None
        self._allocations[allocation.number] = trial_allocation = ClusterTrialAllocation(
            allocation, self._choice, self._code_bundle, self._say, self._presence
        )
        return trial_allocation

    def release(self, allocation: TrialAllocation) -> None:
        assert isinstance(allocation, ClusterTrialAllocation)
        self._ledger.release(allocation.allocation)
        del self._allocations[allocation.allocation.number]

    def find_refusal(self, needs: TrialNeeds) -> str | None:
        if self._cluster.can_grow:
            return None
        refusal = self._ledger.find_refusal(needs)
        return f"{refusal}, or add nodes: this cluster has no autoscaler" if refusal else None

    def total_resources(self) -> dict[str, float]:
        return self._ledger.total_resources()

    def refresh(self) -> None:
        self._presence.raise_if_lost()
        now = time.monotonic()
        if self._observing is None and now - self._observed_at >= _OBSERVE_EVERY_S:
            self._observed_at = now
            self._observing = self._threads.submit(_observe_cluster, dict(self._allocations))
        elif self._observing is not None and self._observing.done():
            looking, self._observing = self._observing, None
            problem = looking.exception()
            if problem is None:
                self._apply_observation(looking.result())
            elif not self._is_failure_logged:  # The presence monitor reports a lost head node.
                log.warning("cannot read the resources of the cluster: %s", str(problem).partition("\n")[0])
            self._is_failure_logged = problem is not None

    def is_capacity_loss(self, error: BaseException) -> bool:
        cause = error.controller_failure if isinstance(error, ControllerError) else error
        return isinstance(cause, ClusterLostError)

    def close(self) -> None:
        self._presence.close()

    def _apply_observation(self, observation: _CapacityObservation) -> None:
        cluster, nodes_by_allocation = observation.cluster, observation.nodes_by_allocation
        ours: dict[str, list[ResourceBundle]] = {}
        for number, nodes in nodes_by_allocation.items():
            # Includes allocations released since: the observation shows the cluster as it was then.
            for node, bundle in zip(nodes, observation.allocations[number].allocation.bundles, strict=False):
                ours.setdefault(node, []).append(bundle)
        used_now = {node.id: used_by_others(node, ours.get(node.id, [])) for node in cluster.nodes}
        # The cluster reports releases with a delay: count as used only what was in use at the last observation too.
        in_use = {name: _minimum_bundle(used, self._in_use.get(name, used)) for name, used in used_now.items()}
        self._cluster, self._in_use = cluster, used_now
        now = [to_placement_node(node, in_use[node.id]) for node in cluster.nodes]
        self._ledger.update_nodes(now, nodes_by_allocation, self._overdue_allocations())

    def _overdue_allocations(self) -> list[int]:
        now = time.monotonic()
        waiting = [number for number, allocation in self._allocations.items() if allocation.is_waiting()]
        self._waits_since = {number: self._waits_since.get(number, now) for number in waiting}
        return [number for number, since in self._waits_since.items() if now - since >= _PATIENCE_S]


@dataclass(frozen=True)
class _CapacityObservation:
    cluster: ray_capacity.ClusterCapacity
    allocations: Mapping[int, ClusterTrialAllocation]
    nodes_by_allocation: Mapping[int, list[str]]


def _observe_cluster(parts: Mapping[int, ClusterTrialAllocation]) -> _CapacityObservation:
    """Query the cluster. Runs in its own thread."""
    cluster = read_cluster()
    return _CapacityObservation(cluster, parts, {number: part.worker_nodes() for number, part in parts.items()})


def to_placement_node(node: ray_capacity.NodeCapacity, in_use: ResourceBundle) -> PlacementNode:
    others = {name: amount for name, amount in node.total.items() if name not in _BUNDLE_RESOURCES}
    return PlacementNode(node.id, node.total.get("CPU", 0.0), int(node.total.get("GPU", 0.0)), others, in_use)


def used_by_others(node: ray_capacity.NodeCapacity, ours: list[ResourceBundle]) -> ResourceBundle:
    """Return what is used on a node beyond our own share."""
    have: defaultdict[str, float] = defaultdict(float)
    for bundle in ours:
        for name, amount in (("CPU", bundle.num_cpus), ("GPU", bundle.num_gpus), *bundle.others):
            have[name] += amount
    used = {
        name: max(0.0, round(total - node.free.get(name, 0.0) - have[name], 4)) for name, total in node.total.items()
    }
    others = tuple((name, amount) for name, amount in sorted(used.items()) if name not in _BUNDLE_RESOURCES)
    return ResourceBundle(used.get("CPU", 0.0), used.get("GPU", 0.0), others)


def _minimum_bundle(one: ResourceBundle, other: ResourceBundle) -> ResourceBundle:
    known = dict(other.others)
    others = tuple((name, min(amount, known.get(name, 0.0))) for name, amount in one.others)
    return ResourceBundle(min(one.num_cpus, other.num_cpus), min(one.num_gpus, other.num_gpus), others)
