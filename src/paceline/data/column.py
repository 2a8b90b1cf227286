"""A column of a block: a NumPy array of numbers or of equally shaped tensors, Arrow data, or objects.

Data that both NumPy and Arrow can hold is converted without a copy. Arrays of different shapes are stored as an array
of arrays, and data that neither can hold as an array of Python objects.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Column = Any
"""A `numpy.ndarray` with rows along the first dimension, or a `pyarrow.ChunkedArray`."""

_REFUSED = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError)
"""What Arrow raises for data that it cannot hold."""
_MIN_SCRATCH_BYTES = 1 << 20
_MAX_UNUSED_BYTES = 64 << 20


@dataclass(frozen=True)
class TensorType:
    """The type of a tensor column. `shape` is the shape of one row; None if shapes differ."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...] | None

    def __str__(self) -> str:
        return f"numpy.ndarray(shape={self.shape}, dtype={self.dtype})" if self.shape != () else str(self.dtype)


def as_column(name: str, values: Any) -> Column:
    if isinstance(values, np.ndarray):
        return _from_array(name, values)
    if isinstance(values, pa.ChunkedArray | pa.Array):
        return from_arrow_column(values)
    if isinstance(values, Sequence) and not isinstance(values, str | bytes):
        return column_of(values)
    if type(values).__module__.partition(".")[0] == "pandas" and hasattr(values, "dtype"):
        return from_series(values)
    if hasattr(values, "__array__"):  # a torch tensor, a jax array, a polars series
        return _from_array(name, np.asarray(_on_host(values)))
    raise TypeError(
        f"the column {name!r} of a batch must be an array or a list with a value for each row, "
        f"got a {type(values).__name__}"
    )


def column_of(values: Sequence[Any]) -> Column:
    first = next((value for value in values if value is not None), None)
    if isinstance(first, np.ndarray) or type(first).__module__.partition(".")[0] == "torch":
        return _stack_rows([None if value is None else np.asarray(_on_host(value)) for value in values])
    if isinstance(first, np.generic) and not isinstance(first, str | bytes):
        kinds = {type(value) for value in values}
        return np.asarray(values) if len(kinds) == 1 else _to_arrow_or_objects(values)
    if isinstance(first, bool | int | float) and all(type(value) is type(first) for value in values):
        array = np.asarray(values)
        # Integers that do not fit 64 bits would become floats.
        return array if array.dtype.kind in ("f" if isinstance(first, float) else "biu") else object_array(values)
    return _to_arrow_or_objects(values)


def from_series(series: Any) -> Column:
    """Create a column from a pandas series. Values missing to pandas become null, except in float columns."""
    if isinstance(series.dtype, np.dtype):
        values: np.ndarray[Any, Any] = series.to_numpy()
        if values.dtype != object:
            return values
        if any(isinstance(value, np.ndarray) for value in values):
            return column_of(values.tolist())
    try:
        array = pa.Array.from_pandas(series)
    except _REFUSED:
        return object_array(series.tolist())
    return from_arrow_column(array)


def as_numpy(values: Column) -> np.ndarray[Any, Any]:
    """Convert a column to one array, without a copy if possible."""
    if isinstance(values, np.ndarray):
        return values
    values = _storage_values(values)
    if is_list(values.type):
        return _lists_to_numpy(values)
    array: np.ndarray[Any, Any] = (
        values.chunk(0).to_numpy(zero_copy_only=False) if values.num_chunks == 1 else values.to_numpy()
    )
    return array


def as_arrow(values: Column) -> Any:
    """Convert a column to Arrow data. Tensors become Arrow fixed-shape tensors."""
    if not isinstance(values, np.ndarray):
        return values
    if values.dtype == object:
        return _infer_array([_to_arrow_lists(value) if isinstance(value, np.ndarray) else value for value in values])
    values = _to_arrow_dtype(values)
    if values.ndim == 1:
        return pa.array(values)
    if values.size:
        return pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(values))
    flat = pa.array(values.reshape(-1))
    kind = pa.fixed_shape_tensor(flat.type, values.shape[1:])
    size = int(np.prod(values.shape[1:]))
    storage = pa.FixedSizeListArray.from_arrays(flat, size) if size else pa.array([[]] * len(values), kind.storage_type)
    return pa.ExtensionArray.from_storage(kind, storage)


def as_computable(values: Column) -> Any:
    """Convert a column to Arrow data to compute with: Arrow cannot do that with dictionaries and 16-bit floats."""
    array = as_arrow(values)
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    return array.cast(pa.float32()) if pa.types.is_float16(array.type) else array


