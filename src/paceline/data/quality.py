"""How well rows were shuffled, as a number."""

from __future__ import annotations

from typing import Any

import numpy as np


def shuffle_quality(order: Any) -> float:
    """0 for rows in their own order, 1 for an order that cannot be told from a random one.

    `order` has the original number of each row, in the order in which they came. Two things are compared with what a
    random permutation gives: how far rows have moved, and how far apart those were that are neighbours now. Both are
    distances with a known distribution (a triangle, from -n to n), and what is measured is the largest difference
    between it and the one that was found, as in a test of Kolmogorov and Smirnov. The worse of the two counts: rows
    of shuffled files that are in order within each are neighbours still, and rows that changed places within a small
    window have not gone far. Of differences that chance makes at this number of rows, nothing is held against an order.

    Fewer than two rows are always as good as shuffled.
    """
    ranks = np.argsort(np.argsort(np.asarray(order), kind="stable"), kind="stable")
    num = len(ranks)
    if num < 2:
        return 1.0
    moved = _difference((ranks - np.arange(num)) / num)
    neighbours = _difference(np.diff(ranks) / num)
    # 1.63: larger in one random order of a hundred. 0.4 keeps the scale for the few rows where chance does it all.
    by_chance = min(1.63 / float(np.sqrt(num)), 0.4)
    return float(np.clip((0.5 - max(moved, neighbours)) / (0.5 - by_chance), 0.0, 1.0))


def _difference(distances: np.ndarray[Any, Any]) -> float:
    """The largest difference between the distribution of some distances and that of random ones, from -1 to 1.

    One half where all are 0.
    """
    found = np.sort(distances)
    expected = np.where(found < 0, (1 + found) ** 2 / 2, 1 - (1 - found) ** 2 / 2)
    steps = np.arange(len(found) + 1) / len(found)
    return float(max(np.max(expected - steps[:-1]), np.max(steps[1:] - expected)))
