"""The order of shuffled rows, as a pure function of seed and epoch, and a measure of how well they are shuffled.

Every shuffle sorts by a hash of an index. There is no generator state to save, and the order is the same on every
machine and with every NumPy release.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def hash_indices(indices: Any, seed: int, epoch: int = 0) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Hash each index to 64 bits that look random."""
    key = np.uint64(mix_bits(mix_bits(seed & _MASK) ^ (epoch & _MASK)))
    values = np.asarray(indices).astype(np.uint64)
    with np.errstate(over="ignore"):
        values = (values + np.uint64(1)) * np.uint64(_GOLDEN) ^ key
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return values ^ (values >> np.uint64(31))


def mix_bits(value: int) -> int:
    """Hash one Python integer."""
    value = (value + _GOLDEN) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def permutation(num: int, seed: int, epoch: int = 0) -> np.ndarray[Any, np.dtype[np.intp]]:
    """Return a permutation of 0 to num - 1."""
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
