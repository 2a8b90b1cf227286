"""The nodes of a cluster: what is known of them, who is to be told of one that will be taken away, how an end is put.

Pure, but for `surveyed`. Ray's public interface lists nodes and what they died of, and says of a lost actor whether it
was preempted; which nodes are being drained, and until when, only its state accessor says.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline._engine.messages import Failure, FailureKind
from paceline._engine.ray.shell import Where


@dataclass(frozen=True)
class Node:
    address: str
    alive: bool = True
    end: str = ""
    """What it died of, in the cluster's words."""


@dataclass(frozen=True)
class Survey:
    """The cluster at one moment."""

    nodes: Mapping[str, Node] = field(default_factory=dict)
    draining: Mapping[str, float] = field(default_factory=dict)
    """Nodes that will be taken away, and when, in seconds since the epoch; 0 where that is not said."""

    def is_good(self, node_id: str) -> bool:
        """It is there, and to stay."""
        node = self.nodes.get(node_id)
        return node is not None and node.alive and node_id not in self.draining


@dataclass(frozen=True)
class Notice:
    """A node of the run is about to be taken away."""

    node_id: str
    grace_s: float
    ranks: tuple[int, ...]
    whole: bool
    """The driver is on it too."""


def surveyed(ray: Any) -> Survey:
    """Ask the cluster; takes milliseconds, and blocks while the cluster's head does not answer."""
    nodes = {
        node["NodeID"]: Node(node["NodeManagerAddress"], node["Alive"], node.get("DeathReasonMessage", ""))
        for node in ray.nodes()
    }
    return Survey(nodes, draining())


def draining() -> dict[str, float]:
    """Nodes that are being drained, and until when; none where this Ray does not tell."""
    from ray._private import state

    ask = getattr(state.state, "get_draining_nodes", None)
    return {node_id: deadline_ms / 1000 for node_id, deadline_ms in ask().items()} if ask is not None else {}


def notices(
    draining: Mapping[str, float],
    told: Collection[str],
    places: Sequence[str],
    driver: str,
    now: float,
    default_s: float,
) -> list[Notice]:
    """Of the nodes that are drained now and were not told of, those that matter here.

    `places` has the node of each rank; `driver` is the node of this process; `now` in seconds since the epoch.
    `default_s` is given where the cluster names no deadline.
    """
    found = []
    for node_id, deadline in sorted(draining.items()):
        ranks = tuple(rank for rank, place in enumerate(places) if place == node_id)
        whole = node_id == driver
        if node_id not in told and (ranks or whole):
            grace_s = max(0.0, deadline - now) if deadline else default_s
            found.append(Notice(node_id, grace_s, ranks, whole))
    return found


@dataclass(frozen=True)
class Loss:
    """How an actor was lost, as Ray's errors have it."""

    kind: str
    """The name of the error's class."""
    text: str = ""
    preempted: bool = False


def loss_of(error: BaseException) -> Loss:
    return Loss(type(error).__name__, str(error), bool(getattr(error, "preempted", False)))


def failure_of(loss: Loss, rank: int, where: Where, survey: Survey, *, drained: bool, at: float) -> Failure:
    """What a lost actor says of its worker; `drained`: its node was known to be taken away."""
    kind, message = _told(loss, where, survey, drained)
    return Failure(rank, kind, message, at=at, pid=0, host=where.host)


def _told(loss: Loss, where: Where, survey: Survey, drained: bool) -> tuple[FailureKind, str]:
    node = survey.nodes.get(where.node_id)
    place = f"node {where.address} ({where.node_id})"
    if loss.kind == "OutOfMemoryError":
        return "memory", f"killed by Ray, since its {place} ran low on memory{_memory(loss.text)}"
    if node is None or not node.alive:
        end = f": {node.end}" if node is not None and node.end else ""
        if loss.preempted or drained:
            return "preempted", f"its {place} was taken away{end}"
        return "killed", f"its {place} was lost{end}"
    if loss.preempted:
        return "preempted", f"its {place} is being taken away"
    if loss.kind == "ActorDiedError":
        how = "was killed with ray.kill" if "`ray.kill`" in loss.text else "was killed"
        return "killed", f"the actor around it, process {where.pid} on {place}, {how}"
    if loss.kind == "ActorUnavailableError":
        return "engine", f"its actor, process {where.pid} on {place}, cannot be reached"
    return "engine", f"the conversation with its actor on {place} ended: {first_line(loss)}"


def _memory(text: str) -> str:
    found = re.search(r"Memory usage \d+B exceeded threshold of \d+B", text)
    return f": {found[0][0].lower()}{found[0][1:]}" if found else ""


def first_line(loss: Loss) -> str:
    lines = [line.strip() for line in loss.text.splitlines() if line.strip()]
    if lines and loss.kind.startswith("RayTaskError"):
        return lines[-1]  # Above it is the traceback of what was raised there.
    return f"{loss.kind}: {lines[0]}" if lines else loss.kind
