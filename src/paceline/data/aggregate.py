"""Aggregates over a group of rows or all rows: sums, means, deviations and more.

Null and NaN both count as missing, whichever the column uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from paceline._core.arguments import bad_value, check_number
from paceline._core.lazy_imports import explain_module
from paceline.data.block import Block, Column, TensorType, as_arrow, as_numpy, column_of, list_columns, type_of
from paceline.data.column import as_nullable, as_values, is_list, is_number_type, merge_zeros
from paceline.data.order.sharding import RowDelivery
from paceline.data.planning.group_aggregation import AggregateFn as AggregateFn
from paceline.data.planning.group_aggregation import AggregateFnV2 as AggregateFnV2
from paceline.data.planning.group_aggregation import Array, GroupAggregation, Reduction, SortedGroups
from paceline.data.planning.plan import Map, PlanNode, Transform, TransformScope
from paceline.data.planning.sort_keys import SortKeys
from paceline.data.sketches import ApproximateQuantile as ApproximateQuantile
from paceline.data.sketches import ApproximateTopK as ApproximateTopK
from paceline.data.sketches import ValueCounter as ValueCounter
from paceline.data.sketches import hashable, list_values

Result = TypeVar("Result")


class _ColumnAggregate(AggregateFnV2):
    """An aggregate of one column that Arrow computes for all groups at once.

    If `nulls_spoil`, the last state is the number of missing values in the group: with `ignore_nulls=False` they make
    the result null. `aggregate_block`, `combine` and `finalize` do the same for one group; an accumulator is its state,
    or a tuple if there are several.
    """

    label = ""
    needs_column = True
    needs_numbers = True
    nulls_spoil = True

    def __init__(
        self,
        on: str | None,
        ignore_nulls: bool = True,
        alias_name: str | None = None,
        zero_factory: Callable[[], Any] | None = None,
    ) -> None:
        name = alias_name or f"{self.label}({on or ''})"
        super().__init__(name, zero_factory or _return_none, on=on, ignore_nulls=ignore_nulls)
        if on is None and self.needs_column:
            raise TypeError(f"{type(self).__name__}: on must be the name of a column, got None")

    def list_reductions(self, block: Block) -> list[Reduction] | None:
        values = self._checked_values(block)
        missing = (values, "count", pc.CountOptions(mode="only_null"))
        return [*self.reduce_values(values), *([missing] if self.nulls_spoil else ())]

    def compute_states(self, groups: SortedGroups) -> list[Column]:
        reductions = self.list_reductions(groups.block) or ()
        return self.states_from_reductions([groups.reduce_values(*each) for each in reductions])

    def _checked_values(self, block: Block) -> Any:
        values = _nullable_values(block, self.on or "")
        if self.needs_numbers and not is_number_type(values.type):
            raise TypeError(f"{self.name}: the column {self.on!r} must have numbers, got {values.type}")
        return values

    def merge_states(self, groups: SortedGroups, states: Sequence[Column]) -> list[Column]:
        if not self.nulls_spoil:
            return self.join_states(groups, states)
        return [*self.join_states(groups, states[:-1]), groups.reduce_values(states[-1], "sum")]

    def finalize_states(self, states: Sequence[Column]) -> Column:
        values = as_arrow(self.states_to_column(states[:-1] if self.nulls_spoil else states))
        if self.ignore_nulls or not self.nulls_spoil:
            return values
        is_complete = pc.equal(as_arrow(states[-1]), 0)
        return pc.if_else(is_complete, values, pa.scalar(None, values.type))

    def empty_value(self) -> Any:
        return self.finalize(None if self.ignore_nulls and self.nulls_spoil else self.zero_factory())

    def reduce_values(self, values: Any) -> list[Reduction]:
        """The Arrow functions that reduce the values of a group to its states."""
        raise NotImplementedError

    def join_states(self, groups: SortedGroups, states: Sequence[Column]) -> list[Column]:
        raise NotImplementedError

    def states_to_column(self, states: Sequence[Column]) -> Column:
        return states[0]

    def aggregate_block(self, block: Any) -> Any:
        rows = Block.from_batch(block)
        return self._to_accumulator(self.compute_states(_as_one_group(rows))) if rows.num_rows else self.zero_factory()

    def combine(self, current_accumulator: Any, new: Any) -> Any:
        if current_accumulator is None or new is None:
            return (new if current_accumulator is None else current_accumulator) if self.ignore_nulls else None
        states = self._to_states(current_accumulator, new)
        return self._to_accumulator(self.merge_states(_as_one_group(Block({}, num_rows=2)), states))

    def finalize(self, accumulator: Any) -> Any:
        return None if accumulator is None else as_arrow(self.finalize_states(self._to_states(accumulator)))[0].as_py()

    def output_field(self, input_schema: Any) -> Any:
        types = dict(zip(input_schema.names, input_schema.types, strict=True))
        if self.on is not None and self.on not in types:
            raise KeyError(f"unknown column {self.on!r}; the columns are: {list_columns(types, self.on)}")
        kind = types.get(self.on, pa.null())
        values = np.zeros((1, 1)) if isinstance(kind, TensorType) else pa.nulls(1, kind)
        groups = _as_one_group(Block({self.on or "": values}))
        return pa.field(self.name, type_of(self.finalize_states(self.compute_states(groups))))

    def _to_accumulator(self, states: Sequence[Column]) -> Any:
        values = [as_arrow(state)[0].as_py() for state in states]
        if self.nulls_spoil and values.pop() and not self.ignore_nulls:
            return None
        return values[0] if len(values) == 1 else tuple(values)

    def _to_states(self, *accumulators: Any) -> list[Column]:
        parts = [each if isinstance(each, tuple) else (each,) for each in accumulators]
        missing = [np.zeros(len(parts), np.int64)] if self.nulls_spoil else []
        return [*(column_of(values) for values in zip(*parts, strict=True)), *missing]


def _return_none() -> None:
    """The first accumulator of an aggregate that needs none."""


def _as_one_group(rows: Block) -> SortedGroups:
    return SortedGroups(rows, SortKeys.ascending(()), np.zeros(1, np.int64))


class _CountAggregate(_ColumnAggregate):
    """An aggregate whose states are numbers of values. Missing values are counted too, in columns of any type."""

    needs_numbers = False
    nulls_spoil = False

    def _checked_values(self, block: Block) -> Any:
        values = block.column(self.on or "")
        if isinstance(values, np.ndarray) and (values.ndim > 1 or values.dtype == object):
            rows = values if values.ndim == 1 else np.ones(len(values))
            return pa.chunked_array([[None if row is None else 1 for row in rows]], pa.int8())
        return as_nullable(values)

    def join_states(self, groups: SortedGroups, states: Sequence[Column]) -> list[Column]:
        return [groups.reduce_values(state, "sum") for state in states]


class Count(_CountAggregate):
    """The number of rows; with `on` and `ignore_nulls=True`, the number of non-missing values in that column."""

    label = "count"
    needs_column = False

    def __init__(self, on: str | None = None, ignore_nulls: bool = False, alias_name: str | None = None) -> None:
        super().__init__(on, ignore_nulls, alias_name, int)

    def _checked_values(self, block: Block) -> Any:
        return np.zeros(block.num_rows, np.int8) if self.on is None else super()._checked_values(block)

    def reduce_values(self, values: Any) -> list[Reduction]:
        return [(values, "count", pc.CountOptions(mode="only_valid" if self.ignore_nulls else "all"))]


class MissingValuePercentage(_CountAggregate):
    """How many values of a hundred are missing."""

    label = "missing_pct"

    def __init__(self, on: str, alias_name: str | None = None) -> None:
        super().__init__(on, False, alias_name)

    def reduce_values(self, values: Any) -> list[Reduction]:
        return [(values, "count", pc.CountOptions(mode=mode)) for mode in ("only_null", "all")]

    def states_to_column(self, states: Sequence[Column]) -> Column:
        return _compute_percentages(states[0], states[1])


class ZeroPercentage(_CountAggregate):
    """How many values of a hundred are zero. With `ignore_nulls=False`, missing values count as values."""

    label = "zero_pct"
    needs_numbers = True

    def _checked_values(self, block: Block) -> Any:
        return _ColumnAggregate._checked_values(self, block)

    def reduce_values(self, values: Any) -> list[Reduction]:
        zeros = pc.if_else(pc.equal(_as_floats(values), 0.0), 0, None)
        return [(zeros, "count", None), (values, "count", None), (values, "count", pc.CountOptions(mode="all"))]

    def states_to_column(self, states: Sequence[Column]) -> Column:
        return _compute_percentages(states[0], states[1 if self.ignore_nulls else 2])


def _as_floats(values: Any) -> Any:
    return pc.cast(values, pa.float64(), safe=False)  # integers above 2**53 are rounded


def _compute_percentages(parts: Column, totals: Column) -> Column:
    totals = as_numpy(totals)
    return pa.array(100.0 * as_numpy(parts) / np.maximum(totals, 1), mask=totals == 0)


class _ArrowAggregate(_ColumnAggregate):
    """An aggregate whose Arrow function both reduces values and merges partial results."""

    function = ""

    def reduce_values(self, values: Any) -> list[Reduction]:
        return [(values, self.function, None)]

    def join_states(self, groups: SortedGroups, states: Sequence[Column]) -> list[Column]:
        return [groups.reduce_values(states[0], self.function)]


class Sum(_ArrowAggregate):
    """The sum; null for a group with only missing values."""

    label = function = "sum"

    def __init__(self, on: str, ignore_nulls: bool = True, alias_name: str | None = None) -> None:
        super().__init__(on, ignore_nulls, alias_name)


class _Extreme(_ArrowAggregate):
    """The smallest or largest value. `zero_factory` returns a value to start from; `ignore_nulls=True` ignores it."""

    needs_numbers = False
    choose: Callable[..., Any]

    def states_to_column(self, states: Sequence[Column]) -> Column:
        start = None if self.ignore_nulls else self.zero_factory()
        if start is None:
            return states[0]
        return column_of([None if value is None else self.choose(start, value) for value in as_values(states[0])])


class Min(_Extreme):
    label = function = "min"
    choose = staticmethod(min)


class Max(_Extreme):
    label = function = "max"
    choose = staticmethod(max)


class AbsMax(Max):
    """The largest absolute value."""

    label = "abs_max"
    needs_numbers = True

    def reduce_values(self, values: Any) -> list[Reduction]:
        return [(pc.abs(values), self.function, None)]


class Std(_ColumnAggregate):
    """The standard deviation; NaN for a group of `ddof` values or fewer."""

    label = "std"

    def __init__(self, on: str, ddof: int = 1, ignore_nulls: bool = True, alias_name: str | None = None) -> None:
        super().__init__(on, ignore_nulls, alias_name)
        self.ddof = ddof

    def reduce_values(self, values: Any) -> list[Reduction]:
        numbers = _as_floats(values)
        return [(numbers, "count", None), (numbers, "mean", None), (numbers, "variance", None)]

    def states_from_reductions(self, reduced: Sequence[Column]) -> list[Column]:
        # The state is count, mean and sum of squared deviations: sums of squared values would lose all precision if the
        # mean is large.
        counts, means, variances, missing = reduced
        return [counts, pc.fill_null(means, 0.0), pc.multiply(pc.fill_null(variances, 0.0), counts), missing]

    def join_states(self, groups: SortedGroups, states: Sequence[Column]) -> list[Column]:
        return _merge_moments(groups, *(as_numpy(state) for state in states))

    def states_to_column(self, states: Sequence[Column]) -> Column:
        count, _, squares = (as_numpy(state) for state in states)
        with np.errstate(all="ignore"):
            deviation = np.sqrt(np.where(count > self.ddof, squares / (count - self.ddof), np.nan))
        return pa.array(deviation, mask=count == 0)


class Mean(Std):
    label = "mean"

    def __init__(self, on: str, ignore_nulls: bool = True, alias_name: str | None = None) -> None:
        super().__init__(on, 0, ignore_nulls, alias_name)

    def states_to_column(self, states: Sequence[Column]) -> Column:
        return pa.array(as_numpy(states[1]), mask=as_numpy(states[0]) == 0)


def _merge_moments(groups: SortedGroups, count: Array, mean: Array, squares: Array) -> list[Column]:
    """Merge count, mean and sum of squared deviations of the parts of each group."""

    def total(values: Array) -> Array:
        return np.add.reduceat(values, groups.starts)

    with np.errstate(all="ignore"):
        counts = total(count)
        # Relative to the group's first mean, which keeps the sums small.
        origin = mean[groups.starts]
        means = origin + total(count * (mean - origin[groups.ids])) / np.maximum(counts, 1)
        return [counts, means, total(squares + count * (mean - means[groups.ids]) ** 2)]


class _ValueListAggregate(_ColumnAggregate):
    """An aggregate that needs all values of a group, or all distinct ones: its first state is a list."""

    def list_reductions(self, block: Block) -> list[Reduction] | None:
        return None  # Arrow's function for distinct values crashes on a column of nulls

    def compute_states(self, groups: SortedGroups) -> list[Column]:
        values = self._checked_values(groups.block)
        lists = self.collect_lists(groups, values, groups.ids)
        missing = pc.CountOptions(mode="only_null")
        return [lists, *([groups.reduce_values(values, "count", missing)] if self.nulls_spoil else ())]

    def collect_lists(self, groups: SortedGroups, values: Any, ids: Array) -> Any:
        """Return a list for each group. `ids` are the ascending group numbers of the values."""
        return _pack_lists(values, np.bincount(ids, minlength=groups.num_groups))

    def join_states(self, groups: SortedGroups, states: Sequence[Column]) -> list[Column]:
        parts = as_arrow(states[0])
        ids = np.repeat(groups.ids, as_numpy(pc.list_value_length(parts)))
        return [self.collect_lists(groups, pc.list_flatten(parts), ids)]


def _pack_lists(values: Any, lengths: Array) -> Any:
    """Pack consecutive values into lists of these lengths."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    return pa.chunked_array([pa.ListArray.from_arrays(offsets, values)])


