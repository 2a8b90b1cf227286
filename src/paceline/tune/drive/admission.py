"""Who gets in: trials are admitted as whole groups into what there is, and one that can never fit is told so.

Bookkeeping without effects. All of a trial's bundles get places, or none does: two trials never wait for each other
with half of what they need. What is freed in any order leaves what was there before.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from paceline.tune.drive.packing import UNIT, Ask, Free, Node, Place, placed, units
from paceline.tune.trainables.planned import Bundle, TrialNeeds


@dataclass(frozen=True)
class Part:
    """What a trial holds, from `take` to `free`."""

    number: int
    """Tells it from all others of the room."""
    bundles: tuple[Bundle, ...]
    """What is counted for it: as it asked, or all cores where it may have no more than those."""
    places: tuple[Place, ...]
    """One for each bundle, in their order."""
    strategy: str = "PACK"
    note: str = ""
    """For a person, where it is not as was asked."""

    @property
    def num_cores(self) -> float:
        return sum(bundle.num_cpus for bundle in self.bundles)


class Room:
    """What there is, what is held of it, and by whom."""

    def __init__(self, nodes: Iterable[Node], *, shares_cores: bool = False, where: str = "this machine") -> None:
        """`shares_cores`: a trial that did not say how many cores it needs may do with all there are.

        `where` is what messages call it.
        """
        self._nodes: dict[str, Node] = {node.id: node for node in nodes}
        self._shares_cores = shares_cores
        self._where = where
        self._numbers = itertools.count(1)
        self._held: dict[int, Part] = {}
        self._lies: dict[int, tuple[Place, ...]] = {}
        """Where each part lies, as far as is known now."""
        self._uncounted: frozenset[int] = frozenset()
        self._free = {node.id: Free(node, idle=False) for node in self._nodes.values()}

    @property
    def num_held(self) -> int:
        return len(self._held)

    @property
    def num_nowhere(self) -> int:
        """How many parts have a bundle on no node that is there."""
        return sum(any(place.node not in self._nodes for place in lies) for lies in self._lies.values())

    def take(self, needs: TrialNeeds, *, beyond: bool = False) -> Part | None:
        """All that a trial needs, or nothing.

        Where the search holds nothing, what others use does not keep a trial out: somebody has to wait for them.
        `beyond`: more than there is, of nodes that are to come.
        """
        bundles, note = self._to_count(needs)
        asks = [Ask.of(bundle) for bundle in bundles]
        if _odd(bundles):
            return None
        places = placed(asks, self._free, needs.strategy)
        if places is None and not self._held:
            places = placed(asks, self._all_idle(), needs.strategy)
            note = note or "others use what it needs: it waits for them"
        if places is None and beyond:
            places = [Place("")] * len(asks)
            note = "there is no node for it yet: the autoscaler is asked for more"
        if places is None:
            return None
        part = Part(next(self._numbers), bundles, tuple(places), needs.strategy, note)
        self._held[part.number] = part
        self._lies[part.number] = part.places
        self._count(part, 1)
        return part

    def free(self, part: Part) -> None:
        if self._held.pop(part.number, None) is None:
            raise ValueError(f"part {part.number} of {self._where} is not held: it was freed already")
        if part.number not in self._uncounted:
            self._count(part, -1)
        self._uncounted -= {part.number}
        del self._lies[part.number]

    def refusal(self, needs: TrialNeeds) -> str | None:
        """Why a trial can never be had here, though all else were idle; None if it can."""
        bundles, _ = self._to_count(needs)
        if odd := _odd(bundles):
            return f"a trial needs {odd:g} GPUs in one process, which is neither below 1 nor a whole number"
        if placed([Ask.of(bundle) for bundle in bundles], self._all_idle(), needs.strategy) is not None:
            return None
        strategy = f" (strategy {needs.strategy})" if needs.strategy.startswith("STRICT") else ""
        return (
            f"a trial needs {asked(needs)}{strategy}, and {self._where} has {self.described()}: it can never be run"
            f"\n\nhint: {self._hint(needs)}"
        )

    def described(self) -> str:
        """`2 cores, 1 GPU`"""
        kinds = Counter(
            _told(node.num_cores, node.num_gpus, [each for each in sorted(node.others.items()) if _is_shown(each[0])])
            for node in self._nodes.values()
        )
        if len(self._nodes) == 1:
            return next(iter(kinds))
        return "; ".join(_nodes_with(what, count) for what, count in kinds.items()) or "no nodes"

    def look(self, nodes: Iterable[Node], lies: Mapping[int, Sequence[str]], uncounted: Iterable[int] = ()) -> None:
        """Take in how it is now: what there is, and on which nodes the bundles of parts were found.

        `uncounted`: parts that hold nothing in truth, since they wait; they keep nobody else out. GPUs are counted on
        each node anew: which of them a bundle has, is known there alone.
        """
        self._nodes = {node.id: node for node in nodes}
        self._uncounted = frozenset(uncounted) & self._held.keys()
        self._free = {node.id: Free(node, idle=False) for node in self._nodes.values()}

        def order(part: Part) -> tuple[bool, float]:
            """Those first of which it is known where they lie, and those with whole GPUs, so that these stay whole."""
            return not lies.get(part.number), -max((bundle.num_gpus for bundle in part.bundles), default=0.0)

        for part in sorted(self._held.values(), key=order):
            before = [place.node for place in self._lies[part.number]]
            found = [*lies.get(part.number, ())][: len(before)]
            if not found and part.number not in self._uncounted:
                # Where it was thought to be put, others may be by now.
                anew = placed([Ask.of(bundle) for bundle in part.bundles], self._free, part.strategy)
                before = [place.node for place in anew] if anew is not None else before
            self._lies[part.number] = tuple(self._settled(part, found + before[len(found) :]))

    def _settled(self, part: Part, nodes: Sequence[str]) -> Iterator[Place]:
        """Where its bundles lie, counted there, though there be too little."""
        for bundle, name in zip(part.bundles, nodes, strict=True):
            node, ask = self._free.get(name), Ask.of(bundle)
            if node is None:
                yield Place(name)  # It is gone, with what lay there.
                continue
            choices = node.choices(ask)
            fullest_last = sorted(range(len(node.gpus)), key=lambda index: -node.gpus[index])
            gpus = choices[0] if choices else tuple(fullest_last[: max(1, ask.num_whole)])
            if part.number not in self._uncounted:
                node.put(ask, gpus)
            yield Place(name, gpus)

    def _count(self, part: Part, sign: int) -> None:
        for bundle, place in zip(part.bundles, self._lies[part.number], strict=True):
            node = self._free.get(place.node)
            if node is not None:
                node.put(Ask.of(bundle), place.gpus, sign)

    def _all_idle(self) -> dict[str, Free]:
        return {node.id: Free(node, idle=True) for node in self._nodes.values()}

    def _to_count(self, needs: TrialNeeds) -> tuple[tuple[Bundle, ...], str]:
        if needs.is_explicit or not self._shares_cores or not self._nodes:
            return needs.bundles, ""
        (node,) = self._nodes.values()
        wanted = sum(bundle.num_cpus for bundle in needs.bundles)
        if units(wanted) <= units(node.num_cores):
            return needs.bundles, ""
        first, *rest = (replace(bundle, num_cpus=0.0) for bundle in needs.bundles)
        note = (
            f"a trial of {_num(wanted, 'core')} on {self._where} with {_num(node.num_cores, 'core')}: "
            "it has them all, one trial at a time, and its workers take turns"
        )
        return (replace(first, num_cpus=node.num_cores), *rest), note

    def _hint(self, needs: TrialNeeds) -> str:
        least = "lower num_workers or what each worker asks for"
        if any(bundle.num_gpus >= 1 for bundle in needs.bundles) and any(n.num_gpus for n in self._nodes.values()):
            return f"{least}; processes can share a GPU with a fraction of it, such as {{'GPU': 0.5}}"
        if len(self._nodes) > 1:
            return f"{least}: each process has to fit on one node"
        return least


def asked(needs: TrialNeeds) -> str:
    """`2 x (1 core, 1 GPU) and 1 core`"""
    kinds = Counter(_told(bundle.num_cpus, bundle.num_gpus, bundle.others) for bundle in needs.bundles)
    return " and ".join(f"{count} x ({what})" if count > 1 else what for what, count in kinds.items()) or "nothing"


def _odd(bundles: Iterable[Bundle]) -> float:
    """A number of GPUs that nobody can have; 0 if there is none."""
    return next((b.num_gpus for b in bundles if b.num_gpus > 1 and units(b.num_gpus) % UNIT), 0.0)


def _nodes_with(what: str, count: int) -> str:
    return f"{count} nodes with {what} each" if count > 1 else f"1 node with {what}"


def _is_shown(name: str) -> bool:
    """Every node has some of the rest, which says nothing to a person."""
    return name not in ("memory", "object_store_memory") and not name.startswith("node:") and "_group_" not in name


def _told(num_cores: float, num_gpus: float, others: Iterable[tuple[str, float]]) -> str:
    amounts = [_num(num_cores, "core")] if num_cores else []
    amounts += [_num(num_gpus, "GPU")] if num_gpus else []
    amounts += [f"{amount:g} {name}" for name, amount in others if amount]
    return ", ".join(amounts) or "nothing"


def _num(amount: float, name: str) -> str:
    return f"{amount:g} {name}{'' if amount == 1 else 's'}"
