"""Aggregates that count values, and approximate ones whose memory is bounded. `aggregate.py` exports them.

They use no random numbers: the same rows give the same result, with any number of processes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paceline._core.arguments import bad_value, check_int, check_number
from paceline.data.block import Block, type_of
from paceline.data.column import as_nullable, is_list, is_number_type, merge_zeros
from paceline.data.planning.group_aggregation import AggregateFnV2

_CAPACITY_FACTOR = 8
"""Values kept on each level of a `QuantileSketch`, as a multiple of `quantile_precision`."""


class ValueCounter(AggregateFnV2):
    """The distinct values and how often each occurs: `{"values": [...], "counts": [...]}`, without missing values.

    They are in the order of their first occurrence.
    """

    def __init__(self, on: str, alias_name: str | None = None) -> None:
        super().__init__(alias_name or f"value_counter({_check_on(self, on)})", dict, on=on, ignore_nulls=True)

    def aggregate_block(self, block: Any) -> dict[str, list[Any]]:
        return _format_counts(_count_values(block, self.on or ""))

    def combine(
        self, current_accumulator: dict[str, list[Any]], new_accumulator: dict[str, list[Any]]
    ) -> dict[str, list[Any]]:
        both = (
            dict(zip(each["values"], each["counts"], strict=True)) for each in (current_accumulator, new_accumulator)
        )
        return _format_counts(_add_counts(*both))


def _format_counts(counts: Mapping[Any, int]) -> dict[str, list[Any]]:
    return {"values": list(counts), "counts": list(counts.values())}


class ApproximateQuantile(AggregateFnV2):
    """Approximate quantiles of a column of numbers: a list with a value of the column for each of `quantiles`.

    Missing values are left out. For n values, the position of a result among the sorted values is wrong by at most
    n * L / C, where C is 8 * `quantile_precision` and L is log2(n / C), rounded up; up to C values it is exact. With
    the default precision that is 0.3 % of a billion values.
    """

    def __init__(
        self, on: str, quantiles: Sequence[float], quantile_precision: int = 800, alias_name: str | None = None
    ) -> None:
        if not isinstance(quantiles, list | tuple | np.ndarray) or not len(quantiles):
            raise bad_value("quantiles", "a list of numbers from 0 to 1", quantiles)
        self.quantiles = [check_number("quantiles", q, at_least=0, at_most=1) for q in quantiles]
        self.quantile_precision = check_int("quantile_precision", quantile_precision, at_least=1)
        super().__init__(
            alias_name or f"approx_quantile({_check_on(self, on)})",
            lambda: self.zero(quantile_precision),
            on=on,
            ignore_nulls=True,
        )

    @staticmethod
    def zero(quantile_precision: int) -> QuantileSketch:
        """Return the sketch of no values."""
        return QuantileSketch(_CAPACITY_FACTOR * quantile_precision)

    def aggregate_block(self, block: Any) -> QuantileSketch | None:
        values = as_nullable(Block.from_batch(block).column(self.on or ""))
        if not is_number_type(values.type):
            raise TypeError(f"{self.name}: the column {self.on!r} must have numbers, got {values.type}")
        numbers = pc.cast(pc.drop_null(values), pa.float64(), safe=False).to_numpy()
        empty = self.zero(self.quantile_precision)
        return empty.merge(QuantileSketch(empty.capacity, (numbers,), (False,))) if len(numbers) else None

    def combine(self, current_accumulator: QuantileSketch, new: QuantileSketch) -> QuantileSketch:
        return current_accumulator.merge(new)

    def finalize(self, accumulator: QuantileSketch) -> list[float | None]:
        return accumulator.find_quantiles(self.quantiles)


@dataclass(frozen=True)
class QuantileSketch:
    """A sample of numbers from which quantiles are found. A value of level h stands for 2**h values.

    A level with more than `capacity` values is sorted, and every second value moves up. That changes the rank of any
    number by at most 2**h, and happens at most n / (capacity * 2**h) times. Moving odd and even positions in turn lets
    most of these errors cancel.
    """

    capacity: int
    levels: tuple[Any, ...] = ()
    moves_odd: tuple[bool, ...] = ()

    def merge(self, other: QuantileSketch) -> QuantileSketch:
        num_levels = max(len(self.levels), len(other.levels))
        levels = [_join_level(self.levels, other.levels, level) for level in range(num_levels)]
        odd = [*self.moves_odd, *other.moves_odd[len(self.moves_odd) :]]
        level = 0
        while level < len(levels):
            values = levels[level]
            if len(values) > self.capacity:
                values = np.sort(values)
                even = len(values) // 2 * 2
                moved = values[int(odd[level]) : even : 2]
                levels[level] = values[even:]
                odd[level] = not odd[level]
                if level + 1 == len(levels):
                    levels.append(np.empty(0))
                    odd.append(False)
                levels[level + 1] = np.concatenate([levels[level + 1], moved])
            level += 1
        return QuantileSketch(self.capacity, tuple(levels), tuple(odd))

    def find_quantiles(self, quantiles: Sequence[float]) -> list[float | None]:
        values = np.concatenate([*self.levels, np.empty(0)])
        if not len(values):
            return [None for _ in quantiles]
        weights = np.concatenate([np.full(len(each), 2**level) for level, each in enumerate(self.levels)])
        order = np.argsort(values, kind="stable")
        ranks = np.cumsum(weights[order])
        found = np.searchsorted(ranks, np.asarray(quantiles) * ranks[-1])
        return [float(value) for value in values[order][np.minimum(found, len(values) - 1)]]


def _join_level(first: Sequence[Any], second: Sequence[Any], level: int) -> Any:
    return np.concatenate([each[level] for each in (first, second) if level < len(each)])


class ApproximateTopK(AggregateFnV2):
    """The `k` most frequent values, most frequent first: `[{"word": "a", "count": 3}, ...]` for the column `word`.

    At most 2**log_capacity values are counted at a time. If there are more distinct ones, the rarest are dropped: a
    count is at most n / 2**log_capacity too high and never too low, and a value that is more frequent than that is
    never dropped. With `encode_lists`, the elements of lists are counted. Missing values are not.
    """

    def __init__(
        self,
        on: str,
        k: int,
        log_capacity: int = 15,
        alias_name: str | None = None,
        encode_lists: bool = False,
    ) -> None:
        self.k = check_int("k", k, at_least=1)
        self.log_capacity = check_int("log_capacity", log_capacity, at_least=1, at_most=30)
        self.encode_lists = bool(encode_lists)
        super().__init__(
            alias_name or f"approx_topk({_check_on(self, on)})",
            lambda: self.zero(log_capacity),
            on=on,
            ignore_nulls=True,
        )

    @staticmethod
    def zero(log_capacity: int) -> FrequencySketch:
        """Return the sketch of no values."""
        return FrequencySketch(2**log_capacity)

    def aggregate_block(self, block: Any) -> FrequencySketch:
        return self.zero(self.log_capacity).merge(
            FrequencySketch(0, _count_values(block, self.on or "", self.encode_lists))
        )

    def combine(self, current_accumulator: FrequencySketch, new: FrequencySketch) -> FrequencySketch:
        return current_accumulator.merge(new)

    def finalize(self, accumulator: FrequencySketch) -> list[dict[str, Any]]:
        ranked = sorted(accumulator.counts.items(), key=lambda item: -item[1])[: self.k]
        return [{self.on or "": value, "count": count + accumulator.num_dropped} for value, count in ranked]


@dataclass(frozen=True)
class FrequencySketch:
    """Counts of at most `capacity` values, after Misra and Gries.

    When there are more, all are reduced by the count of the first that is too many. The true count of a value is
    between its count and that plus `num_dropped`.
    """

    capacity: int
    counts: Mapping[Any, int] = field(default_factory=dict)
    num_dropped: int = 0

    def merge(self, other: FrequencySketch) -> FrequencySketch:
        counts = _add_counts(self.counts, other.counts)
        dropped = 0
        if len(counts) > self.capacity:
            dropped = sorted(counts.values(), reverse=True)[self.capacity]
            counts = {value: count - dropped for value, count in counts.items() if count > dropped}
        return FrequencySketch(self.capacity, counts, self.num_dropped + other.num_dropped + dropped)


def _check_on(aggregate: AggregateFnV2, on: str) -> str:
    if not isinstance(on, str):
        raise TypeError(f"{type(aggregate).__name__}: on must be the name of a column, got {on!r}")
    return on


def list_values(block: Block, name: str) -> Any:
    """Return a column of single values or of lists as Arrow data, with missing values as null."""
    values = block.column(name)
    if isinstance(values, np.ndarray) and values.ndim == 2:
        return pa.chunked_array([pa.array(list(values))])
    if isinstance(values, np.ndarray) and values.ndim > 1:
        raise TypeError(f"cannot aggregate the column {name!r} of type {type_of(values)}")
    return as_nullable(values)


def _count_values(block: Any, name: str, flatten: bool = False) -> dict[Any, int]:
    """Count the values of a column, without missing ones, in the order of their first occurrence."""
    values = list_values(Block.from_batch(block), name)
    if flatten and is_list(values.type):
        values = as_nullable(pc.list_flatten(values))
    values = pc.drop_null(values)
    if pa.types.is_nested(values.type):
        return dict(Counter(map(hashable, values.to_pylist())))
    pairs = pc.value_counts(merge_zeros(values))
    return dict(zip(pairs.field(0).to_pylist(), pairs.field(1).to_pylist(), strict=True))


def _add_counts(first: Mapping[Any, int], second: Mapping[Any, int]) -> dict[Any, int]:
    counts = dict(first)
    for value, count in second.items():
        counts[value] = counts.get(value, 0) + count
    return counts


def hashable(value: Any) -> Any:
    """Return lists and dicts as tuples."""
    if isinstance(value, Mapping):
        return tuple((name, hashable(item)) for name, item in value.items())
    return tuple(map(hashable, value)) if isinstance(value, list) else value
