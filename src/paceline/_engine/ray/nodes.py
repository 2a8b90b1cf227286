"""The nodes of a cluster: their status, notices about draining nodes, and how the loss of an actor is described.

Pure, except for what surveys and reads. Ray's public interface says why a node died and whether a lost actor was
preempted, but not which nodes are draining: see `ray_private`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline._engine.messages import FailureKind, WorkerFailure
from paceline._engine.ray import ray_private
from paceline._engine.ray.agent_links import AgentSilentError
from paceline._engine.ray.cluster_capacity import ClusterCapacity, NodeCapacity
from paceline._engine.ray.connection import gcs_address
from paceline._engine.ray.node_agent import ActorPlacement

_UNNAMED_TYPE = re.compile(r"node_[0-9a-f]+")
_GONE = ("DEAD", "DRAINING")
"""Statuses of nodes that take no more workers."""


@dataclass(frozen=True)
class NodeStatus:
    address: str
    is_alive: bool = True
    death_reason: str = ""
    """Why it died, in Ray's words."""
    port: int = 0
    """Of Ray's node manager there."""


@dataclass(frozen=True)
class ClusterSurvey:
    """The cluster at one moment."""

    nodes: Mapping[str, NodeStatus] = field(default_factory=dict)
    draining: Mapping[str, float] = field(default_factory=dict)
    """Nodes that will be taken away, and when, in seconds since the epoch; 0 if unknown."""
    unreachable: frozenset[str] = frozenset()
    """Nodes that the driver cannot reach, though the cluster's head does."""

    def is_usable(self, node_id: str) -> bool:
        node = self.nodes.get(node_id)
        return node is not None and node.is_alive and not self.is_avoided(node_id)

    def is_avoided(self, node_id: str) -> bool:
        """Whether no workers should be placed there, though Ray may do so."""
        return node_id in self.draining or node_id in self.unreachable


@dataclass(frozen=True)
class DrainNotice:
    """A node of the run is about to be taken away."""

    node_id: str
    grace_s: float
    ranks: tuple[int, ...]
    includes_driver: bool


def survey_cluster(ray: Any, unreachable: Collection[str] = ()) -> ClusterSurvey:
    """Query the cluster; `unreachable` are nodes that the driver cannot reach.

    Takes milliseconds; blocks while the cluster's head does not answer.
    """
    nodes = {
        node["NodeID"]: NodeStatus(
            node["NodeManagerAddress"], node["Alive"], node.get("DeathReasonMessage", ""), node["NodeManagerPort"]
        )
        for node in ray.nodes()
    }
    return ClusterSurvey(nodes, read_draining_nodes(), frozenset(unreachable))


def read_draining_nodes() -> dict[str, float]:
    """Return the draining nodes and their deadlines, in seconds since the epoch."""
    return {node_id: deadline_ms / 1000 for node_id, deadline_ms in ray_private.get_draining_nodes().items()}


def read_cluster(without: Collection[str] = ()) -> ClusterCapacity:
    """Return the resources of the cluster, as `ray status` does; changes of the last moments may be missing.

    `without`: nodes that are left out.
    """
    nodes = [
        NodeCapacity(each.node_id.hex(), dict(each.total_resources), dict(each.available_resources), dict(each.labels))
        for each in ray_private.get_node_states(gcs_address())
        if _node_status(each) not in _GONE and each.node_id.hex() not in without
    ]
    return ClusterCapacity(tuple(sorted(nodes, key=lambda node: node.id)), has_autoscaler())


def has_autoscaler() -> bool:
    report = json.loads(ray_private.get_autoscaling_report() or "{}").get("autoscaler_report") or {}
    mapped = [name for name in (report.get("node_type_mapping") or {}).values() if isinstance(name, str)]
    if has_named_types([*(report.get("active_nodes") or {}), *(report.get("pending_launches") or {}), *mapped]):
        return True
    status = ray_private.get_autoscaler_status(gcs_address())
    if int(status.stats.autoscaler_version or 0) == 0:
        return False  # No version 2 autoscaler has reported.
    nodes = [*status.active_nodes, *status.idle_nodes, *status.pending_nodes]
    return bool(status.pending_launches) or has_named_types(node.ray_node_type_name for node in nodes)


