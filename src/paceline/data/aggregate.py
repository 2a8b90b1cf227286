"""What a group of rows, or all of them, come to: sums, means, deviations and the like.

A missing value is null or NaN, whichever form the column happens to have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paceline.data.block import Block, Column, as_arrow, as_numpy, type_of
from paceline.data.groups import AggregateFn as AggregateFn
from paceline.data.groups import Array, Combined, Groups
from paceline.data.keys import Keys
from paceline.data.plan import Map, Node
from paceline.data.position import Delivered
from paceline.data.transform import Scope, Transform


class _OfColumn(AggregateFn):
    """What is computed from one column. The last state of each is how many values of the group are missing."""

    label = ""
    needs_numbers = True

    def __init__(self, on: str, ignore_nulls: bool = True, alias_name: str | None = None) -> None:
        if not isinstance(on, str):
            raise TypeError(f"{type(self).__name__}(on={on!r}): it must be the name of a column")
        self.on = on
        self.ignore_nulls = ignore_nulls
        self.name = alias_name or f"{self.label}({on})"

    def partial(self, groups: Groups) -> list[Column]:
        values = _valued(groups.block, self.on)
        if self.needs_numbers and not _is_number(values.type):
            raise TypeError(f"{self.name}: the column {self.on!r} has no numbers, but {values.type}")
        missing = groups.reduced(values, "count", pc.CountOptions(mode="only_null"))
        return [*self.states(groups, values), missing]

    def merged(self, groups: Groups, states: Sequence[Column]) -> list[Column]:
        return [*self.joined(groups, states[:-1]), groups.reduced(states[-1], "sum")]

    def final(self, states: Sequence[Column]) -> Column:
        values = as_arrow(self.value(states[:-1]))
        if self.ignore_nulls:
            return values
        whole = pc.equal(as_arrow(states[-1]), 0)
        return pc.if_else(whole, values, pa.scalar(None, values.type))

    def of_nothing(self) -> Any:
        return None

    def states(self, groups: Groups, values: Any) -> list[Column]:
        raise NotImplementedError

    def joined(self, groups: Groups, states: Sequence[Column]) -> list[Column]:
        raise NotImplementedError

    def value(self, states: Sequence[Column]) -> Column:
        return states[0]


class Count(_OfColumn):
    """How many rows; with `on` and `ignore_nulls=True`, how many that are not missing there."""

    label = "count"
    needs_numbers = False

    def __init__(self, on: str | None = None, ignore_nulls: bool = False, alias_name: str | None = None) -> None:
        super().__init__(on or "", ignore_nulls, alias_name)
        self.on_column = on

    def partial(self, groups: Groups) -> list[Column]:
        if self.on_column is None:
            return [groups.lengths.astype(np.int64)]
        values = _valued(groups.block, self.on_column)
        mode = "only_valid" if self.ignore_nulls else "all"
        return [groups.reduced(values, "count", pc.CountOptions(mode=mode))]

    def merged(self, groups: Groups, states: Sequence[Column]) -> list[Column]:
        return [groups.reduced(states[0], "sum")]

    def final(self, states: Sequence[Column]) -> Column:
        return states[0]

    def of_nothing(self) -> Any:
        return 0


class _ByArrow(_OfColumn):
    """What a function of Arrow's does to values, and to what it gave for parts of them."""

    function = ""

    def states(self, groups: Groups, values: Any) -> list[Column]:
        return self.joined(groups, [values])

    def joined(self, groups: Groups, states: Sequence[Column]) -> list[Column]:
        return [groups.reduced(states[0], self.function)]


class Sum(_ByArrow):
    """The sum; null for a group in which all is missing."""

    label = function = "sum"


class Min(_ByArrow):
    label = function = "min"
    needs_numbers = False


class Max(_ByArrow):
    label = function = "max"
    needs_numbers = False


class AbsMax(_ByArrow):
    """The largest absolute value."""

    label = "abs_max"
    function = "max"

    def states(self, groups: Groups, values: Any) -> list[Column]:
        return self.joined(groups, [pc.abs(values)])