class AsList(_ValueListAggregate):
    """All values as a list, in the order of the rows. Everything is kept in memory."""

    label = "list"
    needs_numbers = False
    nulls_spoil = False

    def __init__(self, on: str, alias_name: str | None = None, ignore_nulls: bool = False) -> None:
        super().__init__(on, ignore_nulls, alias_name, list)

    def compute_states(self, groups: SortedGroups) -> list[Column]:
        values = as_arrow(self._checked_values(groups.block))
        if not self.ignore_nulls:  # NaN stays NaN
            return [self.collect_lists(groups, as_arrow(groups.block.column(self.on or "")), groups.ids)]
        return [self.collect_lists(groups, pc.drop_null(values), groups.ids[as_numpy(pc.is_valid(values))])]


class Quantile(_ValueListAggregate):
    """The `q` quantile, interpolated between the two nearest values."""

    label = "quantile"

    def __init__(self, on: str, q: float = 0.5, ignore_nulls: bool = True, alias_name: str | None = None) -> None:
        check_number("q", q, at_least=0, at_most=1)
        super().__init__(on, ignore_nulls, alias_name)
        self.q = q

    def collect_lists(self, groups: SortedGroups, values: Any, ids: Array) -> Any:
        return super().collect_lists(groups, _as_floats(values), ids)

    def states_to_column(self, states: Sequence[Column]) -> Column:
        lists = (pc.drop_null(part.values).to_numpy(zero_copy_only=False) for part in as_arrow(states[0]))
        return pa.array([float(np.quantile(part, self.q)) if len(part) else None for part in lists], pa.float64())


