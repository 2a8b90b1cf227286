"""Admission: allocates all bundles of a trial at once, and refuses trials that can never fit.

Bookkeeping without effects. All bundles of a trial are placed or none is, so two trials never wait for each other while
each holds half of what it needs. Releasing in any order restores the original state.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from paceline._core.resource_planner import (
    UNIT,
    BundlePlacement,
    BundleRequest,
    FreeNodeResources,
    PlacementNode,
    ResourceBundle,
    place_bundles,
    to_units,
)


@dataclass(frozen=True)
class TrialNeeds:
    """What a trial needs; allocated completely or not at all."""

    bundles: tuple[ResourceBundle, ...]
    is_explicit: bool = False
    """The user specified the number of cores. If not, a trial with more workers than cores may share all of them."""
    strategy: str = "PACK"
    """How the bundles are spread over the nodes of a cluster, as in `ScalingConfig(placement_strategy=...)`."""
    hint: str = "lower num_workers or the resources of each worker"
    """What to do if there is never so much."""


@dataclass(frozen=True)
class ResourceAllocation:
    """What a trial holds, from `allocate` to `release`."""

    number: int
    bundles: tuple[ResourceBundle, ...]
    """What is charged for it: what it requested, or all cores if it is limited to those."""
    placements: tuple[BundlePlacement, ...]
    """One for each bundle, in the same order."""
    strategy: str = "PACK"
    note: str = ""
    """Shown to the user if the allocation differs from the request."""

    @property
    def num_cores(self) -> float:
        return sum(bundle.num_cpus for bundle in self.bundles)


class ResourceLedger:
    """What exists, what is allocated, and to whom."""

    def __init__(
        self, nodes: Iterable[PlacementNode], *, shares_cores: bool = False, machine: str = "this machine"
    ) -> None:
        """`shares_cores`: a trial without a number of cores may run with all there are. `machine` is for messages."""
        self._nodes: dict[str, PlacementNode] = {node.id: node for node in nodes}
        self._shares_cores = shares_cores
        self._machine = machine
        self._numbers = itertools.count(1)
        self._allocations: dict[int, ResourceAllocation] = {}
        self._placements: dict[int, tuple[BundlePlacement, ...]] = {}
        """The placement of each allocation, as far as is known now."""
        self._uncounted: frozenset[int] = frozenset()
        self._free = {node.id: FreeNodeResources(node, idle=False) for node in self._nodes.values()}

    @property
    def num_unplaced(self) -> int:
        """The number of allocations with a bundle that is on no existing node."""
        return sum(
            any(place.node not in self._nodes for place in placements) for placements in self._placements.values()
        )

    def allocate(self, needs: TrialNeeds, *, overcommit: bool = False) -> ResourceAllocation | None:
        """Allocate everything a trial needs, or nothing. `overcommit`: more than exists, for nodes still to come.

        If the search holds nothing, usage by others does not block a trial: at least one has to wait for them.
        """
        bundles, note = self._bundles_to_charge(needs)
        asks = _to_requests(bundles)
        if _find_fractional_gpus(bundles):
            return None
        places = place_bundles(asks, self._free, needs.strategy)
        if places is None and not self._allocations:
            places = place_bundles(asks, self._idle_nodes(), needs.strategy)
            note = note or "waiting for resources that others use"
        if places is None and overcommit:
            places = [BundlePlacement("")] * len(asks)
            note = "waiting for the autoscaler to add nodes"
        if places is None:
            return None
        allocation = ResourceAllocation(next(self._numbers), bundles, tuple(places), needs.strategy, note)
        self._allocations[allocation.number] = allocation
        self._placements[allocation.number] = allocation.placements
        self._charge(allocation, 1)
        return allocation

    def release(self, allocation: ResourceAllocation) -> None:
        if self._allocations.pop(allocation.number, None) is None:
            raise ValueError(f"allocation {allocation.number} of {self._machine} was already released")
        if allocation.number not in self._uncounted:
            self._charge(allocation, -1)
        self._uncounted -= {allocation.number}
        del self._placements[allocation.number]

    def total_resources(self) -> dict[str, float]:
        total: Counter[str] = Counter()
        for node in self._nodes.values():
            total.update({"CPU": node.num_cores, "GPU": node.num_gpus, **dict(node.others)})
        return {name: float(amount) for name, amount in total.items() if amount}

    def find_refusal(self, needs: TrialNeeds) -> str | None:
        """Return why a trial could never run here even if everything were idle; None if it can."""
        bundles, _ = self._bundles_to_charge(needs)
        if odd := _find_fractional_gpus(bundles):
            return f"the GPUs of a process must be below 1 or an integer, got {odd:g}"
        if place_bundles(_to_requests(bundles), self._idle_nodes(), needs.strategy) is not None:
            return None
        strategy = f" (strategy {needs.strategy})" if needs.strategy.startswith("STRICT") else ""
        return (
            f"a trial needs {format_needs(needs)}{strategy}, and {self._machine} has {self.describe()}"
            f"\n\nhint: {self._hint(needs)}"
        )

    def describe(self) -> str:
        """`2 cores, 1 GPU`"""
        kinds: Counter[str] = Counter()
        for node in self._nodes.values():
            others = [(name, amount) for name, amount in sorted(node.others.items()) if _is_user_resource(name)]
            kinds[_format_amounts(node.num_cores, node.num_gpus, others)] += 1
        if len(self._nodes) == 1:
            return next(iter(kinds))
        groups = (f"{n} nodes with {what} each" if n > 1 else f"1 node with {what}" for what, n in kinds.items())
        return "; ".join(groups) or "no nodes"

    def update_nodes(
        self,
        nodes: Iterable[PlacementNode],
        nodes_by_allocation: Mapping[int, Sequence[str]],
        uncounted: Iterable[int] = (),
    ) -> None:
        """Update the ledger: which nodes exist, and on which nodes the bundles of allocations were found.

        `uncounted`: allocations that are still waiting and hold nothing; they block nobody. GPUs are assigned anew on
        each node: only the node knows which ones a bundle has.
        """
        self._nodes = {node.id: node for node in nodes}
        self._uncounted = frozenset(uncounted) & self._allocations.keys()
        self._free = {node.id: FreeNodeResources(node, idle=False) for node in self._nodes.values()}

        def placing_order(allocation: ResourceAllocation) -> tuple[bool, float]:
            """Sort key: allocations with a known location first, then those with whole GPUs, which keeps GPUs whole."""
            return not nodes_by_allocation.get(allocation.number), -max(
                (bundle.num_gpus for bundle in allocation.bundles), default=0.0
            )

        for allocation in sorted(self._allocations.values(), key=placing_order):
            before = [place.node for place in self._placements[allocation.number]]
            known = [*nodes_by_allocation.get(allocation.number, ())][: len(before)]
            if not known and allocation.number not in self._uncounted:
                # Others may have been placed where this one was expected.
                anew = place_bundles(_to_requests(allocation.bundles), self._free, allocation.strategy)
                before = [place.node for place in anew] if anew is not None else before
            placements = self._charge_placements(allocation, known + before[len(known) :])
            self._placements[allocation.number] = tuple(placements)

    def _charge_placements(self, allocation: ResourceAllocation, nodes: Sequence[str]) -> Iterator[BundlePlacement]:
        """Charge the bundles to these nodes, even beyond their capacity, and return the placements."""
        for bundle, name in zip(allocation.bundles, nodes, strict=True):
            node, ask = self._free.get(name), BundleRequest.from_bundle(bundle)
            if node is None:
                yield BundlePlacement(name)  # The node is gone, and its resources with it.
                continue
            choices = node.list_gpu_choices(ask)
            fullest_last = sorted(range(len(node.gpus)), key=lambda index: -node.gpus[index])
            gpus = choices[0] if choices else tuple(fullest_last[: max(1, ask.num_whole_gpus)])
            if allocation.number not in self._uncounted:
                node.charge(ask, gpus)
            yield BundlePlacement(name, gpus)

    def _charge(self, allocation: ResourceAllocation, sign: int) -> None:
        for bundle, place in zip(allocation.bundles, self._placements[allocation.number], strict=True):
            node = self._free.get(place.node)
            if node is not None:
                node.charge(BundleRequest.from_bundle(bundle), place.gpus, sign)

    def _idle_nodes(self) -> dict[str, FreeNodeResources]:
        return {node.id: FreeNodeResources(node, idle=True) for node in self._nodes.values()}

    def _bundles_to_charge(self, needs: TrialNeeds) -> tuple[tuple[ResourceBundle, ...], str]:
        if needs.is_explicit or not self._shares_cores or not self._nodes:
            return needs.bundles, ""
        (node,) = self._nodes.values()
        num_cores = sum(bundle.num_cpus for bundle in needs.bundles)
        if to_units(num_cores) <= to_units(node.num_cores):
            return needs.bundles, ""
        first, *rest = (replace(bundle, num_cpus=0.0) for bundle in needs.bundles)
        note = (
            f"a trial needs {_format_count(num_cores, 'core')}, and {self._machine} has "
            f"{_format_count(node.num_cores, 'core')}: trials run one at a time and share all cores"
        )
        return (replace(first, num_cpus=node.num_cores), *rest), note

    def _hint(self, needs: TrialNeeds) -> str:
        least = needs.hint
        if any(bundle.num_gpus >= 1 for bundle in needs.bundles) and any(n.num_gpus for n in self._nodes.values()):
            return f"{least}; processes can share a GPU with a fraction of it, such as {{'GPU': 0.5}}"
        if len(self._nodes) > 1:
            return f"{least}: each process has to fit on one node"
        return least


def format_needs(needs: TrialNeeds) -> str:
    """`2 x (1 core, 1 GPU) and 1 core`"""
    kinds = Counter(_format_amounts(bundle.num_cpus, bundle.num_gpus, bundle.others) for bundle in needs.bundles)
    return " and ".join(f"{count} x ({what})" if count > 1 else what for what, count in kinds.items()) or "nothing"


def _to_requests(bundles: Iterable[ResourceBundle]) -> list[BundleRequest]:
    return [BundleRequest.from_bundle(bundle) for bundle in bundles]


def _find_fractional_gpus(bundles: Iterable[ResourceBundle]) -> float:
    """Return a number of GPUs that cannot be allocated; 0 if there is none."""
    return next((b.num_gpus for b in bundles if b.num_gpus > 1 and to_units(b.num_gpus) % UNIT), 0.0)


def _is_user_resource(name: str) -> bool:
    """False for resources that every node has, which mean nothing to a user."""
    return name not in ("memory", "object_store_memory") and not name.startswith("node:") and "_group_" not in name


def _format_amounts(num_cores: float, num_gpus: float, others: Iterable[tuple[str, float]]) -> str:
    amounts = [_format_count(num_cores, "core")] if num_cores else []
    amounts += [_format_count(num_gpus, "GPU")] if num_gpus else []
    amounts += [f"{amount:g} {name}" for name, amount in others if amount]
    return ", ".join(amounts) or "nothing"


def _format_count(amount: float, name: str) -> str:
    return f"{amount:g} {name}{'' if amount == 1 else 's'}"
