"""Reduces many points to few for a plot: each stands for a run of neighbours and keeps their minimum and maximum.

Few points are returned unchanged and without numpy, which takes longer to import than small runs take to read.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from paceline._core.arguments import check_int
from paceline._view.journal.report_table import MetricColumn
from paceline._view.model import Points

_MIN_NUMPY_POINTS = 20_000
"""From this many points on, importing numpy pays."""


def downsample(
    name: str,
    xs: array[float] | array[int],
    column: MetricColumn,
    *,
    at_most: int,
    origin: float = 0.0,
    within: tuple[float, float] | None = None,
) -> Points:
    """Return the points of a column. `xs` holds the x of each row, less `origin`; `within` is an inclusive range."""
    check_int("at_most", at_most, at_least=1)
    rows, values = column.rows, column.values
    is_sorted = isinstance(xs, array) and xs.typecode == "q"
    if within is not None and is_sorted:
        # Steps are sorted, so the rows are a contiguous range.
        low = bisect_left(rows, bisect_left(xs, within[0] + origin))
        high = bisect_left(rows, bisect_right(xs, within[1] + origin))
        rows, values = rows[low:high], values[low:high]
    if len(rows) > max(at_most, _MIN_NUMPY_POINTS):
        return _downsample_with_numpy(name, xs, rows, values, at_most, origin, within if not is_sorted else None)
    placed = [xs[row] - origin for row in rows]
    chosen: Sequence[float] = values
    if within is not None and not is_sorted:
        inside = [i for i, x in enumerate(placed) if within[0] <= x <= within[1]]
        placed, chosen = [placed[i] for i in inside], [values[i] for i in inside]
    if len(placed) <= at_most:
        return _whole_points(name, placed, chosen)
    return _downsample_in_python(name, placed, chosen, at_most)


def _whole_points(name: str, x: list[float], values: Sequence[float]) -> Points:
    y = [None if math.isnan(value) else value for value in values]
    return Points(name=name, x=x, y=y, low=y, high=y, num_points=len(y), whole=True)


def _bucket_edges(num_points: int, at_most: int) -> list[int]:
    """Return the start of each bucket and the end of the last; no bucket is empty."""
    return [i * num_points // at_most for i in range(at_most + 1)]


def _downsample_in_python(name: str, xs: Sequence[float], values: Sequence[float], at_most: int) -> Points:
    edges = _bucket_edges(len(values), at_most)
    x: list[float] = []
    y: list[float | None] = []
    low: list[float | None] = []
    high: list[float | None] = []
    for first, end in pairwise(edges):
        numbers = [value for value in values[first:end] if not math.isnan(value)]
        finite = [value for value in numbers if math.isfinite(value)]
        x.append(xs[first])
        least = min(numbers, default=None)
        low.append(least)
        high.append(max(numbers, default=None))
        y.append(_mean(finite) if finite else least)
    return Points(name=name, x=x, y=y, low=low, high=high, num_points=len(values), whole=False)


def _mean(values: Sequence[float]) -> float:
    # Divide first: the sum may be larger than any float.
    mean = math.fsum(value / len(values) for value in values)
    return min(max(mean, min(values)), max(values))


def _downsample_with_numpy(
    name: str,
    xs: array[float] | array[int],
    rows: array[int],
    values: array[float],
    at_most: int,
    origin: float,
    within: tuple[float, float] | None,
) -> Points:
    import numpy as np

    number, at = np.frombuffer(values), np.frombuffer(rows, dtype=np.intc)
    place = np.frombuffer(xs, dtype=np.int64 if xs.typecode == "q" else np.float64)
    if within is not None:
        inside = np.flatnonzero((place[at] - origin >= within[0]) & (place[at] - origin <= within[1]))
        number, at = number[inside], at[inside]
    if len(at) <= at_most:
        return _whole_points(name, (place[at] - origin).tolist(), number.tolist())
    edges = np.array(_bucket_edges(len(at), at_most))
    starts = edges[:-1]
    missing = np.isnan(number)
    finite = np.isfinite(number)
    low = np.minimum.reduceat(np.where(missing, np.inf, number), starts)
    high = np.maximum.reduceat(np.where(missing, -np.inf, number), starts)
    num_finite = np.add.reduceat(finite, starts, dtype=np.int64)
    shares = np.where(finite, number, 0.0) / np.repeat(np.maximum(num_finite, 1), np.diff(edges))
    mean = np.clip(np.add.reduceat(shares, starts), low, high)
    mean = np.where(num_finite > 0, mean, low)
    none = np.add.reduceat(~missing, starts, dtype=np.int64) == 0
    return Points(
        name=name,
        x=(place[at[starts]] - origin).tolist(),
        y=_to_optional_list(mean, none),
        low=_to_optional_list(low, none),
        high=_to_optional_list(high, none),
        num_points=len(at),
        whole=False,
    )


def _to_optional_list(values: Any, none: Any) -> list[float | None]:
    numbers: list[float | None] = values.tolist()
    for at in none.nonzero()[0].tolist():
        numbers[at] = None
    return numbers