def has_named_types(types: Iterable[str]) -> bool:
    """Without an autoscaler configuration, each node is a type of its own, named after the node."""
    return any(name and not _UNNAMED_TYPE.fullmatch(name) for name in types)


def _node_status(state: Any) -> str:
    values = state.DESCRIPTOR.fields_by_name["status"].enum_type.values_by_number
    name: str = values[state.status].name
    return name


def find_drain_notices(
    draining: Mapping[str, float],
    notified: Collection[str],
    nodes_by_rank: Sequence[str],
    driver: str,
    now: float,
    default_s: float,
) -> list[DrainNotice]:
    """Return notices for the draining nodes that matter to this run and were not reported before.

    `driver` is the node of this process; `now` is in seconds since the epoch.
    `default_s` is the grace period if the cluster gives no deadline.
    """
    match = []
    for node_id, deadline in sorted(draining.items()):
        ranks = tuple(rank for rank, place in enumerate(nodes_by_rank) if place == node_id)
        includes_driver = node_id == driver
        if node_id not in notified and (ranks or includes_driver):
            grace_s = max(0.0, deadline - now) if deadline else default_s
            match.append(DrainNotice(node_id, grace_s, ranks, includes_driver))
    return match


@dataclass(frozen=True)
class ActorLoss:
    """How an actor was lost, from Ray's error."""

    kind: str
    """The class name of the error."""
    text: str = ""
    is_preempted: bool = False


def parse_loss(error: BaseException) -> ActorLoss:
    return ActorLoss(type(error).__name__, str(error), bool(getattr(error, "preempted", False)))


def make_loss_failure(
    loss: ActorLoss, rank: int, placement: ActorPlacement, survey: ClusterSurvey, *, drained: bool, at: float
) -> WorkerFailure:
    """Describe the failure of a lost actor's worker; `drained`: its node was known to be draining."""
    kind, message = _classify_loss(loss, placement, survey, drained)
    return WorkerFailure(rank, kind, message, at=at, pid=0, host=placement.host)


def _classify_loss(
    loss: ActorLoss, placement: ActorPlacement, survey: ClusterSurvey, drained: bool
) -> tuple[FailureKind, str]:
    node = survey.nodes.get(placement.node_id)
    place = f"node {placement.address} ({placement.node_id})"
    if loss.kind == "OutOfMemoryError":
        match = re.search(r"Memory (usage \d+B exceeded threshold of \d+B)", loss.text)
        return "memory", f"killed by Ray: its {place} ran low on memory{f': memory {match[1]}' if match else ''}"
    if node is None or not node.is_alive:
        end = f": {node.death_reason}" if node is not None and node.death_reason else ""
        if loss.is_preempted or drained:
            return "preempted", f"its {place} was taken away{end}"
        return "killed", f"its {place} was lost{end}"
    if loss.is_preempted:
        return "preempted", f"its {place} is being taken away"
    if loss.kind == "ActorDiedError":
        how = "was killed with ray.kill" if "`ray.kill`" in loss.text else "was killed"
        return "killed", f"the agent of its {place}, process {placement.pid}, {how}"
    if loss.kind == AgentSilentError.__name__:
        return "killed", f"its {place} cannot be reached: {loss.text}"
    if loss.kind == "ActorUnavailableError":
        return "engine", f"the agent of its {place}, process {placement.pid}, cannot be reached"
    return "engine", f"lost the connection to the agent of its {place}: {summarize_loss(loss)}"


def summarize_error(error: BaseException) -> str:
    """Return an error of Ray in one line."""
    return summarize_loss(parse_loss(error))


def summarize_loss(loss: ActorLoss) -> str:
    lines = [line.strip() for line in loss.text.splitlines() if line.strip()]
    if lines and loss.kind.startswith("RayTaskError"):
        return lines[-1]  # The lines above are the remote traceback.
    return f"{loss.kind}: {lines[0]}" if lines else loss.kind
