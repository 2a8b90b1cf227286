"""The order in which the rows of several datasets alternate, as a pure function of weights and row counts.

Each dataset's rows are spread evenly over a window, which repeats: with the weights 0.75 and 0.25, each four rows are
three of the first dataset and one of the second. When a dataset has no more rows, it is left out of the window.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

_MAX_WINDOW = 1 << 20
"""Weights that need a larger window are rounded to shares of this one."""


class MixStoppingCondition(enum.Enum):
    """When the rows of `Dataset.mix` end.

    With `STOP_ON_LONGEST_DROP`, when all datasets are used up: one that has no more rows is left out. With
    `STOP_ON_SHORTEST`, at the first row that is missing.
    """

    STOP_ON_SHORTEST = "stop_on_shortest"
    STOP_ON_LONGEST_DROP = "stop_on_longest_drop"


def parse_ratio(weights: Sequence[float]) -> tuple[int, ...]:
    """Convert weights to how many rows of each dataset a window has."""
    exact = [Fraction(repr(float(weight))) for weight in weights]  # 0.1 as written, not as stored
    shares = [share / sum(exact) for share in exact]
    simple = [share.limit_denominator(1000) for share in shares]  # 1/3 is not exact in any decimal
    if all(abs(one - other) < 1e-9 * other for one, other in zip(simple, shares, strict=True)):
        shares = simple
    scale = math.lcm(*(share.denominator for share in shares))
    if scale > _MAX_WINDOW:
        return tuple(max(1, round(share * _MAX_WINDOW)) for share in shares)
    rows = [int(share * scale) for share in shares]
    return tuple(num // math.gcd(*rows) for num in rows)


@dataclass(frozen=True)
class MixWindow:
    """The window of the datasets that still have rows."""

    ratio: tuple[int, ...]
    active: tuple[int, ...]

    @property
    def num_rows(self) -> int:
        return sum(self.ratio[dataset] for dataset in self.active)

    @property
    def datasets(self) -> np.ndarray[Any, Any]:
        """The dataset of each row of the window."""
        return _arrange_window(self.ratio, self.active)

    def rows_before(self, dataset: int, row: int) -> int:
        """How many of the first `row` rows of repeated windows belong to a dataset."""
        windows, rest = divmod(row, self.num_rows)
        return windows * self.ratio[dataset] + int(np.searchsorted(_rows_of(self, dataset), rest))

    def row_at(self, dataset: int, number: int) -> int:
        """Where the row with this number of a dataset is, in repeated windows."""
        windows, rest = divmod(number, self.ratio[dataset])
        return windows * self.num_rows + int(_rows_of(self, dataset)[rest])


@lru_cache(maxsize=64)
def _arrange_window(ratio: tuple[int, ...], active: tuple[int, ...]) -> np.ndarray[Any, Any]:
    # Row j of n is at (j + 1/2) / n. These fractions are exact enough to be compared as floats.
    times = np.concatenate([(2 * np.arange(num) + 1) / (2 * num) for num in ratio])
    datasets = np.repeat(np.arange(len(ratio)), ratio)
    ordered = datasets[np.lexsort((datasets, times))]
    return ordered[np.isin(ordered, active)]


@lru_cache(maxsize=256)
def _rows_of(window: MixWindow, dataset: int) -> np.ndarray[Any, Any]:
    return np.flatnonzero(window.datasets == dataset)


@dataclass(frozen=True)
class MixSpan:
    """Rows `begin` to `end` of repeated windows."""

    window: MixWindow
    begin: int
    end: int

    @property
    def num_rows(self) -> int:
        return self.end - self.begin

    def dataset_rows(self, dataset: int) -> tuple[int, int]:
        """The rows of a dataset that are in the span."""
        if dataset not in self.window.active:
            return 0, 0
        return self.window.rows_before(dataset, self.begin), self.window.rows_before(dataset, self.end)


def arrange_mix(counts: Sequence[int], ratio: tuple[int, ...], stop: MixStoppingCondition) -> list[MixSpan]:
    """Arrange all rows of datasets with these row counts: a span for each set of datasets that still have rows."""
    active = tuple(range(len(ratio)))
    if stop is MixStoppingCondition.STOP_ON_SHORTEST:
        window = MixWindow(ratio, active)
        end = min(window.row_at(dataset, counts[dataset]) for dataset in active)
        return [MixSpan(window, 0, end)] if end else []
    spans: list[MixSpan] = []
    whole = MixWindow(ratio, active)
    # In windows of all datasets, though some of their rows no longer exist.
    ends = {dataset: whole.row_at(dataset, counts[dataset] - 1) + 1 for dataset in active if counts[dataset]}
    begin = 0
    for end in sorted(set(ends.values())):
        window = MixWindow(ratio, tuple(dataset for dataset, last in ends.items() if last >= end))
        first, stop_at = (sum(whole.rows_before(each, row) for each in window.active) for row in (begin, end))
        spans.append(MixSpan(window, first, stop_at))
        begin = end
    return spans


def cut_spans(spans: Sequence[MixSpan], begin: int, end: int) -> list[MixSpan]:
    """Rows `begin` to `end` of all spans together."""
    found, passed = [], 0
    for span in spans:
        first, last = max(begin - passed, 0), min(end - passed, span.num_rows)
        if first < last:
            found.append(MixSpan(span.window, span.begin + first, span.begin + last))
        passed += span.num_rows
    return found
