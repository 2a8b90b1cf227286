"""Compares rows by some of their columns, for sorting, grouping and joining.

Each key is ascending or descending; nulls and NaN come last in both, and form one group. The sort is stable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paceline.data.block import Block, Column, as_arrow, type_of
from paceline.data.column import as_computable


@dataclass(frozen=True)
class SortKeys:
    names: tuple[str, ...]
    descending: tuple[bool, ...]

    @staticmethod
    def ascending(names: Sequence[str]) -> SortKeys:
        return SortKeys(tuple(names), (False,) * len(names))

    def sort_indices(self, block: Block) -> np.ndarray[Any, Any]:
        if not self.names:
            return np.arange(block.num_rows)
        # Numbered columns: two keys may have the same name.
        table = pa.table({str(number): comparable_array(block, name) for number, name in enumerate(self.names)})
        directions = ("descending" if down else "ascending" for down in self.descending)
        keys = [(str(number), direction) for number, direction in enumerate(directions)]
        order: np.ndarray[Any, Any] = pc.sort_indices(table, sort_keys=keys).to_numpy()
        return order.astype(np.int64)

    def sort_key(self, block: Block, index: int) -> tuple[Any, ...]:
        return tuple(
            null_last_key(_python_value(block.column(name), index), down)
            for name, down in zip(self.names, self.descending, strict=True)
        )

    def key_values(self, block: Block, index: int) -> tuple[Any, ...]:
        """Return the key values of one row, as the user knows them."""
        return tuple(as_arrow(block.column(name))[index].as_py() for name in self.names)

    def group_starts(self, block: Block) -> np.ndarray[Any, Any]:
        if block.num_rows == 0:
            return np.empty(0, np.int64)
        begins = np.zeros(block.num_rows, bool)
        begins[0] = True
        for name in self.names:
            values = comparable_array(block, name)
            before, after = values.slice(0, block.num_rows - 1), values.slice(1)
            unequal = pc.fill_null(pc.not_equal(before, after), False)
            one_is_null = pc.xor(pc.is_null(before), pc.is_null(after))
            begins[1:] |= pc.or_(unequal, one_is_null).to_numpy(zero_copy_only=False)
        return np.flatnonzero(begins)


def comparable_array(block: Block, name: str) -> Any:
    """Convert a column to a comparable Arrow array: without NaN, with times as numbers."""
    array = key_array(block, name)
    kind = array.type
    return array.view(pa.int32() if kind.bit_width == 32 else pa.int64()) if pa.types.is_temporal(kind) else array


def key_array(block: Block, name: str) -> Any:
    """Convert a column to an Arrow array of keys, without NaN."""
    values = block.column(name)
    if isinstance(values, np.ndarray) and (values.ndim > 1 or values.dtype == object):
        raise _incomparable_error(name, values)
    array = as_computable(values)
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks() if array.num_chunks != 1 else array.chunk(0)
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], type=array.type)
    kind = array.type
    if pa.types.is_null(kind):
        return pa.nulls(len(array), pa.int8())
    if pa.types.is_floating(kind):
        return pc.if_else(pc.is_nan(array), pa.scalar(None, kind), array)
    if pa.types.is_nested(kind) or isinstance(kind, pa.ExtensionType):
        raise _incomparable_error(name, values)
    return array


def _incomparable_error(name: str, values: Column) -> TypeError:
    return TypeError(
        f"rows cannot be sorted, grouped or joined by the column {name!r}, which is of type {type_of(values)}\n\n"
        "hint: a key has one number, string, time or truth value in each row"
    )


def _python_value(values: Column, index: int) -> Any:
    """Return one value as a comparable Python object; None for null and NaN."""
    if isinstance(values, np.ndarray):
        single = values[index]
        if values.dtype.kind in "mM":
            return None if np.isnat(single) else int(single.view(np.int64))
        value = single.item()
    else:
        scalar = values[index]
        value = scalar.value if pa.types.is_temporal(values.type) else scalar.as_py()
    return None if value != value else value


def null_last_key(value: Any, down: bool) -> tuple[Any, ...]:
    if value is None:
        return (1,)
    return (0, _Descending(value) if down else value)


@dataclass(slots=True)
class _Descending:
    value: Any

    def __lt__(self, other: _Descending) -> bool:
        return bool(other.value < self.value)