def as_nullable(values: Column) -> Any:
    """Convert a column to Arrow data to compute with, in chunks, with NaN as null."""
    array = as_computable(values)
    array = pa.chunked_array([array]) if isinstance(array, pa.Array) else array
    is_float = pa.types.is_floating(array.type)
    return pc.if_else(pc.is_nan(array), pa.scalar(None, array.type), array) if is_float else array


def merge_zeros(values: Any) -> Any:
    """Turn -0.0 into 0.0 in Arrow data: they are equal, but Arrow tells them apart. Adding 0 makes both 0.0."""
    return pc.add(values, pa.scalar(0, values.type)) if pa.types.is_floating(values.type) else values


def as_values(values: Column) -> list[Any]:
    """Convert a column to Python values, one per row; tensors become arrays."""
    if not isinstance(values, np.ndarray):
        return list(values.to_pylist())
    if values.ndim > 1:
        return list(values)
    if values.dtype.kind in "mM":
        return _to_python_times(values)
    return list(values.tolist())


def type_of(values: Column) -> Any:
    if not isinstance(values, np.ndarray):
        return values.type
    if values.dtype == object:
        first = next((value for value in values if value is not None), None)
        return TensorType(first.dtype, None) if isinstance(first, np.ndarray) else TensorType(values.dtype, ())
    if values.ndim > 1:
        return TensorType(values.dtype, values.shape[1:])
    try:
        return pa.from_numpy_dtype(_to_arrow_dtype(values[:0]).dtype)
    except pa.ArrowNotImplementedError:
        return TensorType(values.dtype, ())


def nbytes_of(values: Column) -> int:
    if isinstance(values, np.ndarray) and values.dtype == object:
        return sum(getattr(value, "nbytes", 64) for value in values)
    return int(values.nbytes)


def concat_columns(columns: Sequence[Column | None], lengths: Sequence[int]) -> Column:
    """Concatenate columns; None stands for a column of nulls. Values of incompatible types are kept as they are."""
    if any(isinstance(values, np.ndarray) and (values.ndim > 1 or _holds_arrays(values)) for values in columns):
        columns = [as_numpy(v) if v is not None and not isinstance(v, np.ndarray) else v for v in columns]
    if all(isinstance(values, np.ndarray) for values in columns):
        arrays: list[np.ndarray[Any, Any]] = [values for values in columns if values is not None]
        if len({array.shape[1:] for array in arrays}) == 1 and _can_promote({array.dtype for array in arrays}):
            return concatenate_arrays(arrays)
    elif not any(isinstance(values, np.ndarray) and values.ndim > 1 for values in columns):
        try:
            return _concat_arrow(columns, lengths)
        except _REFUSED:
            pass  # no common type: the code below keeps each value as it is
    rows = [
        row
        for values, length in zip(columns, lengths, strict=True)
        for row in ([None] * length if values is None else as_values(values))
    ]
    return object_array(rows)


def object_array(values: Iterable[Any]) -> np.ndarray[Any, Any]:
    values = list(values)
    array = np.empty(len(values), dtype=object)
    for index, value in enumerate(values):  # one by one: NumPy would convert nested lists to more dimensions
        array[index] = value
    return array


def from_arrow_column(values: Any) -> Column:
    """Convert a caller's Arrow data to a column. Arrow tensors become NumPy arrays, and views what they view."""
    chunked = values if isinstance(values, pa.ChunkedArray) else pa.chunked_array([values])
    kind = chunked.type
    if (other := without_views(kind)) is not kind:
        chunked = chunked.cast(other)
    if not isinstance(chunked.type, pa.FixedShapeTensorType):
        return chunked
    shape = tuple(chunked.type.shape)
    arrays = [_chunk_to_tensors(chunk, shape) for chunk in chunked.chunks if len(chunk)]
    if not arrays:
        return np.empty((0, *shape), pa.array([], chunked.type.value_type).to_numpy(zero_copy_only=False).dtype)
    if any(array.dtype == object for array in arrays):
        return object_array(row for array in arrays for row in array)
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def without_views(kind: Any) -> Any:
    """Replace string and binary views in a type: Arrow can neither take, filter nor sort their values."""
    types = pa.types
    if types.is_string_view(kind):
        return pa.large_string()
    if types.is_binary_view(kind):
        return pa.large_binary()
    if types.is_dictionary(kind):
        values = without_views(kind.value_type)
        return kind if values is kind.value_type else pa.dictionary(kind.index_type, values, kind.ordered)
    if types.is_struct(kind):
        replaced = pa.struct([_field_without_views(field) for field in kind])
    elif types.is_map(kind):
        replaced = pa.map_(_field_without_views(kind.key_field), _field_without_views(kind.item_field))
    elif is_list(kind):
        make = pa.large_list if types.is_large_list(kind) else pa.list_
        size = (kind.list_size,) if types.is_fixed_size_list(kind) else ()
        replaced = make(_field_without_views(kind.value_field), *size)
    else:
        return kind
    return kind if replaced == kind else replaced