class Std(_OfColumn):
    """The standard deviation; NaN for a group of `ddof` values or fewer."""

    label = "std"

    def __init__(self, on: str, ddof: int = 1, ignore_nulls: bool = True, alias_name: str | None = None) -> None:
        super().__init__(on, ignore_nulls, alias_name)
        self.ddof = ddof

    def states(self, groups: Groups, values: Any) -> list[Column]:
        # Number, mean and sum of squared distances from it: squares of the values themselves would lose all digits
        # where the mean is large.
        valid = pc.is_valid(values).to_numpy(zero_copy_only=False)
        numbers = pc.fill_null(pc.cast(values, pa.float64()), 0.0).to_numpy(zero_copy_only=False)
        return _moments(groups, valid.astype(np.int64), numbers, np.zeros(len(numbers)))

    def joined(self, groups: Groups, states: Sequence[Column]) -> list[Column]:
        return _moments(groups, *(as_numpy(state) for state in states))

    def value(self, states: Sequence[Column]) -> Column:
        count, _, squares = (as_numpy(state) for state in states)
        with np.errstate(all="ignore"):
            deviation = np.sqrt(np.where(count > self.ddof, squares / (count - self.ddof), np.nan))
        return pa.array(deviation, mask=count == 0)


class Mean(Std):
    label = "mean"

    def __init__(self, on: str, ignore_nulls: bool = True, alias_name: str | None = None) -> None:
        super().__init__(on, 0, ignore_nulls, alias_name)

    def value(self, states: Sequence[Column]) -> Column:
        return pa.array(as_numpy(states[1]), mask=as_numpy(states[0]) == 0)


def _moments(groups: Groups, count: Array, mean: Array, squares: Array) -> list[Column]:
    """Number, mean and squared distances of groups, from those of their parts."""

    def total(values: Array) -> Array:
        return np.add.reduceat(values, groups.starts)

    with np.errstate(all="ignore"):
        counts = total(count)
        # Measured from the first of the group, so that what is added up is small.
        origin = mean[groups.starts]
        means = origin + total(count * (mean - origin[groups.ids])) / np.maximum(counts, 1)
        return [counts, means, total(squares + count * (mean - means[groups.ids]) ** 2)]


class _OfValues(_OfColumn):
    """What needs all values of a group, or all different ones: the states are lists."""

    def lists(self, groups: Groups, values: Any, ids: Array) -> Any:
        """A list for each group of which there are values."""
        return groups.reduced(values, "list", ids=ids)

    def states(self, groups: Groups, values: Any) -> list[Column]:
        return [self.lists(groups, values, groups.ids)]

    def joined(self, groups: Groups, states: Sequence[Column]) -> list[Column]:
        parts = as_arrow(states[0])
        ids = np.repeat(groups.ids, as_numpy(pc.list_value_length(parts)))
        lists = self.lists(groups, pc.list_flatten(parts), ids)
        there = np.unique(ids)
        if len(there) == groups.num:
            return [lists]
        found = dict(zip(there.tolist(), lists.to_pylist(), strict=True))
        return [pa.chunked_array([pa.array([found.get(group, []) for group in range(groups.num)], lists.type)])]


class Quantile(_OfValues):
    """The value below which a part `q` of all lies, interpolated between the two nearest."""

    label = "quantile"

    def __init__(self, on: str, q: float = 0.5, ignore_nulls: bool = True, alias_name: str | None = None) -> None:
        if not 0 <= q <= 1:
            raise ValueError(f"Quantile(q={q!r}): it must be between 0 and 1")
        super().__init__(on, ignore_nulls, alias_name)
        self.q = q

    def states(self, groups: Groups, values: Any) -> list[Column]:
        return super().states(groups, pc.cast(values, pa.float64()))

    def value(self, states: Sequence[Column]) -> Column:
        lists = (pc.drop_null(part.values).to_numpy(zero_copy_only=False) for part in as_arrow(states[0]))
        found = [float(np.quantile(part, self.q)) if len(part) else None for part in lists]
        return pa.array(found, pa.float64())


