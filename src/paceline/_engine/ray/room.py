"""Room on a cluster: how many workers fit, and whether they ever can. Pure: arithmetic over what nodes have.

Amounts are counted as Ray counts them, in ten-thousandths. Parts of a GPU are parts of one and the same: a worker with
0.3 leaves room for two more on that GPU, and 0.1 that nobody can have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations

from paceline._core.labels import matches
from paceline._engine.ray.placement import Wanted

_UNIT = 10_000
_MANY_KINDS = 8
"""Of selectors: with more of them, not all their combinations are looked at, and some refusals come late."""
_ALWAYS_TOLD = ("CPU", "GPU")
_HIDDEN = ("memory", "object_store_memory")
_TYPE = "accelerator_type:"


@dataclass(frozen=True)
class Node:
    id: str
    total: Mapping[str, float]
    free: Mapping[str, float]
    """What nobody has taken."""
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Cluster:
    nodes: tuple[Node, ...]
    grows: bool = False
    """An autoscaler brings nodes when more is asked for than there is."""


def capacity(wanted: Wanted, cluster: Cluster, held: Mapping[str, int], least: int, most: int) -> int:
    """How many workers there is room for now; `held` are our own by node, whose places are ours to use again.

    Where nodes may be brought, the fewest that are needed have room: they have to be asked for to come.
    """
    found = room(wanted, most, [_with_ours(node, wanted.bundle, held.get(node.id, 0)) for node in cluster.nodes])
    return max(found, least) if cluster.grows else found


def problem(wanted: Wanted, size: int, cluster: Cluster, beside: Wanted | None = None) -> str | None:
    """Why this cluster can never have so many workers, though all else were idle; None if it can.

    `beside`: one more process with needs of its own.
    """
    if cluster.grows:
        return None
    nodes = [replace(node, free=node.total) for node in cluster.nodes]
    found = room(wanted, size, nodes)
    if found < size:
        fit = f"{found} of them" if found else "none of them"
        return (
            f"{asked(wanted, size)} can never be had on this cluster: it has room for {fit}, "
            f"all else idle. It has {described(cluster.nodes, wanted)}\n\nhint: {_hint(wanted, size, nodes)}"
        )
    if beside is None or any(_fits_on(node, nodes, wanted, size, beside) for node in nodes):
        return None
    return (
        f"a validation with {_amounts(beside.resources)} can never be had beside {asked(wanted, size)}. "
        f"The cluster has {described(cluster.nodes, beside)}\n\n"
        "hint: lower num_workers, or what ValidationConfig(ray_remote_kwargs=...) asks for"
    )


def waiting(wanted: Wanted, size: int, cluster: Cluster, held: Mapping[str, int]) -> str:
    """What is waited for while not all workers have places; `held` are those that some have, by node."""
    has = f"the cluster has {described(cluster.nodes, wanted)}"
    taken = _taken(wanted, [_with_ours(node, wanted.bundle, held.get(node.id, 0)) for node in cluster.nodes])
    busy = f", of which others have {taken}" if taken else ""
    scaler = "; the autoscaler is asked for more" if cluster.grows else ""
    return f"waiting for room: {asked(wanted, size)} {'are' if size > 1 else 'is'} asked for; {has}{busy}{scaler}"


def room(wanted: Wanted, size: int, nodes: Iterable[Node]) -> int:
    """How many of so many workers fit into what is free, placed as well as can be.

    Workers that ask for different nodes compete for them: by the theorem of maximum flow and minimum cut, what fits is
    the least, over all sets of selectors, of the places that the set can use and the workers that are not of it.
    """
    fit = [(node, num_on(node.free, wanted.bundle)) for node in nodes]
    kinds = Counter(frozenset(selector.items()) for selector in wanted.selectors(size))
    if wanted.strategy == "STRICT_PACK":
        return max((min(num, size) for node, num in fit if all(_on(kind, node) for kind in kinds)), default=0)
    if wanted.strategy == "STRICT_SPREAD":
        fit = [(node, min(num, 1)) for node, num in fit]
    sizes = range(1, len(kinds) + 1) if len(kinds) <= _MANY_KINDS else (1, len(kinds))
    found = size
    for chosen in (chosen for count in sizes for chosen in combinations(kinds, count)):
        places = sum(num for node, num in fit if any(_on(kind, node) for kind in chosen))
        found = min(found, places + size - sum(kinds[kind] for kind in chosen))
    return found


def num_on(free: Mapping[str, float], bundle: Mapping[str, float]) -> int:
    """How many bundles fit into what one node has."""
    return min(_num_of(name, _units(free.get(name, 0)), _units(amount)) for name, amount in bundle.items())


def asked(wanted: Wanted, size: int) -> str:
    """`4 workers with 1 CPU each`"""
    workers = f"{size} worker{'s' if size != 1 else ''}"
    amounts = f" with {_amounts(wanted.resources)}" if any(wanted.resources.values()) else ""
    each = " each" if amounts and size > 1 else ""
    where = ""
    if isinstance(wanted.label_selector, Mapping) and wanted.label_selector:
        where = f" on nodes with {_pairs(wanted.label_selector)}"
    elif wanted.label_selector:
        where = " on nodes with the labels of label_selector"
    strategy = f" (placement_strategy={wanted.strategy!r})" if wanted.strategy.startswith("STRICT") else ""
    return f"{workers}{amounts}{each}{where}{strategy}"


def described(nodes: Iterable[Node], wanted: Wanted) -> str:
    """`2 nodes with 2 CPU each; 1 node with 8 CPU, 1 GPU (zone=a)`: what is of interest to those who want something."""
    labels = {label for selector in wanted.selectors(len(wanted.label_selector or "") or 1) for label in selector}
    kinds = Counter(_described(node, wanted, labels) for node in nodes)
    told = [
        f"{f'{count} nodes' if count > 1 else '1 node'} with {what or 'nothing'}{' each' if count > 1 else ''}{where}"
        for (what, where), count in kinds.items()
    ]
    return "; ".join(told) or "no nodes"


def _described(node: Node, wanted: Wanted, labels: set[str]) -> tuple[str, str]:
    """Its resources, and its labels."""
    shown = {
        name: amount
        for name, amount in node.total.items()
        if name in wanted.resources or not (name in _HIDDEN or name.startswith("node:") or "_group_" in name)
    }
    order = sorted(shown, key=lambda name: (name not in _ALWAYS_TOLD, name))
    pairs = {label: value for label, value in sorted(node.labels.items()) if label in labels}
    return _amounts({name: shown[name] for name in order}), f" ({_pairs(pairs)})" if pairs else ""


def _hint(wanted: Wanted, size: int, nodes: list[Node]) -> str:
    looser = {"STRICT_PACK": "PACK", "STRICT_SPREAD": "SPREAD"}.get(wanted.strategy)
    if looser is not None and room(replace(wanted, strategy=looser), size, nodes) == size:
        return f"with placement_strategy={looser!r} there is room for them"
    if wanted.label_selector and room(replace(wanted, label_selector=None), size, nodes) == size:
        return "without label_selector there is room for them"
    return (
        "lower num_workers or resources_per_worker, or add nodes: this cluster has no autoscaler that would bring some"
    )


def _fits_on(chosen: Node, nodes: list[Node], wanted: Wanted, size: int, beside: Wanted) -> bool:
    """One more process on a node, and the workers on what is left."""
    if not num_on(chosen.free, beside.bundle):
        return False
    left = {name: amount - beside.bundle.get(name, 0) for name, amount in chosen.free.items()}
    return room(wanted, size, [replace(node, free=left) if node is chosen else node for node in nodes]) == size


def _with_ours(node: Node, bundle: Mapping[str, float], num_held: int) -> Node:
    ours = {name: node.free.get(name, 0) + amount * num_held for name, amount in bundle.items()}
    # The cluster tells of what is taken a moment late.
    return replace(node, free={name: min(node.total.get(name, 0), amount) for name, amount in ours.items()})


def _taken(wanted: Wanted, nodes: list[Node]) -> str:
    taken = {
        name: sum(node.total.get(name, 0) - node.free.get(name, 0) for node in nodes)
        for name in wanted.resources
        if not name.startswith(_TYPE)
    }
    return _amounts({name: amount for name, amount in taken.items() if _units(amount) > 0})


def _num_of(name: str, have: int, need: int) -> int:
    if name != "GPU" or need >= _UNIT:
        return have // need
    whole, part = divmod(have, _UNIT)
    return whole * (_UNIT // need) + part // need


def _units(amount: float) -> int:
    return round(amount * _UNIT)


def _on(kind: frozenset[tuple[str, str]], node: Node) -> bool:
    return matches(dict(kind), node.labels)


def _amounts(resources: Mapping[str, float]) -> str:
    told = [
        f"type {name.removeprefix(_TYPE)}" if name.startswith(_TYPE) else f"{amount:g} {name}"
        for name, amount in resources.items()
        if amount
    ]
    return ", ".join(told)


def _pairs(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{label}={value}" for label, value in labels.items())