def _field_without_views(field: Any) -> Any:
    return field.with_type(without_views(field.type))


def _chunk_to_tensors(chunk: Any, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    order = chunk.type.permutation
    if order is not None and list(order) != sorted(order) and not chunk.null_count:
        array: np.ndarray[Any, Any] = chunk.to_numpy_ndarray()
        return array
    valid_rows = chunk.drop_null() if chunk.null_count else chunk
    flat: np.ndarray[Any, Any] = valid_rows.storage.flatten().to_numpy(zero_copy_only=False)
    rows = flat.reshape(len(valid_rows), *shape)
    if not chunk.null_count:
        return rows
    remaining = iter(rows)
    return object_array(next(remaining) if valid else None for valid in chunk.is_valid().to_pylist())


def _from_array(name: str, values: np.ndarray[Any, Any]) -> Column:
    if values.ndim == 0:
        raise ValueError(f"the column {name!r} of a batch must have a value for each row, got a single one")
    if values.dtype.kind in "US" or (values.dtype == object and values.ndim > 1):
        return _to_arrow_or_objects(values.tolist())
    return column_of(values.tolist()) if values.dtype == object else values


def _on_host(value: Any) -> Any:
    """Move a torch tensor to host memory, where NumPy can read it."""
    return value.detach().cpu() if hasattr(value, "detach") else value


def _stack_rows(arrays: Sequence[np.ndarray[Any, Any] | None]) -> Column:
    valid = [array for array in arrays if array is not None]
    if any(array.dtype.kind in "OUS" for array in valid):
        return _to_arrow_or_objects([None if array is None else array.tolist() for array in arrays])
    if len(valid) == len(arrays) and len({(array.shape, array.dtype) for array in valid}) == 1:
        return np.stack(valid)
    return object_array(arrays)


def _to_arrow_or_objects(values: Sequence[Any]) -> Column:
    try:
        return pa.chunked_array([_infer_array(list(values))])
    except _REFUSED:
        return object_array(values)


def _infer_array(values: list[Any]) -> Any:
    try:
        return pa.array(values)
    except OverflowError:
        return pa.array(values, pa.uint64())


def _storage_values(values: Any) -> Any:
    """Strip wrappers such as dictionaries and extension types from Arrow data."""
    if isinstance(values.type, pa.BaseExtensionType):
        values = pa.chunked_array([chunk.storage for chunk in values.chunks], type=values.type.storage_type)
    return values.cast(values.type.value_type) if pa.types.is_dictionary(values.type) else values


def is_list(kind: Any) -> bool:
    return bool(pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind))


def is_plain_numbers(values: Column) -> bool:
    """Whether these are Arrow integers or floats without nulls."""
    kind = None if isinstance(values, np.ndarray) else values.type
    return kind is not None and (pa.types.is_integer(kind) or pa.types.is_floating(kind)) and not values.null_count


def is_number_type(kind: Any) -> bool:
    is_plain = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    return bool(is_plain or pa.types.is_decimal(kind) or pa.types.is_null(kind))


def _lists_to_numpy(values: Any) -> np.ndarray[Any, Any]:
    """Convert lists of equal length to a matrix, others to an array of arrays."""
    array = values.chunk(0) if values.num_chunks == 1 else values.combine_chunks()
    items = as_numpy(pa.chunked_array([array.flatten()]))
    lengths = array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    fixed = array.type.list_size if pa.types.is_fixed_size_list(array.type) else None
    if not array.null_count and items.dtype != object and (fixed is not None or len(array)):
        length = int(lengths[0]) if fixed is None else fixed
        if (lengths == length).all():
            return items.reshape(len(array), length, *items.shape[1:])
    ends = np.cumsum(lengths)
    parts = (items[end - length : end] for end, length in zip(ends, lengths, strict=True))
    validity = array.is_valid().to_pylist()
    return object_array(_stack_if_regular(part) if valid else None for part, valid in zip(parts, validity, strict=True))


