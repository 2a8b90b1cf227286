"""Groups of rows, and how aggregates are computed over them.

There are three steps, so that most of the work happens where the rows are: compute states of parts of a group, merge
the states, and compute the value from the merged state.
"""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np
import pyarrow as pa

from paceline._core.arguments import bad_value
from paceline.data.block import Block, Column, as_numpy, column_of
from paceline.data.column import merge_zeros
from paceline.data.planning.sort_keys import SortKeys, comparable_array

if TYPE_CHECKING:
    from paceline.data.exec.scatter import StoredRows

Array = np.ndarray[Any, Any]
Reduction = tuple[Any, str, Any]
"""Values, and the Arrow function and its options that reduce those of each group to one."""


@dataclass(frozen=True)
class SortedGroups:
    """Sorted rows, and the indices at which groups start."""

    block: Block
    keys: SortKeys
    starts: Array

    @property
    def num_groups(self) -> int:
        return len(self.starts)

    @cached_property
    def lengths(self) -> Array:
        return np.diff(self.starts, append=self.block.num_rows)

    @cached_property
    def ids(self) -> Array:
        """The group number of each row."""
        return np.repeat(np.arange(self.num_groups), self.lengths)

    def reduce_values(self, values: Any, function: str, options: Any = None, ids: Any = None) -> Any:
        table = pa.table({"group": self.ids if ids is None else ids, "value": values})
        # With threads the order of the groups would be arbitrary.
        grouped = table.group_by("group", use_threads=False).aggregate([("value", function, options)])
        return grouped.column(f"value_{function}")


class AggregateFn:
    """A user-defined aggregate.

    `init(key)` returns the initial state. `accumulate_row(state, row)` adds a row (a dict) to it, or
    `accumulate_block(state, table)` several rows (a `pyarrow.Table`). `merge(state, other)` joins two states, and
    `finalize(state)` returns the value. `name` is the column in the result. The key is a value, a tuple if there are
    several keys, or None for an aggregate of all rows.
    """

    def __init__(
        self,
        init: Callable[[Any], Any],
        merge: Callable[[Any, Any], Any],
        name: str,
        accumulate_row: Callable[[Any, dict[str, Any]], Any] | None = None,
        accumulate_block: Callable[[Any, Any], Any] | None = None,
        finalize: Callable[[Any], Any] | None = None,
    ) -> None:
        if (accumulate_row is None) == (accumulate_block is None):
            raise ValueError(f"AggregateFn {name!r} takes either accumulate_row or accumulate_block")
        if not isinstance(name, str) or not name:
            raise bad_value("AggregateFn.name", "the name of a column", name)
        self.name = name
        self._init = init
        self._merge = merge
        self._accumulate_row = accumulate_row
        self._accumulate_block = accumulate_block
        self._finalize = finalize or (lambda state: state)

    def list_reductions(self, block: Block) -> list[Reduction] | None:
        """The Arrow functions that compute the states, for `states_from_reductions`; None if Python must."""
        return None

    def states_from_reductions(self, reduced: Sequence[Column]) -> list[Column]:
        return list(reduced)

    def compute_states(self, groups: SortedGroups) -> list[Column]:
        states = []
        for start, length in zip(groups.starts.tolist(), groups.lengths.tolist(), strict=True):
            rows = groups.block.slice(start, start + length)
            key = groups.keys.key_values(rows, 0)
            state = self._init(key if len(key) > 1 else key[0] if key else None)
            if self._accumulate_block is not None:
                state = self._accumulate_block(state, rows.to_arrow())
            elif self._accumulate_row is not None:
                for row in rows.rows():
                    state = self._accumulate_row(state, row)
            states.append(state)
        return [_pickle_states(states)]

    def merge_states(self, groups: SortedGroups, states: Sequence[Column]) -> list[Column]:
        """Merge states: each row is a state, and a group has one or more of them."""
        parts = _unpickle_states(states[0])
        merged = []
        for start, length in zip(groups.starts.tolist(), groups.lengths.tolist(), strict=True):
            state = parts[start]
            for other in parts[start + 1 : start + length]:
                state = self._merge(state, other)
            merged.append(state)
        return [_pickle_states(merged)]

    def finalize_states(self, states: Sequence[Column]) -> Column:
        return column_of([self._finalize(state) for state in _unpickle_states(states[0])])

    def empty_value(self) -> Any:
        """Return the value for a dataset without rows."""
        return self._finalize(self._init(None))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