class Unique(_ValueListAggregate):
    """The distinct values, in no particular order.

    `encode_lists` says how to count a list in the column: by default, or with False, a value; with True or
    `ListEncodingMode.FLATTEN` several values; with `ListEncodingMode.HASH` its hash, a number, is the value.
    """

    label = "unique"
    needs_numbers = False
    nulls_spoil = False

    class ListEncodingMode(StrEnum):
        """What `Unique` does with lists."""

        FLATTEN = "FLATTEN"
        HASH = "HASH"

    def __init__(
        self,
        on: str,
        ignore_nulls: bool = False,
        alias_name: str | None = None,
        encode_lists: bool | ListEncodingMode | None = None,
    ) -> None:
        super().__init__(on, ignore_nulls, alias_name, list)
        if encode_lists is True:
            encode_lists = self.ListEncodingMode.FLATTEN
        elif encode_lists not in (None, False, *self.ListEncodingMode):
            raise bad_value("encode_lists", "True, False, None or a Unique.ListEncodingMode", encode_lists)
        self.encode_lists = encode_lists or None

    def compute_states(self, groups: SortedGroups) -> list[Column]:
        values, ids = list_values(groups.block, self.on or ""), groups.ids
        if self.encode_lists and is_list(values.type):
            if self.encode_lists == self.ListEncodingMode.FLATTEN:
                ids = np.repeat(ids, as_numpy(pc.fill_null(pc.list_value_length(values), 0)))
                values = as_nullable(pc.list_flatten(values))
            else:
                hashes = (
                    None if row is None else xxhash.xxh3_64_intdigest(repr(row).encode()) for row in values.to_pylist()
                )
                values = pa.chunked_array([pa.array(hashes, pa.uint64())])
        return [self.collect_lists(groups, values, ids)]

    def collect_lists(self, groups: SortedGroups, values: Any, ids: Array) -> Any:
        if self.ignore_nulls:
            ids, values = ids[as_numpy(pc.is_valid(values))], pc.drop_null(values)
        if pa.types.is_nested(values.type) or pa.types.is_null(values.type):  # Arrow cannot compare these
            first_rows: dict[Any, int] = {}
            for i, (group, row) in enumerate(zip(ids.tolist(), values.to_pylist(), strict=True)):
                first_rows.setdefault((group, hashable(row)), i)
            kept = np.fromiter(first_rows.values(), np.int64, len(first_rows))
            return super().collect_lists(groups, values.take(pa.array(kept)), ids[kept])
        if groups.num_groups == 1:  # in the memory of the distinct values
            distinct = pc.unique(merge_zeros(values))
            return _pack_lists(distinct, np.array([len(distinct)]))
        lists = groups.reduce_values(merge_zeros(values), "distinct", pc.CountOptions(mode="all"), ids)
        lengths = np.zeros(groups.num_groups, np.int64)
        lengths[np.unique(ids)] = as_numpy(pc.list_value_length(lists))
        return _pack_lists(pc.list_flatten(lists), lengths)