def _stack_if_regular(part: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if part.dtype != object or not len(part) or not all(isinstance(row, np.ndarray) for row in part):
        return part
    alike = part[0].dtype != object and len({(row.shape, row.dtype) for row in part}) == 1
    return np.stack(list(part)) if alike else part


def _to_arrow_lists(array: np.ndarray[Any, Any]) -> Any:
    """Convert an array to nested Arrow lists: Arrow takes one-dimensional arrays only."""
    if array.ndim == 0:
        return array.item()
    return _to_arrow_dtype(array) if array.ndim == 1 else [_to_arrow_lists(row) for row in array]


def _to_arrow_dtype(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Convert to a dtype that Arrow supports: it has neither hour units nor foreign byte order."""
    if values.dtype.kind in "mM":
        unit = np.datetime_data(values.dtype)[0]
        supported = ("s", "ms", "us", "ns") if values.dtype.kind == "m" else ("D", "s", "ms", "us", "ns")
        if unit not in supported:
            return values.astype(f"{values.dtype.kind}8[s]")
    return values if values.dtype.isnative else values.astype(values.dtype.newbyteorder("="))


def _to_python_times(values: np.ndarray[Any, Any]) -> list[Any]:
    """Convert to Python dates and durations if they are precise enough; otherwise keep NumPy's."""
    kind = "m8[us]" if values.dtype.kind == "m" else "M8[us]"
    if np.datetime_data(values.dtype)[0] in ("ns", "ps", "fs", "as"):
        rounded = values.astype(kind)
        if not ((rounded == values) | np.isnat(values)).all():
            return [None if np.isnat(value) else value for value in values]
        values = rounded
    return list(values.tolist())


def _holds_arrays(values: np.ndarray[Any, Any]) -> bool:
    return values.dtype == object and any(isinstance(value, np.ndarray) for value in values)


def _can_promote(dtypes: set[np.dtype[Any]]) -> bool:
    if len(dtypes) == 1:
        return True
    kinds = {dtype.kind for dtype in dtypes}
    if kinds <= {"i", "u"}:
        return np.result_type(*dtypes).kind != "f"
    return kinds <= {"i", "u", "f"} or kinds in ({"M"}, {"m"})


def is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _concat_arrow(columns: Sequence[Column | None], lengths: Sequence[int]) -> Column:
    filled = [
        pa.chunked_array([pa.nulls(length)]) if values is None else as_arrow(values)
        for values, length in zip(columns, lengths, strict=True)
    ]
    if len({pa.types.is_dictionary(values.type) for values in filled}) > 1:
        filled = [
            values.cast(v.value_type) if pa.types.is_dictionary(v := values.type) else values for values in filled
        ]
    if len({is_text(values.type) for values in filled if not pa.types.is_null(values.type)}) > 1:
        raise pa.ArrowInvalid("Arrow would turn text into bytes")
    types = [values.type for values in filled]
    if any(map(pa.types.is_decimal, types)) and any(map(pa.types.is_floating, types)):
        raise pa.ArrowInvalid("Arrow would round decimals to floats")
    tables = [pa.table({"": values}) for values in filled]
    return from_arrow_column(pa.concat_tables(tables, promote_options="permissive").column(0))


class _ScratchMemory:
    """Reusable memory for arrays that are concatenated from others.

    Getting pages from the system takes as long as filling them, and large arrays get new pages every time. Arrays
    created here return their memory when their last view is gone.
    """

    def __init__(self) -> None:
        # Protects the fields below. Reentrant: the garbage collector may return memory while some is being taken.
        self._lock = threading.RLock()
        self._free: list[mmap.mmap] = []
        self._num_free = 0

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any], nbytes: int) -> np.ndarray[Any, Any]:
        memory = self._take_memory(nbytes)
        base: Any = (ctypes.c_char * nbytes).from_buffer(memory)
        weakref.finalize(base, self._give_back, memory).atexit = False
        return np.ndarray(shape, dtype, base)

    def _take_memory(self, nbytes: int) -> mmap.mmap:
        with self._lock:
            fitting = [memory for memory in self._free if nbytes <= len(memory) <= 2 * nbytes]
            if fitting:
                memory = min(fitting, key=len)
                self._free.remove(memory)
                self._num_free -= len(memory)
                return memory
        return mmap.mmap(-1, -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    def _give_back(self, memory: mmap.mmap) -> None:
        with self._lock:
            self._free.append(memory)
            self._num_free += len(memory)
            while self._num_free > _MAX_UNUSED_BYTES:
                self._num_free -= len(self._free.pop(0))


_scratch = _ScratchMemory()


def scratch_array(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """An array of undefined values; large ones in memory that was used before."""
    nbytes = int(np.prod(shape)) * dtype.itemsize
    return np.empty(shape, dtype) if nbytes < _MIN_SCRATCH_BYTES else _scratch.array(shape, dtype, nbytes)


def concatenate_arrays(arrays: Sequence[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """Like `numpy.concatenate`, for arrays whose rows have the same shape."""
    dtype = np.result_type(*arrays)
    shape = (sum(map(len, arrays)), *arrays[0].shape[1:])
    return np.concatenate(arrays) if dtype.hasobject else np.concatenate(arrays, out=scratch_array(shape, dtype))
