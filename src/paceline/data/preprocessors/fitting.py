"""Preprocessors in the plan of a dataset: the pass that fits them, its statistics, and the step that applies them.

A fit computes the statistics of each unit where its rows are, and sends one state per unit, as data. The caller merges
the states in unit order. A statistic has three pure functions. `partial` reads one column of some rows, in any process;
`merge` joins the states of two adjacent parts; `finish` returns the result. Other boundaries between parts change only
the last digits of floating-point sums.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paceline._core.arguments import check_int
from paceline.data.block import Block, Column
from paceline.data.planning.plan import Map, last_row_change
from paceline.data.preprocessors import columns
from paceline.data.preprocessors.json_values import from_json_value, to_json_value
from paceline.data.transforms.rows import split_batches
from paceline.data.transforms.user_calls import UnitCalls, UserCall, UserTransform, resolve_pool

if TYPE_CHECKING:
    from paceline.data.dataset import Dataset

State = Any
"""Numbers, strings and arrays, and lists and dicts of them."""
_STATE = "state"


class Statistic(Protocol):
    @property
    def column(self) -> str: ...

    def partial(self, block: Block) -> State: ...

    def merge(self, one: State, other: State) -> State:
        """Merge two states. The rows of `other` come after those of `one`."""
        ...

    def finish(self, state: State) -> Any: ...


def merge_states(statistic: Statistic, states: Iterable[State]) -> State:
    """Merge all states into one; None if there are none.

    Neighbours of similar size are merged first, so that no large state is copied once for each small one.
    """
    pending: list[tuple[int, State]] = []
    for state in states:
        size = 1
        while pending and pending[-1][0] == size:
            size, state = size * 2, statistic.merge(pending.pop()[1], state)
        pending.append((size, state))
    merged = pending.pop()[1] if pending else None
    while pending:
        merged = statistic.merge(pending.pop()[1], merged)
    return merged


@dataclass(frozen=True)
class CombinedStatistic:
    statistics: tuple[Statistic, ...]
    who: str
    column: str = ""

    @property
    def __name__(self) -> str:
        return f"fit of {self.who}"

    def partial(self, block: Block) -> State:
        columns.check_columns(block, (statistic.column for statistic in self.statistics), self.who)
        return [statistic.partial(block) for statistic in self.statistics]

    __call__ = partial

    def merge(self, one: State, other: State) -> State:
        return [statistic.merge(*pair) for statistic, *pair in zip(self.statistics, one, other, strict=True)]

    def finish(self, state: State) -> list[Any]:
        if state is None:
            raise ValueError(
                f"{self.who} cannot be fitted: the dataset has no rows\n\n"
                "hint: ds.count() and ds.explain() show what the dataset reads"
            )
        return [statistic.finish(part) for statistic, part in zip(self.statistics, state, strict=True)]


@dataclass(frozen=True)
class FitTransform(UserTransform):
    """Reduces the rows of a unit to one row that holds the state of the statistics."""

    label = "{0.call.name}"

    def run(self, blocks: Iterator[Block], calls: UnitCalls) -> Iterator[Block]:
        state = merge_states(self.call.fn, _call_on_blocks(blocks, calls))
        if state is not None:
            yield Block({_STATE: [encode_state(state)]})


@dataclass(frozen=True)
class PreprocessorTransform(UserTransform):
    batch_size: int | None = None
    one_to_one: bool = True

    label = "{0.call.name}"

    @property
    def keeps_rows(self) -> bool:
        return self.one_to_one

    def run(self, blocks: Iterator[Block], calls: UnitCalls) -> Iterator[Block]:
        return _call_on_blocks(blocks, calls, self.batch_size)


@dataclass(frozen=True)
class NamedBlockFunction:
    """A block function with the name that `explain()` and errors show."""

    name: str
    function: Callable[[Block], Block]

    @property
    def __name__(self) -> str:
        return self.name

    def __call__(self, block: Block) -> Block:
        return self.function(block)


def apply_function(
    ds: Dataset,
    function: NamedBlockFunction,
    *,
    one_to_one: bool = True,
    batch_size: int | None = None,
    num_cpus: float | None = None,
    concurrency: int | None = None,
) -> Dataset:
    from paceline.data.dataset import Dataset

    pool = resolve_pool(function, compute=None, concurrency=concurrency, num_cpus=num_cpus, num_gpus=None)
    check_int("batch_size", batch_size, at_least=1, optional=True)
    call = UserCall(function, pool=pool, counted_after=last_row_change(ds._plan))
    return Dataset(Map(ds._plan, PreprocessorTransform(call, batch_size, one_to_one)))


def compute_statistics(ds: Dataset, statistics: Sequence[Statistic], who: str) -> list[Any]:
    from paceline.data.dataset import Dataset

    combined = CombinedStatistic(tuple(statistics), who)
    columns = list(dict.fromkeys(statistic.column for statistic in statistics))
    plan = ds.select_columns(columns)._plan
    fitting = Dataset(Map(plan, FitTransform(UserCall(combined, counted_after=last_row_change(plan)))))
    parts = fitting.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0)
    states = (decode_state(data) for part in parts for data in part[_STATE].to_pylist())
    return combined.finish(merge_states(combined, states))


def encode_state(state: State) -> bytes:
    return msgspec.msgpack.encode(to_json_value(state))


def decode_state(data: bytes) -> State:
    return from_json_value(msgspec.msgpack.decode(data))


def _call_on_blocks(blocks: Iterable[Block], calls: UnitCalls, batch_size: int | None = None) -> Iterator[Any]:
    def call_once(block: Block) -> Iterator[Any]:
        yield calls.fn(block)

    for first, block in split_batches(blocks, batch_size):
        yield from calls.call_batch(block, first, call_once)


@dataclass(frozen=True)
class MomentsStatistic:
    """Mean and population standard deviation, which is exactly 0 if all values are equal."""

    column: str
    who: str

    def partial(self, block: Block) -> State:
        values = columns.drop_missing(columns.numeric_column(block, self.column, self.who)).astype(np.float64)
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
        delta = other[1] - one[1]
        mean = one[1] + delta * other[0] / count
        squares = one[2] + other[2] + delta * delta * one[0] * other[0] / count
        return [count, mean, squares, min(one[3], other[3]), max(one[4], other[4])]

    def finish(self, state: State) -> tuple[float | None, float | None]:
        """Return mean and standard deviation; None if there are no values."""
        count, mean, squares, least, most = state
        if not count:
            return None, None
        # Rounding gives a constant column a deviation of about 1e-17; dividing by that would amplify noise.
        return (least, 0.0) if least == most else (mean, math.sqrt(squares / count))


@dataclass(frozen=True)
class MinMaxStatistic:
    column: str
    who: str

    def partial(self, block: Block) -> State:
        values = columns.drop_missing(columns.numeric_column(block, self.column, self.who))
        return [values.min().item(), values.max().item()] if len(values) else []

    def merge(self, one: State, other: State) -> State:
        return [min(one[0], other[0]), max(one[1], other[1])] if one and other else one or other

    def finish(self, state: State) -> tuple[Any, Any]:
        """Return minimum and maximum; None if there are no values."""
        return (state[0], state[1]) if state else (None, None)


class _CountStatistic:
    def merge(self, one: State, other: State) -> State:
        return _to_state(_sum_counts(one, other))

    def finish(self, state: State) -> Counter[Any]:
        return _sum_counts(state)


@dataclass(frozen=True)
class ValueCountStatistic(_CountStatistic):
    """Counts each value, in order of first occurrence; None counts missing values."""

    column: str
    in_lists: bool = True
    """Count the items of lists; if False, count whole lists, as tuples."""

    def partial(self, block: Block) -> State:
        return _to_state(count_values(block.columns[self.column], self.in_lists))


@dataclass(frozen=True)
class TokenCountStatistic(_CountStatistic):
    """Counts each token, in order of first occurrence."""

    column: str
    tokenize: Callable[[str], list[str]]

    def partial(self, block: Block) -> State:
        counts: Counter[Any] = Counter()
        for text in columns.to_python_values(block.columns[self.column]):
            if text is not None:
                counts.update(self.tokenize(text))
        return _to_state(counts)


@dataclass(frozen=True)
class QuantileStatistic:
    """Quantiles, interpolated linearly between neighbours.

    Exact up to `precision` values. Beyond that, values are sorted and every second one is kept with twice the weight,
    repeatedly: the rank of a quantile is then off by less than log2(n / precision) / precision of all n.
    """

    column: str
    quantiles: tuple[float, ...]
    precision: int
    who: str

    def partial(self, block: Block) -> State:
        values = columns.drop_missing(columns.numeric_column(block, self.column, self.who)).astype(np.float64)
        return self._thin_levels([values])

    def merge(self, one: State, other: State) -> State:
        levels = max(len(one), len(other))
        empty = np.empty(0)
        pairs = [[part[level] if level < len(part) else empty for part in (one, other)] for level in range(levels)]
        return self._thin_levels([np.concatenate(pair) for pair in pairs])

    def finish(self, state: State) -> list[float | None]:
        values = np.concatenate(state)
        if not len(values):
            return [None] * len(self.quantiles)
        weights = np.repeat(2 ** np.arange(len(state)), [len(level) for level in state])
        order = np.argsort(values, kind="stable")
        values, ends = values[order], np.cumsum(weights[order])
        return [_value_at_rank(values, ends, quantile * (int(ends[-1]) - 1)) for quantile in self.quantiles]

    def _thin_levels(self, levels: list[columns.Array]) -> list[columns.Array]:
        """Keep at most `precision` values on each level; a value on level k stands for 2 ** k."""
        level = 0
        while level < len(levels):
            values = levels[level]
            if len(values) > self.precision:
                values = np.sort(values)
                even = len(values) // 2 * 2
                if level + 1 == len(levels):
                    levels.append(np.empty(0))
                # Alternating between the lower and the upper value of each pair keeps the ranks from drifting.
                half = values[level % 2 : even : 2]
                levels[level], levels[level + 1] = values[even:], np.concatenate([levels[level + 1], half])
            level += 1
        return levels


def count_values(values: Column, in_lists: bool) -> Counter[Any]:
    are_lists = columns.holds_lists(values)
    if are_lists and in_lists:
        return _count_list_items(values)
    arrow = None if are_lists else columns.to_plain_arrow(values)
    return Counter(columns.to_python_values(values)) if arrow is None else _value_counts(arrow)


def _count_list_items(values: Column) -> Counter[Any]:
    flat: Any = None
    if isinstance(values, np.ndarray):
        flat = None if values.dtype == object else columns.to_plain_arrow(values.reshape(-1))
        missing = 0
    else:
        flat, missing = columns.to_plain_arrow(pc.list_flatten(values)), values.null_count
    if flat is None:
        rows = columns.to_lists(values)
        missing = sum(row is None for row in rows)
        counts = Counter(item for row in rows if row is not None for item in row)
    else:
        counts = _value_counts(flat)
    if missing:
        counts[None] += missing
    return counts


def _value_counts(values: Any) -> Counter[Any]:
    try:
        result = pc.value_counts(values)
    except pa.ArrowNotImplementedError:
        return Counter(values.to_pylist())
    counts: Counter[Any] = Counter()
    for value, count in zip(result.field(0).to_pylist(), result.field(1).to_pylist(), strict=True):
        counts[value] += count
    return counts


def _to_state(counts: Counter[Any]) -> State:
    return [list(counts), list(counts.values())]


def _sum_counts(*states: State) -> Counter[Any]:
    counts: Counter[Any] = Counter()
    for values, numbers in states:
        for value, count in zip(values, numbers, strict=True):
            counts[value] += count
    return counts


def _value_at_rank(values: columns.Array, ends: columns.Array, rank: float) -> float:
    """Return the value at a rank. Each value covers as many ranks as `ends` grows by."""
    below, above = math.floor(rank), math.ceil(rank)
    low, high = (float(values[np.searchsorted(ends, place, side="right")]) for place in (below, above))
    return low if low == high else low + (high - low) * (rank - below)
