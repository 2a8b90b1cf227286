"""What a plan's shuffles do to the order of rows, told without running it: for the number that `stats()` prints."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from paceline.data.barriers import RandomShuffle, Repartition
from paceline.data.order import permutation
from paceline.data.plan import Node, Read, walk
from paceline.data.quality import shuffle_quality
from paceline.data.source import Unit

_SAMPLE = 20_000
"""So many rows stand for all."""


class Mixing(msgspec.Struct, frozen=True):
    """How rows change places before they come to an iterator."""

    whole: bool = False
    """Every row may come to every place."""
    units: tuple[tuple[int, int], ...] = ()
    """Otherwise, in the order of an epoch: where each unit came in its source, and how large it is."""

    def quality(self, window: int = 0, num_rows: int | None = None) -> float | None:
        """As in `shuffle_quality`, with windows of so many rows on top; None where nothing changes places."""
        places = [place for place, _ in self.units]
        if not self.whole and not window and places == sorted(places):
            return None
        order = permutation(_SAMPLE, seed=0) if self.whole else _rows(self.units)
        if window:
            total = num_rows or sum(size for _, size in self.units) or _SAMPLE
            order = _windowed(order, max(1, window * len(order) // max(total, 1)))
        return shuffle_quality(order)


def mixing_of(plan: Node, units: list[Unit]) -> Mixing:
    """`units` are those of the plan in the order of an epoch."""
    nodes = list(walk(plan))
    if any(isinstance(node, RandomShuffle) or (isinstance(node, Repartition) and node.shuffle) for node in nodes):
        return Mixing(whole=True)
    names = [unit.name for node in nodes if isinstance(node, Read) for unit in node.source.units()]
    places = {name: place for place, name in enumerate(names)}
    # A unit of which only a part is read has another name, and stands where it is.
    return Mixing(units=tuple((places.get(unit.name, place), _size(unit)) for place, unit in enumerate(units)))


def _size(unit: Unit) -> int:
    return unit.num_rows or unit.num_bytes or 1


def _rows(units: tuple[tuple[int, int], ...]) -> np.ndarray[Any, Any]:
    """The numbers of a sample of the rows, in the order in which they come."""
    total = max(sum(size for _, size in units), 1)
    begins: dict[int, tuple[int, int]] = {}
    passed = 0
    for place, size in sorted(units):
        begins[place] = passed * _SAMPLE // total, (passed + size) * _SAMPLE // total
        passed += size
    return np.concatenate([np.arange(*begins[place]) for place, _ in units] or [np.arange(0)])


def _windowed(order: np.ndarray[Any, Any], window: int) -> np.ndarray[Any, Any]:
    parts = [
        order[begin : begin + window][permutation(min(window, len(order) - begin), seed=begin)]
        for begin in range(0, len(order), window)
    ]
    return np.concatenate(parts or [order])