class Unique(_OfValues):
    """The different values, in no particular order."""

    label = "unique"
    needs_numbers = False

    def lists(self, groups: Groups, values: Any, ids: Array) -> Any:
        if pa.types.is_null(values.type):  # Arrow's own function does not survive it
            one = [] if self.ignore_nulls else [None]
            return pa.chunked_array([pa.array([one] * len(np.unique(ids)), pa.list_(pa.null()))])
        return groups.reduced(
            values, "distinct", pc.CountOptions(mode="only_valid" if self.ignore_nulls else "all"), ids
        )

    def final(self, states: Sequence[Column]) -> Column:
        return states[0]

    def of_nothing(self) -> Any:
        return []


class CountDistinct(Unique):
    """How many different values."""

    label = "count_distinct"

    def final(self, states: Sequence[Column]) -> Column:
        return pc.list_value_length(states[0]).cast(pa.int64())

    def of_nothing(self) -> Any:
        return 0


def _valued(block: Block, name: str) -> Any:
    """A column as Arrow data in which whatever is missing is null."""
    values = block.column(name)
    if isinstance(values, np.ndarray) and values.ndim > 1:
        raise TypeError(f"the column {name!r} is of type {type_of(values)}: only single values can be aggregated")
    array = as_arrow(values)
    array = pa.chunked_array([array]) if isinstance(array, pa.Array) else array
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    if pa.types.is_float16(array.type):
        array = array.cast(pa.float32())
    return pc.if_else(pc.is_nan(array), pa.scalar(None, array.type), array) if _is_float(array.type) else array


def _is_float(kind: Any) -> bool:
    return bool(pa.types.is_floating(kind))


def _is_number(kind: Any) -> bool:
    types = pa.types
    plain = types.is_integer(kind) or _is_float(kind) or types.is_boolean(kind)
    return bool(plain or types.is_decimal(kind) or types.is_null(kind))


@dataclass(frozen=True)
class PartialAggregates(Transform):
    """The states of aggregates over the rows of a unit, as one row for some tens of megabytes of it."""

    aggregates: tuple[AggregateFn, ...]

    @property
    def name(self) -> str:
        return f"aggregate({', '.join(aggregate.name for aggregate in self.aggregates)})"

    def apply(self, blocks: Iterator[Block], scope: Scope) -> Iterator[Block]:
        combined = Combined(Keys.ascending(()), self.aggregates)
        for block in blocks:
            if block.num_rows:
                yield combined.arranged(block, 0, 0)[0]


def partially(plan: Node, aggregates: Sequence[AggregateFn]) -> Node:
    """A plan of the states of aggregates over all rows of another; `aggregated` takes what comes of it."""
    return Map(plan, PartialAggregates(checked(aggregates)))


def aggregated(deliveries: Iterable[Delivered], aggregates: Sequence[AggregateFn]) -> dict[str, Any]:
    """The value of each aggregate by its name, from what was delivered of a plan made by `partially`."""
    combined = Combined(Keys.ascending(()), checked(aggregates))
    held: list[Block] = []
    for delivery in deliveries:
        held.append(delivery.block)
        if len(held) >= 256:
            held = [combined.merged(held)]
    if not held:
        return {aggregate.name: aggregate.of_nothing() for aggregate in aggregates}
    result = combined.finished(held)
    return {name: as_arrow(values)[0].as_py() for name, values in result.columns.items()}


def checked(aggregates: Sequence[AggregateFn], keys: Sequence[str] = ()) -> tuple[AggregateFn, ...]:
    """The aggregates, if each has a name of its own."""
    names = list(keys)
    for aggregate in aggregates:
        if not isinstance(aggregate, AggregateFn):
            raise TypeError(f"aggregate({aggregate!r}): it must be an AggregateFn such as Sum('x')")
        if aggregate.name in names:
            raise ValueError(
                f"aggregate: two columns of the result are called {aggregate.name!r}\n\n"
                "hint: alias_name gives an aggregate another name"
            )
        names.append(aggregate.name)
    if not aggregates:
        raise ValueError("aggregate() needs one aggregate or more, such as Sum('x')")
    return tuple(aggregates)
