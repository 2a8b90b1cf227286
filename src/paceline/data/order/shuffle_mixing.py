"""How a plan's shuffles reorder rows, computed without running it. `stats()` prints the resulting quality."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from paceline.data.order.shuffle import permutation, shuffle_quality
from paceline.data.planning.barriers import RandomShuffle, Repartition
from paceline.data.planning.plan import PlanNode, Read, Unit, walk

_SAMPLE = 20_000
"""Sample size that represents all rows."""


class Mixing(msgspec.Struct, frozen=True):
    """How rows are reordered before they reach an iterator."""

    is_full_shuffle: bool = False
    """Every row may move to every position."""
    units: tuple[tuple[int, int], ...] = ()
    """Otherwise, in epoch order: each unit's position in its source, and its size."""

    def quality(self, window: int = 0, num_rows: int | None = None) -> float | None:
        """Return the `shuffle_quality`, with an additional window of `window` rows; None if nothing is shuffled."""
        places = [place for place, _ in self.units]
        if not self.is_full_shuffle and not window and places == sorted(places):
            return None
        order = permutation(_SAMPLE, seed=0) if self.is_full_shuffle else _sample_rows(self.units)
        if window:
            total = num_rows or sum(size for _, size in self.units) or _SAMPLE
            order = _shuffle_in_windows(order, max(1, window * len(order) // max(total, 1)))
        return shuffle_quality(order)


def compute_mixing(plan: PlanNode, units: list[Unit]) -> Mixing:
    """Compute the mixing of a plan. `units` are its units in epoch order."""
    nodes = list(walk(plan))
    if any(isinstance(node, RandomShuffle) or (isinstance(node, Repartition) and node.shuffle) for node in nodes):
        return Mixing(is_full_shuffle=True)
    names = [unit.name for node in nodes if isinstance(node, Read) for unit in node.source.units()]
    places = {name: place for place, name in enumerate(names)}
    # A partly read unit has another name; it keeps its position.
    moved = ((places.get(unit.name, place), unit) for place, unit in enumerate(units))
    return Mixing(units=tuple((place, unit.num_rows or unit.num_bytes or 1) for place, unit in moved))


def _sample_rows(units: tuple[tuple[int, int], ...]) -> np.ndarray[Any, Any]:
    """Return the original numbers of a sample of rows, in the order in which they are delivered."""
    total = max(sum(size for _, size in units), 1)
    begins: dict[int, tuple[int, int]] = {}
    passed = 0
    for place, size in sorted(units):
        begins[place] = passed * _SAMPLE // total, (passed + size) * _SAMPLE // total
        passed += size
    return np.concatenate([np.arange(*begins[place]) for place, _ in units] or [np.arange(0)])


def _shuffle_in_windows(order: np.ndarray[Any, Any], window: int) -> np.ndarray[Any, Any]:
    parts = [
        order[begin : begin + window][permutation(min(window, len(order) - begin), seed=begin)]
        for begin in range(0, len(order), window)
    ]
    return np.concatenate(parts or [order])
