"""Capacity of a cluster: how many workers fit now, and whether they ever can. Pure arithmetic over node resources.

Amounts are counted as Ray does, in ten-thousandths. A fraction of a GPU is always on a single GPU: a worker with 0.3
leaves room for two more on that GPU, and 0.1 that nobody can use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations

from paceline._core.label_selectors import matches_selector
from paceline._engine.ray.placement import PlacementSpec

_UNIT = 10_000
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
    wanted: PlacementSpec, cluster: ClusterCapacity, held: Mapping[str, int], least: int, most: int
) -> int:
    """Return how many workers fit now. `held` counts our own bundles by node, which we can reuse.

    If the cluster can grow, `least` workers always count as fitting: nodes come only when they are requested.
    """
    found = count_fitting_workers(
        wanted, most, [_with_own_bundles(node, wanted.bundle, held.get(node.id, 0)) for node in cluster.nodes]
    )
    return max(found, least) if cluster.can_grow else found


def find_capacity_problem(
    wanted: PlacementSpec, size: int, cluster: ClusterCapacity, beside: PlacementSpec | None = None
) -> str | None:
    """Return why this cluster can never run so many workers, even if otherwise idle; None if it can.

    `beside`: one additional process with its own request.
    """
    if cluster.can_grow:
        return None
    nodes = [replace(node, free=node.total) for node in cluster.nodes]
    found = count_fitting_workers(wanted, size, nodes)
    if found < size:
        fit = f"{found} of them" if found else "none of them"
        return (
            f"{describe_request(wanted, size)} can never be had on this cluster: it has room for {fit}, "
            f"all else idle. It has {describe_nodes(cluster.nodes, wanted)}\n\nhint: {_hint(wanted, size, nodes)}"
        )
    if beside is None or any(_can_fit_beside(node, nodes, wanted, size, beside) for node in nodes):
        return None
    return (
        f"a validation with {_format_amounts(beside.resources)} can never be had beside "
        f"{describe_request(wanted, size)}. "
        f"The cluster has {describe_nodes(cluster.nodes, beside)}\n\n"
        "hint: lower num_workers, or what ValidationConfig(ray_remote_kwargs=...) asks for"
    )


def describe_wait(wanted: PlacementSpec, size: int, cluster: ClusterCapacity, held: Mapping[str, int]) -> str:
    """Describe what is missing while not all workers are placed; `held` counts our own bundles by node."""
    has = f"the cluster has {describe_nodes(cluster.nodes, wanted)}"
    taken = _describe_taken(
        wanted, [_with_own_bundles(node, wanted.bundle, held.get(node.id, 0)) for node in cluster.nodes]
    )
    busy = f", of which others have {taken}" if taken else ""
    scaler = "; the autoscaler is asked for more" if cluster.can_grow else ""
    return (
        f"waiting for room: {describe_request(wanted, size)} {'are' if size > 1 else 'is'} asked for; "
        f"{has}{busy}{scaler}"
    )


def count_fitting_workers(wanted: PlacementSpec, size: int, nodes: Iterable[NodeCapacity]) -> int:
    """Return how many of `size` workers fit into the free resources, placed optimally.

    Workers with different selectors compete for nodes. By the max-flow min-cut theorem, the answer is the minimum, over
    all sets of selectors, of the slots usable by the set plus the workers outside it.
    """
    fit = [(node, count_fitting_bundles(node.free, wanted.bundle)) for node in nodes]
    kinds = Counter(frozenset(selector.items()) for selector in wanted.bundle_selectors(size))
    if wanted.strategy == "STRICT_PACK":
        return max((min(num, size) for node, num in fit if all(_matches_node(kind, node) for kind in kinds)), default=0)
    if wanted.strategy == "STRICT_SPREAD":
        fit = [(node, min(num, 1)) for node, num in fit]
    sizes = range(1, len(kinds) + 1) if len(kinds) <= _MAX_EXACT_SELECTORS else (1, len(kinds))
    found = size
    for chosen in (chosen for count in sizes for chosen in combinations(kinds, count)):
        places = sum(num for node, num in fit if any(_matches_node(kind, node) for kind in chosen))
        found = min(found, places + size - sum(kinds[kind] for kind in chosen))
    return found


def count_fitting_bundles(free: Mapping[str, float], bundle: Mapping[str, float]) -> int:
    """Return how many bundles fit into the free resources of one node."""
    return min(_count_fitting(name, _to_units(free.get(name, 0)), _to_units(amount)) for name, amount in bundle.items())


def describe_request(wanted: PlacementSpec, size: int) -> str:
    """`4 workers with 1 CPU each`"""
    workers = f"{size} worker{'s' if size != 1 else ''}"
    amounts = f" with {_format_amounts(wanted.resources)}" if any(wanted.resources.values()) else ""
    each = " each" if amounts and size > 1 else ""
    where = ""
    if isinstance(wanted.label_selector, Mapping) and wanted.label_selector:
        where = f" on nodes with {_format_labels(wanted.label_selector)}"
    elif wanted.label_selector:
        where = " on nodes with the labels of label_selector"
    strategy = f" (placement_strategy={wanted.strategy!r})" if wanted.strategy.startswith("STRICT") else ""
    return f"{workers}{amounts}{each}{where}{strategy}"


def describe_nodes(nodes: Iterable[NodeCapacity], wanted: PlacementSpec) -> str:
    """Describe nodes, with the labels of interest: `2 nodes with 2 CPU each; 1 node with 8 CPU, 1 GPU (zone=a)`."""
    labels = {
        label for selector in wanted.bundle_selectors(len(wanted.label_selector or "") or 1) for label in selector
    }
    kinds = Counter(_describe_node(node, wanted, labels) for node in nodes)
    told = [
        f"{f'{count} nodes' if count > 1 else '1 node'} with {what or 'nothing'}{' each' if count > 1 else ''}{where}"
        for (what, where), count in kinds.items()
    ]
    return "; ".join(told) or "no nodes"


def _describe_node(node: NodeCapacity, wanted: PlacementSpec, labels: set[str]) -> tuple[str, str]:
    """Return its resources and its labels, formatted."""
    shown = {
        name: amount
        for name, amount in node.total.items()
        if name in wanted.resources or not (name in _HIDDEN or name.startswith("node:") or "_group_" in name)
    }
    order = sorted(shown, key=lambda name: (name not in _LISTED_FIRST, name))
    pairs = {label: value for label, value in sorted(node.labels.items()) if label in labels}
    return _format_amounts({name: shown[name] for name in order}), f" ({_format_labels(pairs)})" if pairs else ""


def _hint(wanted: PlacementSpec, size: int, nodes: list[NodeCapacity]) -> str:
    looser = {"STRICT_PACK": "PACK", "STRICT_SPREAD": "SPREAD"}.get(wanted.strategy)
    if looser is not None and count_fitting_workers(replace(wanted, strategy=looser), size, nodes) == size:
        return f"with placement_strategy={looser!r} there is room for them"
    if wanted.label_selector and count_fitting_workers(replace(wanted, label_selector=None), size, nodes) == size:
        return "without label_selector there is room for them"
    return (
        "lower num_workers or resources_per_worker, or add nodes: this cluster has no autoscaler that would bring some"
    )


def _can_fit_beside(
    chosen: NodeCapacity, nodes: list[NodeCapacity], wanted: PlacementSpec, size: int, beside: PlacementSpec
) -> bool:
    """Whether one additional process fits on `chosen`, and the workers on what is left."""
    if not count_fitting_bundles(chosen.free, beside.bundle):
        return False
    left = {name: amount - beside.bundle.get(name, 0) for name, amount in chosen.free.items()}
    return (
        count_fitting_workers(wanted, size, [replace(node, free=left) if node is chosen else node for node in nodes])
        == size
    )


def _with_own_bundles(node: NodeCapacity, bundle: Mapping[str, float], num_held: int) -> NodeCapacity:
    ours = {name: node.free.get(name, 0) + amount * num_held for name, amount in bundle.items()}
    # The cluster reports taken resources with a short delay.
    return replace(node, free={name: min(node.total.get(name, 0), amount) for name, amount in ours.items()})


def _describe_taken(wanted: PlacementSpec, nodes: list[NodeCapacity]) -> str:
    taken = {
        name: sum(node.total.get(name, 0) - node.free.get(name, 0) for node in nodes)
        for name in wanted.resources
        if not name.startswith(_TYPE_PREFIX)
    }
    return _format_amounts({name: amount for name, amount in taken.items() if _to_units(amount) > 0})


def _count_fitting(name: str, have: int, need: int) -> int:
    if name != "GPU" or need >= _UNIT:
        return have // need
    whole, part = divmod(have, _UNIT)
    return whole * (_UNIT // need) + part // need


def _to_units(amount: float) -> int:
    return round(amount * _UNIT)


def _matches_node(kind: frozenset[tuple[str, str]], node: NodeCapacity) -> bool:
    return matches_selector(dict(kind), node.labels)


def _format_amounts(resources: Mapping[str, float]) -> str:
    told = [
        f"type {name.removeprefix(_TYPE_PREFIX)}" if name.startswith(_TYPE_PREFIX) else f"{amount:g} {name}"
        for name, amount in resources.items()
        if amount
    ]
    return ", ".join(told)


def _format_labels(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{label}={value}" for label, value in labels.items())
