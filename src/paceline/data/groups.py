"""Groups of rows, and how an aggregate is computed over them.

It is done in three steps, so that most of it happens where the rows are: states of parts of a group, the states merged,
and the value that a merged state stands for.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np
import pyarrow as pa

from paceline.data.block import Block, Column, column_of
from paceline.data.keys import Keys

if TYPE_CHECKING:
    from paceline.data.exec.scatter import Aside

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Groups:
    """Sorted rows and where the groups among them begin."""

    block: Block
    keys: Keys
    starts: Array

    @property
    def num(self) -> int:
        return len(self.starts)

    @cached_property
    def lengths(self) -> Array:
        return np.diff(self.starts, append=self.block.num_rows)

    @cached_property
    def ids(self) -> Array:
        """For each row, the number of its group."""
        return np.repeat(np.arange(self.num), self.lengths)

    def reduced(self, values: Any, function: str, options: Any = None, ids: Any = None) -> Any:
        """One value for each group, by a function of Arrow's."""
        table = pa.table({"group": self.ids if ids is None else ids, "value": values})
        # With threads the groups would come in any order.
        grouped = table.group_by("group", use_threads=False).aggregate([("value", function, options)])
        return grouped.column(f"value_{function}")


class AggregateFn:
    """An aggregate of one's own.

    `init(key)` gives the state to begin with, `accumulate_row(state, row)` adds a row (a dict) to it or
    `accumulate_block(state, table)` some rows (a `pyarrow.Table`), `merge(state, other)` joins two, and
    `finalize(state)` gives the value. `name` is that of the column in the result. The key is a value, a tuple where
    there are several keys, and None for an aggregate of all rows.
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
            raise ValueError(
                f"AggregateFn(name={name!r}): exactly one of accumulate_row and accumulate_block must be given"
            )
        if not isinstance(name, str) or not name:
            raise ValueError(f"AggregateFn(name={name!r}): it must be the name of a column")
        self.name = name
        self._init = init
        self._merge = merge
        self._accumulate_row = accumulate_row
        self._accumulate_block = accumulate_block
        self._finalize = finalize or (lambda state: state)

    def partial(self, groups: Groups) -> list[Column]:
        """Columns with the states of the groups."""
        states = []
        for start, length in zip(groups.starts.tolist(), groups.lengths.tolist(), strict=True):
            rows = groups.block.slice(start, start + length)
            key = groups.keys.values(rows, 0)
            state = self._init(key if len(key) > 1 else key[0] if key else None)
            if self._accumulate_block is not None:
                state = self._accumulate_block(state, rows.to_arrow())
            elif self._accumulate_row is not None:
                for row in rows.rows():
                    state = self._accumulate_row(state, row)
            states.append(state)
        return [_kept(states)]

    def merged(self, groups: Groups, states: Sequence[Column]) -> list[Column]:
        """The same, of rows that are states: some for each group."""
        parts = _unkept(states[0])
        merged = []
        for start, length in zip(groups.starts.tolist(), groups.lengths.tolist(), strict=True):
            state = parts[start]
            for other in parts[start + 1 : start + length]:
                state = self._merge(state, other)
            merged.append(state)
        return [_kept(merged)]

    def final(self, states: Sequence[Column]) -> Column:
        """The values of states."""
        return column_of([self._finalize(state) for state in _unkept(states[0])])

    def of_nothing(self) -> Any:
        """The value for a dataset without rows."""
        return self._finalize(self._init(None))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


def _kept(states: Sequence[Any]) -> Any:
    # As bytes: a column would make lists of tuples, and numbers of NumPy of Python's.
    return pa.chunked_array([pa.array([cloudpickle.dumps(state) for state in states], pa.large_binary())])


def _unkept(states: Any) -> list[Any]:
    return [pickle.loads(state.as_buffer()) for state in states]  # noqa: S301 - a state from a process of this dataset


@dataclass(frozen=True)
class Combined:
    """Rows to states of their groups, and states to a row for each group: the two halves of a `groupby`."""

    keys: Keys
    aggregates: tuple[AggregateFn, ...]

    def arranged(self, block: Block, place: int, first: int) -> tuple[Block, None]:
        ordered = block.take(self.keys.order(block)) if self.keys.names else block
        groups = Groups(ordered, self.keys, self.keys.starts(ordered))
        states = [aggregate.partial(groups) for aggregate in self.aggregates]
        return self._with_keys(groups, _numbered(states)), None

    def gathered(self, pieces: Sequence[Aside]) -> Block:
        return self.finished([piece.load() for piece in pieces])

    def finished(self, states: Sequence[Block]) -> Block:
        merged = self.merged(states)
        values = {
            aggregate.name: aggregate.final(_states(merged, number)) for number, aggregate in enumerate(self.aggregates)
        }
        return Block({**{name: merged.column(name) for name in self.keys.names}, **values}, num_rows=merged.num_rows)

    def merged(self, pieces: Sequence[Block]) -> Block:
        joined = Block.concat(pieces)
        ordered = joined.take(self.keys.order(joined))
        groups = Groups(ordered, self.keys, self.keys.starts(ordered))
        states = [
            aggregate.merged(groups, _states(ordered, number)) for number, aggregate in enumerate(self.aggregates)
        ]
        return self._with_keys(groups, _numbered(states))

    def _with_keys(self, groups: Groups, states: dict[str, Column]) -> Block:
        keys = groups.block.select(self.keys.names).take(groups.starts).columns
        return Block({**keys, **states}, num_rows=groups.num)


def _numbered(states: Sequence[Sequence[Column]]) -> dict[str, Column]:
    return {f"\0{number}.{part}": column for number, parts in enumerate(states) for part, column in enumerate(parts)}


def _states(block: Block, number: int) -> list[Column]:
    return [values for name, values in block.columns.items() if name.startswith(f"\0{number}.")]
