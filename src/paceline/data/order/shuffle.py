"""The order of shuffled rows, as a pure function of seed and epoch, and a measure of how well they are shuffled.

Every shuffle sorts by a hash of an index. There is no generator state to save, and the order is the same on every
machine and with every NumPy release.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from paceline.data.planning.barriers import RandomShuffle, Repartition
from paceline.data.planning.plan import PlanNode, Read, Unit, walk

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_SAMPLE = 20_000
"""The number of rows that represents all of them in a plan's quality."""


def hash_indices(indices: Any, seed: int, epoch: int = 0) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Hash each index to 64 bits that look random."""
    key = np.uint64(mix_bits(mix_bits(seed & _MASK) ^ (epoch & _MASK)))
    values = np.asarray(indices).astype(np.uint64)
    with np.errstate(over="ignore"):
        values = (values + np.uint64(1)) * np.uint64(_GOLDEN) ^ key
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return values ^ (values >> np.uint64(31))


def argsort_hashes(hashes: np.ndarray[Any, np.dtype[np.uint64]]) -> np.ndarray[Any, np.dtype[np.intp]]:
    """Like `np.argsort`, in half the time: NumPy sorts 16-bit numbers by counting, and few hashes share 32 bits."""
    order = np.argsort((hashes >> np.uint64(32)).astype(np.uint16), kind="stable")
    order = order[np.argsort((hashes >> np.uint64(48)).astype(np.uint16)[order], kind="stable")]
    nearly_sorted = hashes[order]
    if (nearly_sorted[1:] < nearly_sorted[:-1]).any():
        order = order[np.argsort(nearly_sorted, kind="stable")]
    return order


def mix_bits(value: int) -> int:
    value = (value + _GOLDEN) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def permutation(num: int, seed: int, epoch: int = 0) -> np.ndarray[Any, np.dtype[np.intp]]:
    return np.argsort(hash_indices(np.arange(num), seed, epoch), kind="stable")


def shuffle_quality(order: Any) -> float:
    """Return 0 for rows in their original order, 1 for an order indistinguishable from random.

    `order` has the original number of each row, in delivery order. Two distances are compared with those of a random
    permutation: how far rows have moved, and how far apart rows were that are now neighbours. Both have a known
    distribution (a triangle, from -n to n), and the measure is the largest difference from it, as in a
    Kolmogorov-Smirnov test. The worse of the two counts: rows of shuffled files that are in order within each file are
    still neighbours, and rows shuffled within a small window have not moved far. Differences that chance explains at
    this number of rows are ignored.

    Fewer than two rows always count as shuffled.
    """
    ranks = np.argsort(np.argsort(np.asarray(order), kind="stable"), kind="stable")
    num = len(ranks)
    if num < 2:
        return 1.0
    moved = _distribution_distance((ranks - np.arange(num)) / num)
    neighbours = _distribution_distance(np.diff(ranks) / num)
    # 1.63 is exceeded by one random order in a hundred. 0.4 keeps the scale when there are so few rows that chance
    # dominates.
    by_chance = min(1.63 / float(np.sqrt(num)), 0.4)
    return float(np.clip((0.5 - max(moved, neighbours)) / (0.5 - by_chance), 0.0, 1.0))


def _distribution_distance(distances: np.ndarray[Any, Any]) -> float:
    """Return the largest difference between the distribution of distances and that of random ones, from -1 to 1.

    One half if all distances are 0.
    """
    ordered = np.sort(distances)
    expected = np.where(ordered < 0, (1 + ordered) ** 2 / 2, 1 - (1 - ordered) ** 2 / 2)
    steps = np.arange(len(ordered) + 1) / len(ordered)
    return float(max(np.max(expected - steps[:-1]), np.max(steps[1:] - expected)))


class Mixing(msgspec.Struct, frozen=True):
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
