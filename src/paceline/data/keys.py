"""Rows compared by some of their columns: for sorting, and for finding the rows of a group.

Ascending or descending for each key; nulls and NaN are last in both, and one group. Equal rows keep their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paceline.data.block import Block, Column, as_arrow, type_of


@dataclass(frozen=True)
class Keys:
    names: tuple[str, ...]
    descending: tuple[bool, ...]

    @staticmethod
    def ascending(names: Sequence[str]) -> Keys:
        return Keys(tuple(names), (False,) * len(names))

    def order(self, block: Block) -> np.ndarray[Any, Any]:
        """The numbers of the rows, sorted."""
        if not self.names:
            return np.arange(block.num_rows)
        # Numbered columns: two keys may have one name.
        table = pa.table({str(number): comparable(block, name) for number, name in enumerate(self.names)})
        directions = ("descending" if down else "ascending" for down in self.descending)
        keys = [(str(number), direction) for number, direction in enumerate(directions)]
        order: np.ndarray[Any, Any] = pc.sort_indices(table, sort_keys=keys).to_numpy()
        return order.astype(np.int64)

    def row(self, block: Block, index: int) -> tuple[Any, ...]:
        """The keys of one row as a tuple that sorts as the rows do."""
        return tuple(
            _ranked(_plain(block.column(name), index), down)
            for name, down in zip(self.names, self.descending, strict=True)
        )

    def values(self, block: Block, index: int) -> tuple[Any, ...]:
        """The keys of one row as a user knows them."""
        return tuple(as_arrow(block.column(name))[index].as_py() for name in self.names)

    def starts(self, block: Block) -> np.ndarray[Any, Any]:
        """Of sorted rows, the numbers of those at which a group begins."""
        if block.num_rows == 0:
            return np.empty(0, np.int64)
        begins = np.zeros(block.num_rows, bool)
        begins[0] = True
        for name in self.names:
            values = comparable(block, name)
            before, after = values.slice(0, block.num_rows - 1), values.slice(1)
            unequal = pc.fill_null(pc.not_equal(before, after), False)
            one_is_null = pc.xor(pc.is_null(before), pc.is_null(after))
            begins[1:] |= pc.or_(unequal, one_is_null).to_numpy(zero_copy_only=False)
        return np.flatnonzero(begins)


def comparable(block: Block, name: str) -> Any:
    """A column as one Arrow array that can be compared: without NaN, with times as numbers."""
    values = block.column(name)
    if isinstance(values, np.ndarray) and (values.ndim > 1 or values.dtype == object):
        raise _incomparable(name, values)
    array = as_arrow(values)
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks() if array.num_chunks != 1 else array.chunk(0)
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], type=array.type)
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    kind = array.type
    if pa.types.is_null(kind):
        return pa.nulls(len(array), pa.int8())
    if pa.types.is_float16(kind):
        array, kind = array.cast(pa.float32()), pa.float32()
    if pa.types.is_floating(kind):
        return pc.if_else(pc.is_nan(array), pa.scalar(None, kind), array)
    if pa.types.is_temporal(kind):
        return array.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    if pa.types.is_nested(kind) or isinstance(kind, pa.ExtensionType):
        raise _incomparable(name, values)
    return array


def _incomparable(name: str, values: Column) -> TypeError:
    return TypeError(
        f"rows cannot be sorted or grouped by the column {name!r}, which is of type {type_of(values)}\n\n"
        "hint: a key has one number, string, time or truth value in each row"
    )


def _plain(values: Column, index: int) -> Any:
    """One value as something that Python compares; None for what is null or NaN."""
    if isinstance(values, np.ndarray):
        single = values[index]
        if values.dtype.kind in "mM":
            return None if np.isnat(single) else int(single.view(np.int64))
        value = single.item()
    else:
        scalar = values[index]
        value = scalar.value if pa.types.is_temporal(values.type) else scalar.as_py()
    return None if value != value else value


def _ranked(value: Any, down: bool) -> tuple[Any, ...]:
    if value is None:
        return (1,)
    return (0, _Down(value) if down else value)


class _Down:
    """Sorts before what is smaller."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __lt__(self, other: _Down) -> bool:
        return bool(other.value < self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Down) and bool(self.value == other.value)

    __hash__ = None  # type: ignore[assignment]
