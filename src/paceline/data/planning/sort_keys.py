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
from paceline.data.column import as_computable, scratch_array

_DIGIT_BITS = 12
"""Arrow sorts integers of so many bits by counting, which is forty times as fast as by comparing."""
_NUM_DIGITS = 3
_MIN_RADIX_ROWS = 4096
_MIN_RUN = 1000
"""NumPy merges sorted runs of so many rows faster."""
_SIGN = np.int64(np.iinfo(np.int64).min)


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
        if block.num_rows >= _MIN_RADIX_ROWS and all(map(_is_number_array, map(block.column, self.names))):
            return self._radix_sort_indices(block)
        # Numbered columns: two keys may have the same name.
        table = pa.table({str(number): comparable_array(block, name) for number, name in enumerate(self.names)})
        directions = ("descending" if down else "ascending" for down in self.descending)
        keys = [(str(number), direction) for number, direction in enumerate(directions)]
        order: np.ndarray[Any, Any] = pc.sort_indices(table, sort_keys=keys).to_numpy()
        return order.astype(np.int64)

    def _radix_sort_indices(self, block: Block) -> np.ndarray[Any, Any]:
        order = None
        for name, down in reversed(list(zip(self.names, self.descending, strict=True))):
            keys = _radix_keys(block.column(name), down)
            by_key = order_by_radix(keys if order is None else keys.take(order))
            order = by_key if order is None else order.take(by_key)
        assert order is not None
        return order

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


def _is_number_array(values: Column) -> bool:
    return (
        isinstance(values, np.ndarray)
        and values.ndim == 1
        and (values.dtype.kind in "iub" or values.dtype in (np.float32, np.float64))
    )


def _radix_keys(values: np.ndarray[Any, Any], down: bool) -> np.ndarray[Any, Any]:
    """Unsigned integers in the order of these numbers; NaN is last."""
    if values.dtype.kind in "ub":
        keys = values.astype(np.uint64)
    elif values.dtype.kind == "i":
        keys = (values.astype(np.int64) ^ _SIGN).view(np.uint64)
    else:
        bits = (values.astype(np.float64) + 0.0).view(np.int64)  # Adding 0.0 makes both zeros equal.
        keys = (bits ^ ((bits >> 63) | _SIGN)).view(np.uint64)
    if down:
        keys = ~keys
    if values.dtype.kind == "f":
        keys[np.isnan(values)] = np.iinfo(np.uint64).max
    return keys


def order_by_radix(keys: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the stable order of unsigned integers: three to five times as fast as `argsort` if they are spread well.

    Sorts by the highest bits, digit by digit, and then the rows with equal ones by all bits.
    """
    size = len(keys)
    if np.count_nonzero(keys[1:] < keys[:-1]) <= size // _MIN_RUN:
        return np.argsort(keys, kind="stable")
    low = keys.min()
    num_bits = int(keys.max() - low).bit_length()
    rest = max(0, num_bits - _DIGIT_BITS * _NUM_DIGITS)
    keys = np.subtract(keys, low, out=scratch_array((size,), keys.dtype))
    taken, digits = scratch_array((size,), keys.dtype), scratch_array((size,), np.dtype(np.uint16))
    order, spare = scratch_array((size,), np.dtype(np.int64)), scratch_array((size,), np.dtype(np.int64))
    order[:] = np.arange(size)
    for shift in range(rest, num_bits, _DIGIT_BITS):
        # With `clip`, NumPy writes to `out` directly.
        source = keys if shift == rest else keys.take(order, out=taken, mode="clip")
        np.right_shift(source, np.uint64(shift), out=taken)
        digits[:] = np.bitwise_and(taken, np.uint64((1 << _DIGIT_BITS) - 1), out=taken)
        by_digit = pc.array_sort_indices(pa.array(digits)).to_numpy().view(np.int64)
        order.take(by_digit, out=spare, mode="clip")
        order, spare = spare, order
    if rest:
        keys.take(order, out=taken, mode="clip")
        if (taken[1:] < taken[:-1]).any():
            highest = np.right_shift(taken, np.uint64(rest), out=taken)
            is_same = highest[1:] == highest[:-1]
            rows = np.flatnonzero(np.append(is_same, False) | np.append(False, is_same))
            order[rows] = order[rows][np.argsort(keys[order[rows]], kind="stable")]
    return order


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
