"""Aggregates over a group of rows or all rows: sums, means, deviations and more.

Null and NaN both count as missing, whichever the column uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paceline._core.arguments import check_number
from paceline._core.lazy_imports import explain_module
from paceline.data.block import Block, Column, as_arrow, as_numpy, type_of
from paceline.data.column import as_nullable, merge_zeros
from paceline.data.order.sharding import RowDelivery
from paceline.data.planning.group_aggregation import AggregateFn as AggregateFn
from paceline.data.planning.group_aggregation import Array, GroupAggregation, Reduction, SortedGroups
from paceline.data.planning.plan import Map, PlanNode, Transform, TransformScope
from paceline.data.planning.sort_keys import SortKeys

Result = TypeVar("Result")


class _ColumnAggregate(AggregateFn):
    """An aggregate of one column. Its last state is the number of missing values in the group."""

    label = ""
    needs_numbers = True

    def __init__(self, on: str, ignore_nulls: bool = True, alias_name: str | None = None) -> None:
        if not isinstance(on, str):
            raise TypeError(f"{type(self).__name__}: on must be the name of a column, got {on!r}")
        self.on = on
        self.ignore_nulls = ignore_nulls
        self.name = alias_name or f"{self.label}({on})"

    def list_reductions(self, block: Block) -> list[Reduction] | None:
        values = self._checked_values(block)
        missing = (values, "count", pc.CountOptions(mode="only_null"))
        return [*self.reduce_values(values), missing]

    def compute_states(self, groups: SortedGroups) -> list[Column]:
        reductions = self.list_reductions(groups.block) or ()
        return self.states_from_reductions([groups.reduce_values(*each) for each in reductions])

    def _checked_values(self, block: Block) -> Any:
        values = _nullable_values(block, self.on)
        if self.needs_numbers and not _is_number(values.type):
            raise TypeError(f"{self.name}: the column {self.on!r} must have numbers, got {values.type}")
        return values

    def merge_states(self, groups: SortedGroups, states: Sequence[Column]) -> list[Column]:
        return [*self.join_states(groups, states[:-1]), groups.reduce_values(states[-1], "sum")]

    def finalize_states(self, states: Sequence[Column]) -> Column:
        values = as_arrow(self.states_to_column(states[:-1]))
        if self.ignore_nulls:
            return values
        is_complete = pc.equal(as_arrow(states[-1]), 0)
        return pc.if_else(is_complete, values, pa.scalar(None, values.type))

    def empty_value(self) -> Any:
        return None

    def reduce_values(self, values: Any) -> list[Reduction]:
        """The Arrow functions that reduce the values of a group to its states."""
        raise NotImplementedError

    def join_states(self, groups: SortedGroups, states: Sequence[Column]) -> list[Column]:
        raise NotImplementedError

    def states_to_column(self, states: Sequence[Column]) -> Column:
        return states[0]


class Count(_ColumnAggregate):
    """The number of rows; with `on` and `ignore_nulls=True`, the number of non-missing values in that column."""

    label = "count"
    needs_numbers = False

    def __init__(self, on: str | None = None, ignore_nulls: bool = False, alias_name: str | None = None) -> None:
        super().__init__(on or "", ignore_nulls, alias_name)
        self.on_column = on

    def list_reductions(self, block: Block) -> list[Reduction] | None:
        if self.on_column is None:
            return [(np.zeros(block.num_rows, np.int8), "count", None)]
        mode = "only_valid" if self.ignore_nulls else "all"
        return [(_nullable_values(block, self.on_column), "count", pc.CountOptions(mode=mode))]

    def merge_states(self, groups: SortedGroups, states: Sequence[Column]) -> list[Column]:
        return [groups.reduce_values(states[0], "sum")]

    def finalize_states(self, states: Sequence[Column]) -> Column:
        return states[0]

    def empty_value(self) -> Any:
        return 0


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


class Min(_ArrowAggregate):
    label = function = "min"
    needs_numbers = False


class Max(_ArrowAggregate):
    label = function = "max"
    needs_numbers = False


class AbsMax(_ArrowAggregate):
    """The largest absolute value."""

    label = "abs_max"
    function = "max"

    def reduce_values(self, values: Any) -> list[Reduction]:
        return [(pc.abs(values), self.function, None)]


class Std(_ColumnAggregate):
    """The standard deviation; NaN for a group of `ddof` values or fewer."""

    label = "std"

    def __init__(self, on: str, ddof: int = 1, ignore_nulls: bool = True, alias_name: str | None = None) -> None:
        super().__init__(on, ignore_nulls, alias_name)
        self.ddof = ddof

    def reduce_values(self, values: Any) -> list[Reduction]:
        numbers = pc.cast(values, pa.float64())
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
    """An aggregate that needs all values of a group, or all distinct ones: its states are lists."""

    def list_reductions(self, block: Block) -> list[Reduction] | None:
        return None  # Arrow's function for distinct values crashes on a column of nulls

    def compute_states(self, groups: SortedGroups) -> list[Column]:
        values = self._checked_values(groups.block)
        missing = groups.reduce_values(values, "count", pc.CountOptions(mode="only_null"))
        return [self.collect_lists(groups, values, groups.ids), missing]

    def collect_lists(self, groups: SortedGroups, values: Any, ids: Array) -> Any:
        """Return a list for each group that has values."""
        return groups.reduce_values(values, "list", ids=ids)

    def join_states(self, groups: SortedGroups, states: Sequence[Column]) -> list[Column]:
        parts = as_arrow(states[0])
        ids = np.repeat(groups.ids, as_numpy(pc.list_value_length(parts)))
        lists = self.collect_lists(groups, pc.list_flatten(parts), ids)
        present = np.unique(ids)
        if len(present) == groups.num_groups:
            return [lists]
        by_group = dict(zip(present.tolist(), lists.to_pylist(), strict=True))
        return [
            pa.chunked_array([pa.array([by_group.get(group, []) for group in range(groups.num_groups)], lists.type)])
        ]


class Quantile(_ValueListAggregate):
    """The `q` quantile, interpolated between the two nearest values."""

    label = "quantile"

    def __init__(self, on: str, q: float = 0.5, ignore_nulls: bool = True, alias_name: str | None = None) -> None:
        check_number("q", q, at_least=0, at_most=1)
        super().__init__(on, ignore_nulls, alias_name)
        self.q = q

    def collect_lists(self, groups: SortedGroups, values: Any, ids: Array) -> Any:
        return super().collect_lists(groups, pc.cast(values, pa.float64()), ids)

    def states_to_column(self, states: Sequence[Column]) -> Column:
        lists = (pc.drop_null(part.values).to_numpy(zero_copy_only=False) for part in as_arrow(states[0]))
        return pa.array([float(np.quantile(part, self.q)) if len(part) else None for part in lists], pa.float64())


class Unique(_ValueListAggregate):
    """The distinct values, in no particular order."""

    label = "unique"
    needs_numbers = False

    def collect_lists(self, groups: SortedGroups, values: Any, ids: Array) -> Any:
        if pa.types.is_null(values.type):  # Arrow's function crashes on it
            one = [] if self.ignore_nulls else [None]
            return pa.chunked_array([pa.array([one] * len(np.unique(ids)), pa.list_(pa.null()))])
        return groups.reduce_values(
            merge_zeros(values), "distinct", pc.CountOptions(mode="only_valid" if self.ignore_nulls else "all"), ids
        )

    def finalize_states(self, states: Sequence[Column]) -> Column:
        return states[0]

    def empty_value(self) -> Any:
        return []


class CountDistinct(Unique):
    label = "count_distinct"

    def finalize_states(self, states: Sequence[Column]) -> Column:
        return pc.list_value_length(states[0]).cast(pa.int64())

    def empty_value(self) -> Any:
        return 0


def _nullable_values(block: Block, name: str) -> Any:
    """Return a column as Arrow data, with missing values as null."""
    values = block.column(name)
    if isinstance(values, np.ndarray) and values.ndim > 1:
        raise TypeError(f"cannot aggregate the column {name!r} of type {type_of(values)}: only single values can be")
    return as_nullable(values)


def _is_number(kind: Any) -> bool:
    is_plain = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    return bool(is_plain or pa.types.is_decimal(kind) or pa.types.is_null(kind))


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


def plan_partial_aggregates(plan: PlanNode, aggregates: Sequence[AggregateFn]) -> PlanNode:
    """Return a plan that computes aggregate states over all rows of `plan`, for `finish_aggregates`."""
    return Map(plan, PartialAggregates(check_aggregates(aggregates)))


def finish_aggregates(deliveries: Iterable[RowDelivery], aggregates: Sequence[AggregateFn]) -> dict[str, Any]:
    """Return each aggregate's value by name, from the output of a `plan_partial_aggregates` plan."""
    combined = GroupAggregation(SortKeys.ascending(()), check_aggregates(aggregates))
    states: list[Block] = []
    for delivery in deliveries:
        states.append(delivery.block)
        if len(states) >= 256:
            states = [combined.merge_states(states)]
    if not states:
        return {aggregate.name: aggregate.empty_value() for aggregate in aggregates}
    result = combined.finish_states(states)
    return {name: as_arrow(values)[0].as_py() for name, values in result.columns.items()}


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
    return tuple(aggregates)


explain_module(__name__)
