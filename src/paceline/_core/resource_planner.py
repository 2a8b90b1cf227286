"""The one planner of resources: which node and GPUs each bundle goes to, with as little fragmentation as possible.

It serves workers on this machine, workers on a cluster, and trials. Pure. Amounts are counted in ten-thousandths, as in
Ray, so allocating and releasing in any order restores the exact original amount. A fraction of a GPU comes from a
single GPU; partly used GPUs are filled first.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

UNIT = 10_000
_MAX_NODE_VISITS = 50_000
"""Limit on node visits when backtracking over different bundles. Beyond it, the trial waits for a simpler situation."""


@dataclass(frozen=True)
class ResourceBundle:
    """What one process needs, on one node."""

    num_cpus: float = 1.0
    num_gpus: float = 0.0
    others: tuple[tuple[str, float], ...] = ()
    """Further resources of a cluster, by name."""


@dataclass(frozen=True)
class PlacementNode:
    """One machine, and what a search may use of it."""

    id: str = ""
    num_cores: float = 0.0
    num_gpus: int = 0
    others: Mapping[str, float] = field(default_factory=dict)
    in_use: ResourceBundle = field(default_factory=lambda: ResourceBundle(0.0))
    """What others are using now."""


@dataclass(frozen=True)
class BundlePlacement:
    node: str
    gpus: tuple[int, ...] = ()
    """Indices of the node's GPUs: the one it has a fraction of, or those it has entirely."""


@dataclass(frozen=True)
class BundleRequest:
    """A bundle, in ten-thousandths."""

    cores: int
    gpus: int
    others: tuple[tuple[str, int], ...]

    @classmethod
    def from_bundle(cls, bundle: ResourceBundle) -> BundleRequest:
        others = Counter[str]()
        for name, amount in bundle.others:
            others[name] += to_units(amount)
        named = tuple(sorted((name, amount) for name, amount in others.items() if amount))
        return cls(to_units(bundle.num_cpus), to_units(bundle.num_gpus), named)

    @property
    def num_whole_gpus(self) -> int:
        return self.gpus // UNIT

    @property
    def size(self) -> tuple[int, int, int]:
        """Sort key. The largest bundles are placed first: they have the fewest options."""
        return self.gpus, sum(amount for _, amount in self.others), self.cores


class FreeNodeResources:
    def __init__(self, node: PlacementNode, *, idle: bool) -> None:
        """`idle`: as if others used nothing of it."""
        self.id = node.id
        self.has_gpus = node.num_gpus > 0
        used = ResourceBundle(0.0) if idle else node.in_use
        used_others = dict(used.others)
        self.cores = to_units(node.num_cores) - to_units(used.num_cpus)
        self.others = {
            name: to_units(amount) - to_units(used_others.get(name, 0.0)) for name, amount in node.others.items()
        }
        # Which GPUs others use is unknown: assume as few as possible.
        used_gpus = to_units(used.num_gpus)
        self.gpus = [UNIT - min(UNIT, max(0, used_gpus - UNIT * index)) for index in range(node.num_gpus)]

    def fits_without_gpus(self, ask: BundleRequest) -> bool:
        return ask.cores <= max(0, self.cores) and all(
            amount <= self.others.get(name, 0) for name, amount in ask.others
        )

    def list_gpu_choices(self, ask: BundleRequest) -> list[tuple[int, ...]]:
        """List possible GPU sets, best first; equally free GPUs are represented by one of them."""
        if not ask.gpus:
            return [()]
        if ask.gpus >= UNIT:
            whole = [index for index, free in enumerate(self.gpus) if free == UNIT]
            return [tuple(whole[: ask.num_whole_gpus])] if len(whole) >= ask.num_whole_gpus else []
        by_free: dict[int, int] = {}
        for index, free in enumerate(self.gpus):
            if free >= ask.gpus:
                by_free.setdefault(free, index)
        return [(by_free[free],) for free in sorted(by_free)]

    def charge(self, ask: BundleRequest, gpus: Sequence[int], sign: int = 1) -> None:
        self.cores -= sign * ask.cores
        for name, amount in ask.others:
            self.others[name] = self.others.get(name, 0) - sign * amount
        for index in gpus:
            self.gpus[index] -= sign * min(ask.gpus, UNIT)

    @property
    def equivalence_key(self) -> tuple[object, ...]:
        """Nodes with equal keys are interchangeable for placement."""
        return self.cores, tuple(sorted(self.gpus)), tuple(sorted(self.others.items()))


def place_bundles(
    asks: Sequence[BundleRequest], nodes: dict[str, FreeNodeResources], strategy: str
) -> list[BundlePlacement] | None:
    """Return a placement for each bundle, or None."""
    order = sorted(range(len(asks)), key=lambda index: asks[index].size, reverse=True)
    chosen = _PlacementSearch([asks[index] for index in order], list(nodes.values()), strategy).find_placements()
    if chosen is None:
        return None
    places = [BundlePlacement("")] * len(asks)
    for index, place in zip(order, chosen, strict=True):
        places[index] = place
    return places


