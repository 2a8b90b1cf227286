"""Where bundles lie: on which node each fits, and on which of its GPUs, so that as much as can be stays whole.

Pure. Amounts are counted in ten-thousandths, as Ray counts them, so that whatever was taken and given back in any order
leaves what was there before. A part of a GPU is a part of one; those of which a part is taken are filled first.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from paceline.tune.trainables.planned import Bundle

UNIT = 10_000
_MAX_LOOKS = 50_000
"""At nodes, while different bundles are tried on them in different ways. Beyond, a trial waits for a simpler moment."""


@dataclass(frozen=True)
class Node:
    """One machine, and what a search may have of it."""

    id: str = ""
    num_cores: float = 0.0
    num_gpus: int = 0
    others: Mapping[str, float] = field(default_factory=dict)
    """Further resources, by name."""
    in_use: Bundle = field(default_factory=lambda: Bundle(0.0))
    """What others than the search have of it now."""


@dataclass(frozen=True)
class Place:
    """Where a bundle lies."""

    node: str
    gpus: tuple[int, ...] = ()
    """Indices of the node's GPUs: one of which it has a part, or those that it has whole."""


@dataclass(frozen=True)
class Ask:
    """A bundle in units."""

    cores: int
    gpus: int
    others: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, bundle: Bundle) -> Ask:
        others = Counter[str]()
        for name, amount in bundle.others:
            others[name] += units(amount)
        named = tuple(sorted((name, amount) for name, amount in others.items() if amount))
        return cls(units(bundle.num_cpus), units(bundle.num_gpus), named)

    @property
    def num_whole(self) -> int:
        return self.gpus // UNIT

    @property
    def size(self) -> tuple[int, int, int]:
        """The largest are placed first: they have the fewest places to choose from."""
        return self.gpus, sum(amount for _, amount in self.others), self.cores


class Free:
    """What is free on one node."""

    def __init__(self, node: Node, *, idle: bool) -> None:
        """`idle`: as if others had nothing of it."""
        self.id = node.id
        self.has_gpus = node.num_gpus > 0
        used = Bundle(0.0) if idle else node.in_use
        taken = dict(used.others)
        self.cores = units(node.num_cores) - units(used.num_cpus)
        self.others = {name: units(amount) - units(taken.get(name, 0.0)) for name, amount in node.others.items()}
        self.gpus = [UNIT] * node.num_gpus
        left = units(used.num_gpus)
        for index in range(node.num_gpus):  # Whose part of which GPU, nobody tells: as few as can be.
            self.gpus[index] -= min(UNIT, left)
            left -= min(UNIT, left)

    def has_room(self, ask: Ask) -> bool:
        """GPUs aside."""
        return ask.cores <= max(0, self.cores) and all(
            amount <= self.others.get(name, 0) for name, amount in ask.others
        )

    def choices(self, ask: Ask) -> list[tuple[int, ...]]:
        """The GPUs that it may have, the best first; of those that are equally free, one stands for all."""
        if not ask.gpus:
            return [()]
        if ask.gpus >= UNIT:
            whole = [index for index, free in enumerate(self.gpus) if free == UNIT]
            return [tuple(whole[: ask.num_whole])] if len(whole) >= ask.num_whole else []
        by_free: dict[int, int] = {}
        for index, free in enumerate(self.gpus):
            if free >= ask.gpus:
                by_free.setdefault(free, index)
        return [(by_free[free],) for free in sorted(by_free)]

    def put(self, ask: Ask, gpus: Sequence[int], sign: int = 1) -> None:
        self.cores -= sign * ask.cores
        for name, amount in ask.others:
            self.others[name] = self.others.get(name, 0) - sign * amount
        for index in gpus:
            self.gpus[index] -= sign * min(ask.gpus, UNIT)

    @property
    def state(self) -> tuple[object, ...]:
        """Nodes with the same are alike to whoever comes."""
        return self.cores, tuple(sorted(self.gpus)), tuple(sorted(self.others.items()))