class AggregateFnV2(AggregateFn, ABC):
    """A base class for aggregates of one's own.

    A subclass defines `aggregate_block`, which reduces rows to an accumulator, `combine`, which joins two accumulators,
    and, if the result is not the accumulator, `finalize`. Accumulators are pickled. `zero_factory` returns the
    accumulator of no rows. `on` is the column to read; None means all columns.

    With `ignore_nulls`, accumulators that are None or NaN are left out, so a group with no others gives None, and
    `zero_factory` is not used. Without it, one of them makes the result None.

        class Product(AggregateFnV2):
            def __init__(self, on):
                super().__init__(f"product({on})", lambda: 1, on=on, ignore_nulls=False)

            def aggregate_block(self, block):
                return pc.product(block[self.on]).as_py()

            def combine(self, current_accumulator, new):
                return current_accumulator * new
    """

    _accumulate_row = None

    def __init__(self, name: str, zero_factory: Callable[[], Any], *, on: str | None, ignore_nulls: bool) -> None:
        if not isinstance(name, str) or not name:
            raise bad_value(f"{type(self).__name__}.name", "the name of a column", name)
        if not callable(zero_factory):
            raise bad_value("zero_factory", "a function without arguments", zero_factory)
        if on is not None and not isinstance(on, str):
            raise TypeError(f"{type(self).__name__}: on must be the name of a column, got {on!r}")
        self.name = name
        self.on = on
        self.ignore_nulls = ignore_nulls
        self.zero_factory = zero_factory
        # The names that Ray's guide has subclasses read.
        self._target_col_name, self._ignore_nulls = on, ignore_nulls

    @abstractmethod
    def aggregate_block(self, block: Any) -> Any:
        """Reduce rows of a group, a `pyarrow.Table`, to an accumulator."""

    @abstractmethod
    def combine(self, current_accumulator: Any, new: Any) -> Any:
        """Join two accumulators; `new` is of later rows."""

    def finalize(self, accumulator: Any) -> Any:
        """Return the value for the accumulator of all rows. None gives None without a call."""
        return accumulator

    def get_target_column(self) -> str | None:
        return self.on

    def get_agg_name(self) -> str:
        """Return the name without the column: `sum`."""
        return self.name.partition("(")[0]

    def output_field(self, input_schema: Any) -> Any:
        """Return the result's name and type as a `pyarrow.Field`, or None if the type depends on the rows."""
        return None

    def _init(self, key: Any) -> Any:
        return None

    def _accumulate_block(self, state: Any, block: Any) -> Any:
        new = self.aggregate_block(block)
        return new.as_py() if isinstance(new, pa.Scalar) else new

    def _merge(self, state: Any, other: Any) -> Any:
        if _is_missing(other):
            return state if self.ignore_nulls else None
        if _is_missing(state):
            return other if self.ignore_nulls else None
        return self.combine(state, other)

    def _finalize(self, state: Any) -> Any:
        # Once for a group: once for each block, the result would depend on how rows are divided into blocks.
        if not self.ignore_nulls and not _is_missing(state):
            state = self._merge(self.zero_factory(), state)
        return None if _is_missing(state) else self.finalize(state)

    def empty_value(self) -> Any:
        return None if self.ignore_nulls else self.finalize(self.zero_factory())


def _is_missing(accumulator: Any) -> bool:
    return accumulator is None or (isinstance(accumulator, float) and np.isnan(accumulator))


def _pickle_states(states: Sequence[Any]) -> Any:
    # As bytes: a column would turn tuples into lists, and NumPy numbers into Python numbers.
    return pa.chunked_array([pa.array([cloudpickle.dumps(state) for state in states], pa.large_binary())])