class CountDistinct(Unique):
    """The number of distinct values."""

    label = "count_distinct"

    def __init__(self, on: str, ignore_nulls: bool = True, alias_name: str | None = None) -> None:
        super().__init__(on, ignore_nulls, alias_name)

    def states_to_column(self, states: Sequence[Column]) -> Column:
        return pc.list_value_length(states[0]).cast(pa.int64())


class _OverriddenAggregate(AggregateFnV2):
    """Calls the methods for one group of an aggregate of this module: a subclass overrides one of them."""

    def __init__(self, aggregate: _ColumnAggregate) -> None:
        super().__init__(aggregate.name, aggregate.zero_factory, on=aggregate.on, ignore_nulls=aggregate.ignore_nulls)
        self.aggregate = aggregate

    def aggregate_block(self, block: Any) -> Any:
        return self.aggregate.aggregate_block(block)

    def combine(self, current_accumulator: Any, new: Any) -> Any:
        return self.aggregate.combine(current_accumulator, new)

    def finalize(self, accumulator: Any) -> Any:
        return self.aggregate.finalize(accumulator)


def _with_overrides(aggregate: AggregateFn) -> AggregateFn:
    if isinstance(aggregate, _ColumnAggregate) and any(
        getattr(type(aggregate), name) is not getattr(_ColumnAggregate, name)
        for name in ("aggregate_block", "combine", "finalize")
    ):
        return _OverriddenAggregate(aggregate)
    return aggregate


