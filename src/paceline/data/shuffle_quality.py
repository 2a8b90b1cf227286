"""Measures how well rows were shuffled."""

from __future__ import annotations

from typing import Any

import numpy as np


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
    found = np.sort(distances)
    expected = np.where(found < 0, (1 + found) ** 2 / 2, 1 - (1 - found) ** 2 / 2)
    steps = np.arange(len(found) + 1) / len(found)
    return float(max(np.max(expected - steps[:-1]), np.max(steps[1:] - expected)))
