"""Capacity of a cluster: how many workers fit now, and whether they ever can. Pure arithmetic over node resources.

Amounts are counted as Ray does, in ten-thousandths. A fraction of a GPU is always on a single GPU: a worker with 0.3
leaves room for two more on that GPU, and 0.1 that nobody can use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations

from paceline._core.arguments import matches_selector
from paceline._core.resource_planner import count_fitting_bundles, to_units
from paceline._engine.ray.placement import PlacementSpec

_MAX_EXACT_SELECTORS = 8
"""With more selectors, not all combinations are checked, so some requests are refused late."""
_LISTED_FIRST = ("CPU", "GPU")
_HIDDEN = ("memory", "object_store_memory")
_TYPE_PREFIX = "accelerator_type:"


@dataclass(frozen=True)
class NodeCapacity:
    id: str
    total: Mapping[str, float]
    free: Mapping[str, float]
    """Resources that nobody has taken."""
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ClusterCapacity:
    nodes: tuple[NodeCapacity, ...]
    can_grow: bool = False
    """An autoscaler adds nodes when more is requested than there is."""


def compute_cluster_capacity(
    spec: PlacementSpec, cluster: ClusterCapacity, held: Mapping[str, int], least: int, most: int
) -> int:
    """Return how many workers fit now. `held` counts our own bundles by node, which we can reuse.

    If the cluster can grow, `least` workers always count as fitting: nodes come only when they are requested.
    """
    num_fitting = count_fitting_workers(spec, most, _with_own_bundles(cluster, spec.bundle, held))
    return max(num_fitting, least) if cluster.can_grow else num_fitting


def find_capacity_problem(
    spec: PlacementSpec, size: int, cluster: ClusterCapacity, beside: PlacementSpec | None = None
) -> str | None:
    """Return why this cluster can never run so many workers, even if otherwise idle; None if it can.

    `beside`: one additional process with its own request.
    """
    if cluster.can_grow:
        return None
    nodes = [replace(node, free=node.total) for node in cluster.nodes]
    num_fitting = count_fitting_workers(spec, size, nodes)
    if num_fitting < size:
        fit = f"{num_fitting} of them" if num_fitting else "none of them"
        return (
            f"{describe_request(spec, size)} can never fit on this cluster: {fit} fit when it is idle. "
            f"It has {describe_nodes(cluster.nodes, spec)}\n\nhint: {_hint(spec, size, nodes)}"
        )
    if beside is None or any(_can_fit_beside(node, nodes, spec, size, beside) for node in nodes):
        return None
    return (
        f"a validation with {_format_amounts(beside.resources)} can never fit beside "
        f"{describe_request(spec, size)}. "
        f"The cluster has {describe_nodes(cluster.nodes, beside)}\n\n"
        "hint: lower num_workers, or what ValidationConfig(ray_remote_kwargs=...) requests"
    )


def describe_wait(spec: PlacementSpec, size: int, cluster: ClusterCapacity, held: Mapping[str, int]) -> str:
    """Describe what is missing while not all workers are placed; `held` counts our own bundles by node."""
    has = f"the cluster has {describe_nodes(cluster.nodes, spec)}"
    amounts = _describe_taken(spec, _with_own_bundles(cluster, spec.bundle, held))
    busy = f", of which others use {amounts}" if amounts else ""
    scaler = "; the autoscaler is adding nodes" if cluster.can_grow else ""
    return f"waiting for capacity: requested {describe_request(spec, size)}; {has}{busy}{scaler}"


def count_fitting_workers(spec: PlacementSpec, size: int, nodes: Iterable[NodeCapacity]) -> int:
    """Return how many of `size` workers fit into the free resources, placed optimally.

    Workers with different selectors compete for nodes. By the max-flow min-cut theorem, the answer is the minimum, over
    all sets of selectors, of the slots usable by the set plus the workers outside it.
    """
    fit = [(node, count_fitting_bundles(node.free, spec.bundle)) for node in nodes]
    kinds = Counter(frozenset(selector.items()) for selector in spec.bundle_selectors(size))
    if spec.strategy == "STRICT_PACK":
        return max((min(num, size) for node, num in fit if all(_matches_node(kind, node) for kind in kinds)), default=0)
    if spec.strategy == "STRICT_SPREAD":
        fit = [(node, min(num, 1)) for node, num in fit]
    sizes = range(1, len(kinds) + 1) if len(kinds) <= _MAX_EXACT_SELECTORS else (1, len(kinds))
    num_fitting = size
    for chosen in (chosen for count in sizes for chosen in combinations(kinds, count)):
        places = sum(num for node, num in fit if any(_matches_node(kind, node) for kind in chosen))
        num_fitting = min(num_fitting, places + size - sum(kinds[kind] for kind in chosen))
    return num_fitting


def describe_request(spec: PlacementSpec, size: int) -> str:
    """`4 workers with 1 CPU each`"""
    workers = f"{size} worker{'s' if size != 1 else ''}"
    amounts = f" with {_format_amounts(spec.resources)}" if any(spec.resources.values()) else ""
    each = " each" if amounts and size > 1 else ""
    labels_text = ""
    if isinstance(spec.label_selector, Mapping) and spec.label_selector:
        labels_text = f" on nodes with {_format_labels(spec.label_selector)}"
    elif spec.label_selector:
        labels_text = " on nodes with the labels of label_selector"
    strategy = f" (placement_strategy={spec.strategy!r})" if spec.strategy.startswith("STRICT") else ""
    return f"{workers}{amounts}{each}{labels_text}{strategy}"


def describe_nodes(nodes: Iterable[NodeCapacity], spec: PlacementSpec) -> str:
    """Describe nodes, with the labels of interest: `2 nodes with 2 CPU each; 1 node with 8 CPU, 1 GPU (zone=a)`."""
    labels = {label for selector in spec.bundle_selectors(len(spec.label_selector or "") or 1) for label in selector}
    kinds = Counter(_describe_node(node, spec, labels) for node in nodes)
    parts = [
        (f"{count} nodes with {amounts or 'nothing'} each" if count > 1 else f"1 node with {amounts or 'nothing'}")
        + pairs
        for (amounts, pairs), count in kinds.items()
    ]
    return "; ".join(parts) or "no nodes"


def _describe_node(node: NodeCapacity, spec: PlacementSpec, labels: set[str]) -> tuple[str, str]:
    """Return its resources and its labels, formatted."""
    resources = {
        name: amount
        for name, amount in node.total.items()
        if name in spec.resources or not (name in _HIDDEN or name.startswith("node:") or "_group_" in name)
    }
    order = sorted(resources, key=lambda name: (name not in _LISTED_FIRST, name))
    pairs = {label: value for label, value in sorted(node.labels.items()) if label in labels}
    return _format_amounts({name: resources[name] for name in order}), f" ({_format_labels(pairs)})" if pairs else ""


def _hint(spec: PlacementSpec, size: int, nodes: list[NodeCapacity]) -> str:
    looser = {"STRICT_PACK": "PACK", "STRICT_SPREAD": "SPREAD"}.get(spec.strategy)
    if looser is not None and count_fitting_workers(replace(spec, strategy=looser), size, nodes) == size:
        return f"they fit with placement_strategy={looser!r}"
    if spec.label_selector and count_fitting_workers(replace(spec, label_selector=None), size, nodes) == size:
        return "they fit without label_selector"
    return "lower num_workers or resources_per_worker, or add nodes: this cluster has no autoscaler"


def _can_fit_beside(
    chosen: NodeCapacity, nodes: list[NodeCapacity], spec: PlacementSpec, size: int, beside: PlacementSpec
) -> bool:
    """Whether one additional process fits on `chosen`, and the workers on what is left."""
    if not count_fitting_bundles(chosen.free, beside.bundle):
        return False
    free_after = {name: amount - beside.bundle.get(name, 0) for name, amount in chosen.free.items()}
    nodes_after = [replace(node, free=free_after) if node is chosen else node for node in nodes]
    return count_fitting_workers(spec, size, nodes_after) == size


def _with_own_bundles(
    cluster: ClusterCapacity, bundle: Mapping[str, float], held: Mapping[str, int]
) -> list[NodeCapacity]:
    def free_of_others(node: NodeCapacity) -> dict[str, float]:
        ours = {name: node.free.get(name, 0) + amount * held.get(node.id, 0) for name, amount in bundle.items()}
        # The cluster reports taken resources with a short delay.
        return {name: min(node.total.get(name, 0), amount) for name, amount in ours.items()}

    return [replace(node, free=free_of_others(node)) for node in cluster.nodes]


def _describe_taken(spec: PlacementSpec, nodes: list[NodeCapacity]) -> str:
    amounts = {
        name: sum(node.total.get(name, 0) - node.free.get(name, 0) for node in nodes)
        for name in spec.resources
        if not name.startswith(_TYPE_PREFIX)
    }
    return _format_amounts({name: amount for name, amount in amounts.items() if to_units(amount) > 0})


def _matches_node(kind: frozenset[tuple[str, str]], node: NodeCapacity) -> bool:
    return matches_selector(dict(kind), node.labels)


def _format_amounts(resources: Mapping[str, float]) -> str:
    parts = [
        f"type {name.removeprefix(_TYPE_PREFIX)}" if name.startswith(_TYPE_PREFIX) else f"{amount:g} {name}"
        for name, amount in resources.items()
        if amount
    ]
    return ", ".join(parts)


def _format_labels(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{label}={value}" for label, value in labels.items())
