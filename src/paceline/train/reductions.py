"""Metrics reduced over the workers: `report({"loss": train.mean(x), "n": train.sum(k)})`.

No worker waits for another, and there is no collective call: each worker reports its own value, and the driver reduces
them once all workers have made that report. The value of each worker is kept, too.
"""

from typing import Any

from paceline._core.reductions import ReducedMetric

__all__ = ["max", "mean", "min", "sum"]


def mean(value: Any, weight: Any = None) -> ReducedMetric:
    """The mean over all workers, weighted if `weight` is given, for example by the number of samples.

    A worker with weight 0 is ignored.
    """
    return ReducedMetric("mean", value, weight)


def sum(value: Any) -> ReducedMetric:
    """The sum over all workers; a sum of integers is an integer."""
    return ReducedMetric("sum", value)


def max(value: Any) -> ReducedMetric:
    """The largest value of any worker; nan if any worker has nan."""
    return ReducedMetric("max", value)


def min(value: Any) -> ReducedMetric:
    """The smallest value of any worker; nan if any worker has nan."""
    return ReducedMetric("min", value)