def placed(asks: Sequence[Ask], nodes: dict[str, Free], strategy: str) -> list[Place] | None:
    """A place for each, or None."""
    order = sorted(range(len(asks)), key=lambda index: asks[index].size, reverse=True)
    chosen = _Search([asks[index] for index in order], list(nodes.values()), strategy).found()
    if chosen is None:
        return None
    places = [Place("")] * len(asks)
    for index, place in zip(order, chosen, strict=True):
        places[index] = place
    return places


class _Search:
    """For places of bundles of several kinds: the best first, others if that leads nowhere.

    Bundles that are all alike need no second try: how many fit does not depend on where the first of them lies.
    """

    def __init__(self, asks: Sequence[Ask], nodes: Sequence[Free], strategy: str) -> None:
        self._asks = asks
        self._nodes = nodes
        self._strategy = strategy
        last_kind = asks[-1] if asks else None
        self._alike = len(asks) - len(list(itertools.takewhile(lambda ask: ask == last_kind, reversed(asks))))
        """From here on all are alike."""
        self._on: Counter[str] = Counter()
        self._chosen: list[tuple[Free, tuple[int, ...]]] = []
        self._dead: set[object] = set()
        """What led nowhere."""
        self._num_looks = 0

    def found(self) -> list[Place] | None:
        """Where they lie, in order; None where they do not fit. The nodes are left as they were."""
        if self._asks and self._strategy == "STRICT_PACK":
            by_room = sorted(self._nodes, key=lambda node: (len(node.gpus), node.cores))
            return next(filter(None, (_Search(self._asks, [node], "PACK").found() for node in by_room)), None)
        fits = self._fit()
        places = [Place(node.id, gpus) for node, gpus in self._chosen]
        while self._chosen:
            self._take_back()
        return places if fits else None

    def _fit(self) -> bool:
        if not self._asks:
            return True
        ways = [self._ways(0)]
        while ways:
            index = len(ways) - 1
            way = next(ways[index], None)
            if way is None:
                ways.pop()
                if self._chosen:
                    self._take_back()
                continue
            self._put(*way)
            if len(self._chosen) == len(self._asks):
                return True
            ways.append(self._ways(index + 1))
        return False

    def _ways(self, index: int) -> Iterator[tuple[Free, tuple[int, ...]]]:
        """The places that are worth trying for the next one."""
        ask = self._asks[index]
        if index >= self._alike:
            yield from itertools.islice(self._candidates(ask), 1)
            return
        state = (index, tuple(sorted((node.state, self._on[node.id] > 0) for node in self._nodes)))
        if state in self._dead:
            return
        for way in list(self._candidates(ask)):
            yield way
            if self._num_looks > _MAX_LOOKS:
                return
        self._dead.add(state)

    def _candidates(self, ask: Ask) -> Iterator[tuple[Free, tuple[int, ...]]]:
        self._num_looks += len(self._nodes)
        spread = self._strategy == "STRICT_SPREAD"
        able = [node for node in self._nodes if node.has_room(ask) and not (spread and self._on[node.id])]
        found = [(self._rank(ask, node, gpus), node, gpus) for node in able for gpus in node.choices(ask)]
        seen = set()
        for rank, node, gpus in sorted(found, key=lambda each: each[0]):
            alike = (rank, node.state, self._on[node.id] > 0)
            if alike not in seen:
                seen.add(alike)
                yield node, gpus

    def _rank(self, ask: Ask, node: Free, gpus: tuple[int, ...]) -> tuple[bool, bool, int, int]:
        """The least is the best: cores of nodes without GPUs, nodes that the trial is on, and what is nearly full."""
        needless = node.has_gpus and not ask.gpus
        beside = self._on[node.id] > 0
        left = node.gpus[gpus[0]] if 0 < ask.gpus < UNIT else sum(node.gpus)
        return needless, beside if self._strategy.endswith("SPREAD") else not beside, left, node.cores

    def _put(self, node: Free, gpus: tuple[int, ...]) -> None:
        node.put(self._asks[len(self._chosen)], gpus)
        self._on[node.id] += 1
        self._chosen.append((node, gpus))

    def _take_back(self) -> None:
        node, gpus = self._chosen.pop()
        node.put(self._asks[len(self._chosen)], gpus, -1)
        self._on[node.id] -= 1


def units(amount: float) -> int:
    return round(amount * UNIT)
