"""Metrics that are reduced over the workers: `report({"loss": train.mean(x), "n": train.sum(k)})`.

No worker waits for another, and there is no collective: each reports its own value, and the driver reduces them once
all have made the report of that number. Every worker's own value is kept.
"""

from typing import Any

from paceline._core.reductions import Reduced

__all__ = ["max", "mean", "min", "sum"]


def mean(value: Any, weight: Any = None) -> Reduced:
    """The mean over all workers. With weights, such as the number of samples, each counts as much as its weight.

    A worker of weight 0 takes no part.
    """
    return Reduced("mean", value, weight)


def sum(value: Any) -> Reduced:
    """The sum over all workers; of integers an integer."""
    return Reduced("sum", value)


def max(value: Any) -> Reduced:
    """The largest value of any worker; nan if one has nan."""
    return Reduced("max", value)


def min(value: Any) -> Reduced:
    """The smallest value of any worker; nan if one has nan."""
    return Reduced("min", value)