def assign_gpus(num_gpus: int, gpus_per_worker: float, num_workers: int) -> list[tuple[int, ...]]:
    """Return the GPUs of each worker on one machine, for as many of the workers as there are GPUs for."""
    free = FreeNodeResources(PlacementNode(num_gpus=num_gpus), idle=True)
    request = BundleRequest.from_bundle(ResourceBundle(0.0, gpus_per_worker))
    assignments: list[tuple[int, ...]] = []
    while len(assignments) < num_workers and (choices := free.list_gpu_choices(request)):
        free.charge(request, choices[0])
        assignments.append(choices[0])
    return assignments


def count_fitting_bundles(free: Mapping[str, float], bundle: Mapping[str, float]) -> int:
    """Return how many equal bundles fit into the free resources of one node, by Ray's names of these."""
    return min(_count_fitting(name, to_units(free.get(name, 0)), to_units(amount)) for name, amount in bundle.items())


def _count_fitting(name: str, have: int, need: int) -> int:
    if name != "GPU" or need >= UNIT:
        return have // need
    whole, part = divmod(have, UNIT)
    return whole * (UNIT // need) + part // need


class _PlacementSearch:
    """Backtracking search, the best placement first. Identical bundles need none: any first place fits as many."""

    def __init__(self, asks: Sequence[BundleRequest], nodes: Sequence[FreeNodeResources], strategy: str) -> None:
        self._requests = asks
        self._nodes = nodes
        self._strategy = strategy
        self._num_before_alike = max((index + 1 for index, ask in enumerate(asks) if ask != asks[-1]), default=0)
        """From this index on, all bundles are identical."""
        self._num_on_node: Counter[str] = Counter()
        self._chosen: list[tuple[FreeNodeResources, tuple[int, ...]]] = []
        self._dead_ends: set[object] = set()
        self._num_node_visits = 0

    def find_placements(self) -> list[BundlePlacement] | None:
        """Return placements in order, or None if the bundles do not fit. Leaves the nodes unchanged."""
        if self._requests and self._strategy == "STRICT_PACK":
            by_room = sorted(self._nodes, key=lambda node: (len(node.gpus), node.cores))
            on_one_node = (_PlacementSearch(self._requests, [node], "PACK").find_placements() for node in by_room)
            return next(filter(None, on_one_node), None)
        fits = self._try_placements()
        places = [BundlePlacement(node.id, gpus) for node, gpus in self._chosen]
        while self._chosen:
            self._pop()
        return places if fits else None

    def _try_placements(self) -> bool:
        if not self._requests:
            return True
        ways = [self._iter_options(0)]
        while ways:
            index = len(ways) - 1
            way = next(ways[index], None)
            if way is None:
                ways.pop()
                if self._chosen:
                    self._pop()
                continue
            self._push(*way)
            if len(self._chosen) == len(self._requests):
                return True
            ways.append(self._iter_options(index + 1))
        return False

    def _iter_options(self, index: int) -> Iterator[tuple[FreeNodeResources, tuple[int, ...]]]:
        """Iterate over the placements worth trying for the next bundle."""
        ask = self._requests[index]
        if index >= self._num_before_alike:
            yield from itertools.islice(self._iter_candidates(ask), 1)
            return
        state = (index, tuple(sorted((node.equivalence_key, self._num_on_node[node.id] > 0) for node in self._nodes)))
        if state in self._dead_ends:
            return
        for way in list(self._iter_candidates(ask)):
            yield way
            if self._num_node_visits > _MAX_NODE_VISITS:
                return
        self._dead_ends.add(state)

    def _iter_candidates(self, ask: BundleRequest) -> Iterator[tuple[FreeNodeResources, tuple[int, ...]]]:
        self._num_node_visits += len(self._nodes)
        spread = self._strategy == "STRICT_SPREAD"
        able = [
            node for node in self._nodes if node.fits_without_gpus(ask) and not (spread and self._num_on_node[node.id])
        ]
        candidates = [
            (self._rank_candidate(ask, node, gpus), node, gpus) for node in able for gpus in node.list_gpu_choices(ask)
        ]
        tried = set()
        for rank, node, gpus in sorted(candidates, key=lambda each: each[0]):
            alike = (rank, node.equivalence_key, self._num_on_node[node.id] > 0)
            if alike not in tried:
                tried.add(alike)
                yield node, gpus

    def _rank_candidate(
        self, ask: BundleRequest, node: FreeNodeResources, gpus: tuple[int, ...]
    ) -> tuple[bool, bool, int, int]:
        """Sort key, lowest is best: prefers nodes without GPUs for cores, the trial's own nodes, nearly full nodes."""
        needless = node.has_gpus and not ask.gpus
        beside = self._num_on_node[node.id] > 0
        left = node.gpus[gpus[0]] if 0 < ask.gpus < UNIT else sum(node.gpus)
        return needless, beside if self._strategy.endswith("SPREAD") else not beside, left, node.cores

    def _push(self, node: FreeNodeResources, gpus: tuple[int, ...]) -> None:
        node.charge(self._requests[len(self._chosen)], gpus)
        self._num_on_node[node.id] += 1
        self._chosen.append((node, gpus))

    def _pop(self) -> None:
        node, gpus = self._chosen.pop()
        node.charge(self._requests[len(self._chosen)], gpus, -1)
        self._num_on_node[node.id] -= 1


def to_units(amount: float) -> int:
    return round(amount * UNIT)
