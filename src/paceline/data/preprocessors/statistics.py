"""What preprocessors learn of a dataset: statistics that are taken of parts of the rows and merged.

A statistic has three pure functions. `partial` looks at one column of some rows, in whatever process they are; `merge`
joins what was seen in two neighbouring parts; `finish` says what it comes to. Cutting the rows elsewhere changes
nothing but the last digits of floating-point sums. A state is made of plain values: it crosses processes as data.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paceline.data.block import Block, Column
from paceline.data.preprocessors.columns import Array, dense, holds_lists, lists, numbers, plain_values, present

State = Any
"""Numbers, strings, arrays, and lists and dicts of them."""


class Statistic(Protocol):
    @property
    def column(self) -> str: ...

    def partial(self, block: Block) -> State: ...

    def merge(self, one: State, other: State) -> State:
        """`other` is of the rows that come after those of `one`."""
        ...

    def finish(self, state: State) -> Any: ...


def merged(statistic: Statistic, states: Iterable[State]) -> State:
    """All states in one, or None if there are none.

    Neighbours of about the same size come first, so that no large state is copied once for each small one.
    """
    ahead: list[tuple[int, State]] = []
    for state in states:
        size = 1
        while ahead and ahead[-1][0] == size:
            size, state = size * 2, statistic.merge(ahead.pop()[1], state)
        ahead.append((size, state))
    whole = ahead.pop()[1] if ahead else None
    while ahead:
        whole = statistic.merge(ahead.pop()[1], whole)
    return whole


@dataclass(frozen=True)
class Moments:
    """Mean and standard deviation of the population: exactly 0 where all values are the same."""

    column: str
    who: str

    def partial(self, block: Block) -> State:
        values = present(numbers(block, self.column, self.who)).astype(np.float64)
        if not len(values):
            return [0, 0.0, 0.0, math.inf, -math.inf]
        with np.errstate(invalid="ignore", over="ignore"):
            mean = float(values.mean())
            squares = float(np.square(values - mean).sum())
        return [len(values), mean, squares, float(values.min()), float(values.max())]

    def merge(self, one: State, other: State) -> State:
        if not one[0] or not other[0]:
            return one if one[0] else other
        count = one[0] + other[0]
        apart = other[1] - one[1]
        mean = one[1] + apart * other[0] / count
        squares = one[2] + other[2] + apart * apart * one[0] * other[0] / count
        return [count, mean, squares, min(one[3], other[3]), max(one[4], other[4])]

    def finish(self, state: State) -> tuple[float | None, float | None]:
        """Mean and standard deviation; None where nothing is known."""
        count, mean, squares, least, most = state
        if not count:
            return None, None
        # Rounding gives a constant column a deviation of some 1e-17, and dividing by that would make numbers of noise.
        return (least, 0.0) if least == most else (mean, math.sqrt(squares / count))


@dataclass(frozen=True)
class Extremes:
    """The least and the greatest value."""

    column: str
    who: str

    def partial(self, block: Block) -> State:
        values = present(numbers(block, self.column, self.who))
        return [values.min().item(), values.max().item()] if len(values) else []

    def merge(self, one: State, other: State) -> State:
        return [min(one[0], other[0]), max(one[1], other[1])] if one and other else one or other

    def finish(self, state: State) -> tuple[Any, Any]:
        """None and None where nothing is known."""
        return (state[0], state[1]) if state else (None, None)


@dataclass(frozen=True)
class Counts:
    """How often each value occurs, in the order in which they first do; None counts what is missing."""

    column: str
    in_lists: bool = True
    """Of a column of lists, count what is in them; else whole lists, as tuples."""

    def partial(self, block: Block) -> State:
        return _pairs(counted(block.columns[self.column], self.in_lists))

    def merge(self, one: State, other: State) -> State:
        return _pairs(_summed(one, other))

    def finish(self, state: State) -> Counter[Any]:
        return _summed(state)


@dataclass(frozen=True)
class Tokens:
    """How often each token occurs, in the order in which they first do."""

    column: str
    tokenize: Callable[[str], list[str]]

    def partial(self, block: Block) -> State:
        counts: Counter[Any] = Counter()
        for text in plain_values(block.columns[self.column]):
            if text is not None:
                counts.update(self.tokenize(text))
        return _pairs(counts)

    def merge(self, one: State, other: State) -> State:
        return _pairs(_summed(one, other))

    def finish(self, state: State) -> Counter[Any]:
        return _summed(state)


@dataclass(frozen=True)
class Quantiles:
    """Quantiles, interpolated linearly between neighbours.

    Exact up to `precision` values. Beyond, values are sorted and every second one kept with twice the weight, again and
    again: a quantile then has a rank that is off by less than log2(n / precision) / precision of all n.
    """

    column: str
    wanted: tuple[float, ...]
    precision: int
    who: str

    def partial(self, block: Block) -> State:
        values = present(numbers(block, self.column, self.who)).astype(np.float64)
        return self._thinned([values])

    def merge(self, one: State, other: State) -> State:
        levels = max(len(one), len(other))
        empty = np.empty(0)
        pairs = [[part[level] if level < len(part) else empty for part in (one, other)] for level in range(levels)]
        return self._thinned([np.concatenate(pair) for pair in pairs])

    def finish(self, state: State) -> list[float | None]:
        values = np.concatenate(state)
        if not len(values):
            return [None] * len(self.wanted)
        weights = np.repeat(2 ** np.arange(len(state)), [len(level) for level in state])
        order = np.argsort(values, kind="stable")
        values, ends = values[order], np.cumsum(weights[order])
        return [_at(values, ends, quantile * (int(ends[-1]) - 1)) for quantile in self.wanted]

    def _thinned(self, levels: list[Array]) -> list[Array]:
        """At most `precision` values on each level; one of level k stands for 2 ** k."""
        level = 0
        while level < len(levels):
            values = levels[level]
            if len(values) > self.precision:
                values = np.sort(values)
                even = len(values) // 2 * 2
                if level + 1 == len(levels):
                    levels.append(np.empty(0))
                # Alternating between the lower and the upper of each two keeps the ranks from drifting.
                kept = values[level % 2 : even : 2]
                levels[level], levels[level + 1] = values[even:], np.concatenate([levels[level + 1], kept])
            level += 1
        return levels


def counted(values: Column, in_lists: bool) -> Counter[Any]:
    """How often each value occurs; None for those that are missing."""
    if holds_lists(values):
        if in_lists:
            return _counted_inside(values)
        return Counter(plain_values(values))
    arrow = dense(values)
    if arrow is None:
        return Counter(plain_values(values))
    return _value_counts(arrow)


def _counted_inside(values: Column) -> Counter[Any]:
    flat: Any = None
    if isinstance(values, np.ndarray):
        flat = None if values.dtype == object else dense(values.reshape(-1))
        missing = 0
    else:
        flat, missing = dense(pc.list_flatten(values)), values.null_count
    if flat is None:
        rows = lists(values)
        missing = sum(row is None for row in rows)
        counts = Counter(item for row in rows if row is not None for item in row)
    else:
        counts = _value_counts(flat)
    if missing:
        counts[None] += missing
    return counts


def _value_counts(values: Any) -> Counter[Any]:
    try:
        found = pc.value_counts(values)
    except pa.ArrowNotImplementedError:
        return Counter(values.to_pylist())
    counts: Counter[Any] = Counter()
    for value, count in zip(found.field(0).to_pylist(), found.field(1).to_pylist(), strict=True):
        counts[value] += count
    return counts


def _pairs(counts: Counter[Any]) -> State:
    return [list(counts), list(counts.values())]


def _summed(*states: State) -> Counter[Any]:
    counts: Counter[Any] = Counter()
    for values, numbers_of in states:
        for value, count in zip(values, numbers_of, strict=True):
            counts[value] += count
    return counts


def _at(values: Array, ends: Array, rank: float) -> float:
    """The value at a rank, of values that each stand for as many ranks as `ends` grows by."""
    below, above = math.floor(rank), math.ceil(rank)
    low, high = (float(values[np.searchsorted(ends, place, side="right")]) for place in (below, above))
    return low if low == high else low + (high - low) * (rank - below)