def _nullable_values(block: Block, name: str) -> Any:
    """Return a column as Arrow data, with missing values as null."""
    values = block.column(name)
    if isinstance(values, np.ndarray) and values.ndim > 1:
        raise TypeError(f"cannot aggregate the column {name!r} of type {type_of(values)}: only single values can be")
    return as_nullable(values)


class ColumnAggregates(Generic[Result]):
    """The methods of datasets and of groups that compute one aggregate of some columns, or of all if `on` is None."""

    def _aggregate_columns(self, on: str | Sequence[str] | None, of: Callable[[str], AggregateFn]) -> Result:
        raise NotImplementedError

    def sum(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> Result:
        """Sum one or more columns, as `sum(x)`. Without `on`, all columns that are not keys of a group."""
        return self._aggregate_columns(on, lambda name: Sum(name, ignore_nulls))

    def min(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> Result:
        return self._aggregate_columns(on, lambda name: Min(name, ignore_nulls))

    def max(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> Result:
        return self._aggregate_columns(on, lambda name: Max(name, ignore_nulls))

    def mean(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> Result:
        return self._aggregate_columns(on, lambda name: Mean(name, ignore_nulls))

    def std(self, on: str | Sequence[str] | None = None, ddof: int = 1, ignore_nulls: bool = True) -> Result:
        return self._aggregate_columns(on, lambda name: Std(name, ddof, ignore_nulls))


@dataclass(frozen=True)
class PartialAggregates(Transform):
    """Computes aggregate states over the rows of a unit: one row of states per block."""

    aggregates: tuple[AggregateFn, ...]

    @property
    def name(self) -> str:
        return f"aggregate({', '.join(aggregate.name for aggregate in self.aggregates)})"

    def apply(self, blocks: Iterator[Block], scope: TransformScope) -> Iterator[Block]:
        combined = GroupAggregation(SortKeys.ascending(()), self.aggregates)
        for block in blocks:
            if block.num_rows:
                yield combined.arrange(block, 0, 0)[0]


_MAX_STATES = 256
_MIN_MERGED_BYTES = 16 << 20


def plan_partial_aggregates(plan: PlanNode, aggregates: Sequence[AggregateFn]) -> PlanNode:
    """Return a plan that computes aggregate states over all rows of `plan`, for `finish_aggregates`."""
    return Map(plan, PartialAggregates(check_aggregates(aggregates)))


def finish_aggregates(deliveries: Iterable[RowDelivery], aggregates: Sequence[AggregateFn]) -> dict[str, Any]:
    """Return each aggregate's value by name, from the output of a `plan_partial_aggregates` plan."""
    combined = GroupAggregation(SortKeys.ascending(()), check_aggregates(aggregates))
    states: list[Block] = []
    num_new, merged_bytes = 0, 0
    for delivery in deliveries:
        states.append(delivery.block)
        num_new += delivery.block.nbytes
        # States such as distinct values grow with the rows: those not yet merged may take as much as the merged ones.
        if len(states) >= _MAX_STATES or num_new > max(_MIN_MERGED_BYTES, merged_bytes):
            states = [combined.merge_states(states)]
            num_new, merged_bytes = 0, states[0].nbytes
    if not states:
        return {aggregate.name: aggregate.empty_value() for aggregate in combined.aggregates}
    result = combined.finish_states(states)
    return {name: as_values(values)[0] for name, values in result.columns.items()}


def check_aggregates(aggregates: Sequence[AggregateFn], keys: Sequence[str] = ()) -> tuple[AggregateFn, ...]:
    names = list(keys)
    for aggregate in aggregates:
        if not isinstance(aggregate, AggregateFn):
            raise TypeError(f"an aggregate must be an AggregateFn such as Sum('x'), got {aggregate!r}")
        if aggregate.name in names:
            raise ValueError(
                f"aggregates must have different names, got two of {aggregate.name!r}\n\nhint: set alias_name"
            )
        names.append(aggregate.name)
    if not aggregates:
        raise ValueError("aggregate() needs at least one aggregate, such as Sum('x')")
    return tuple(map(_with_overrides, aggregates))


explain_module(__name__)