def _unpickle_states(states: Any) -> list[Any]:
    # The states come from a process of this dataset.
    return [pickle.loads(state.as_buffer()) for state in states]  # noqa: S301


@dataclass(frozen=True)
class GroupAggregation:
    """The two halves of a `groupby`: rows to group states, and states to one row per group."""

    keys: SortKeys
    aggregates: tuple[AggregateFn, ...]

    def arrange(self, block: Block, place: int, first: int) -> tuple[Block, None]:
        reductions = [aggregate.list_reductions(block) for aggregate in self.aggregates] if self.keys.names else [None]
        if all(each is not None for each in reductions):
            return self._reduce_groups(block, [each for each in reductions if each is not None]), None
        ordered = block.take(self.keys.sort_indices(block)) if self.keys.names else block
        groups = SortedGroups(ordered, self.keys, self.keys.group_starts(ordered))
        states = [aggregate.compute_states(groups) for aggregate in self.aggregates]
        return self._with_keys(groups, _name_state_columns(states)), None

    def _reduce_groups(self, block: Block, reductions: Sequence[Sequence[Reduction]]) -> Block:
        """Compute all states in one pass over a hash table of the groups: rows need not be sorted."""
        keys = {
            f"key {number}": merge_zeros(comparable_array(block, name)) for number, name in enumerate(self.keys.names)
        }
        values: dict[str, Any] = {"row": np.arange(block.num_rows)}
        functions: list[tuple[str, str, Any]] = [("row", "min", None)]
        for number, each in enumerate(reductions):
            for part, (column, function, options) in enumerate(each):
                values[f"{number}.{part}"] = column
                functions.append((f"{number}.{part}", function, options))
        # With threads the order of the groups would be arbitrary.
        reduced = pa.table({**keys, **values}).group_by(list(keys), use_threads=False).aggregate(functions)
        columns = [reduced.column(f"{name}_{function}") for name, function, _ in functions]
        states, taken = [], 1
        for aggregate, each in zip(self.aggregates, reductions, strict=True):
            states.append(aggregate.states_from_reductions(columns[taken : taken + len(each)]))
            taken += len(each)
        own_keys = block.select(self.keys.names).take(as_numpy(columns[0])).columns
        groups = Block({**own_keys, **_name_state_columns(states)}, num_rows=reduced.num_rows)
        return groups.take(self.keys.sort_indices(groups))

    def gather(self, pieces: Sequence[StoredRows]) -> Block:
        from paceline.data.exec.scatter import load_joined

        return self.finish_states([load_joined(pieces)])

    def finish_states(self, states: Sequence[Block]) -> Block:
        merged = self.merge_states(states)
        values = {
            aggregate.name: aggregate.finalize_states(_select_state_columns(merged, number))
            for number, aggregate in enumerate(self.aggregates)
        }
        return Block({**{name: merged.column(name) for name in self.keys.names}, **values}, num_rows=merged.num_rows)

    def merge_states(self, pieces: Sequence[Block]) -> Block:
        joined = Block.concat(pieces)
        ordered = joined.take(self.keys.sort_indices(joined)) if self.keys.names else joined
        groups = SortedGroups(ordered, self.keys, self.keys.group_starts(ordered))
        states = [
            aggregate.merge_states(groups, _select_state_columns(ordered, number))
            for number, aggregate in enumerate(self.aggregates)
        ]
        return self._with_keys(groups, _name_state_columns(states))

    def _with_keys(self, groups: SortedGroups, states: dict[str, Column]) -> Block:
        keys = groups.block.select(self.keys.names).take(groups.starts).columns
        return Block({**keys, **states}, num_rows=groups.num_groups)


def _name_state_columns(states: Sequence[Sequence[Column]]) -> dict[str, Column]:
    return {f"\0{number}.{part}": column for number, parts in enumerate(states) for part, column in enumerate(parts)}


def _select_state_columns(block: Block, number: int) -> list[Column]:
    return [values for name, values in block.columns.items() if name.startswith(f"\0{number}.")]
