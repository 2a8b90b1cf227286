"""A column of a block: a NumPy array of numbers or of tensors of one shape, or Arrow data, or objects.

What NumPy and Arrow both can hold is handed from one to the other without a copy. Rows of arrays that differ in shape
are an array of arrays, and what neither can hold is an array of Python's objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from paceline.data.scratch import concatenated

Column = Any
"""A `numpy.ndarray` whose first dimension is the rows, or a `pyarrow.ChunkedArray`."""

_REFUSED = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError)
"""How Arrow says that it cannot hold something."""


@dataclass(frozen=True)
class TensorType:
    """The type of a column of tensors: `shape` is that of one row; None where the rows differ."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...] | None

    def __str__(self) -> str:
        return f"numpy.ndarray(shape={self.shape}, dtype={self.dtype})" if self.shape != () else str(self.dtype)


def as_column(name: str, values: Any) -> Column:
    """What a caller gives as a column, in one of its forms."""
    if isinstance(values, np.ndarray):
        return _from_array(name, values)
    if isinstance(values, pa.ChunkedArray | pa.Array):
        return untensored(values)
    if isinstance(values, Sequence) and not isinstance(values, str | bytes):
        return column_of(values)
    if type(values).__module__.partition(".")[0] == "pandas" and hasattr(values, "dtype"):
        return from_series(values)
    if hasattr(values, "__array__"):  # a torch tensor, a jax array, a polars series
        return _from_array(name, np.asarray(_on_host(values)))
    raise TypeError(
        f"the column {name!r} of a batch is a {type(values).__name__}: it must be an array or a list, with a value "
        "for each row"
    )


def column_of(values: Sequence[Any]) -> Column:
    """A column from one value for each row."""
    first = next((value for value in values if value is not None), None)
    if isinstance(first, np.ndarray) or type(first).__module__.partition(".")[0] == "torch":
        return _stacked([None if value is None else np.asarray(_on_host(value)) for value in values])
    if isinstance(first, np.generic) and not isinstance(first, str | bytes):
        kinds = {type(value) for value in values}
        return np.asarray(values) if len(kinds) == 1 else _arrowed(values)
    if isinstance(first, bool | int | float) and all(type(value) is type(first) for value in values):
        array = np.asarray(values)
        # Integers that no type of 64 bits holds would become floats.
        return array if array.dtype.kind in ("f" if isinstance(first, float) else "biu") else objects(values)
    return _arrowed(values)


def from_series(series: Any) -> Column:
    """From a series of pandas. What pandas takes for missing is null, except in a column of floats."""
    if isinstance(series.dtype, np.dtype):
        values: np.ndarray[Any, Any] = series.to_numpy()
        if values.dtype != object:
            return values
        if any(isinstance(value, np.ndarray) for value in values):
            return column_of(values.tolist())
    try:
        array = pa.Array.from_pandas(series)
    except _REFUSED:
        return objects(series.tolist())
    return untensored(array)


def as_numpy(values: Column) -> np.ndarray[Any, Any]:
    """A column as one array: without a copy where that can be done."""
    if isinstance(values, np.ndarray):
        return values
    values = _plain(values)
    if _is_list(values.type):
        return _nested(values)
    array: np.ndarray[Any, Any] = (
        values.chunk(0).to_numpy(zero_copy_only=False) if values.num_chunks == 1 else values.to_numpy()
    )
    return array


def as_arrow(values: Column) -> Any:
    """A column as Arrow data: tensors as Arrow's own fixed-shape tensors."""
    if not isinstance(values, np.ndarray):
        return values
    if values.dtype == object:
        return _inferred([_lists(value) if isinstance(value, np.ndarray) else value for value in values])
    values = _supported(values)
    if values.ndim == 1:
        return pa.array(values)
    if values.size:
        return pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(values))
    flat = pa.array(values.reshape(-1))
    kind = pa.fixed_shape_tensor(flat.type, values.shape[1:])
    size = int(np.prod(values.shape[1:]))
    storage = pa.FixedSizeListArray.from_arrays(flat, size) if size else pa.array([[]] * len(values), kind.storage_type)
    return pa.ExtensionArray.from_storage(kind, storage)


def as_values(values: Column) -> list[Any]:
    """Python's own values, one for each row; arrays for tensors."""
    if not isinstance(values, np.ndarray):
        return list(values.to_pylist())
    if values.ndim > 1:
        return list(values)
    if values.dtype.kind in "mM":
        return _times(values)
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
        return pa.from_numpy_dtype(_supported(values[:0]).dtype)
    except pa.ArrowNotImplementedError:
        return TensorType(values.dtype, ())


def nbytes_of(values: Column) -> int:
    if isinstance(values, np.ndarray) and values.dtype == object:
        return sum(getattr(value, "nbytes", 64) for value in values)
    return int(values.nbytes)


def joined(columns: Sequence[Column | None], lengths: Sequence[int]) -> Column:
    """One column after the other; None is a column of so many nulls. Values of types that do not go together stay."""
    if any(isinstance(values, np.ndarray) and (values.ndim > 1 or _holds_arrays(values)) for values in columns):
        columns = [as_numpy(v) if v is not None and not isinstance(v, np.ndarray) else v for v in columns]
    if all(isinstance(values, np.ndarray) for values in columns):
        arrays: list[np.ndarray[Any, Any]] = [values for values in columns if values is not None]
        if len({array.shape[1:] for array in arrays}) == 1 and _promotable({array.dtype for array in arrays}):
            return concatenated(arrays)
    elif not any(isinstance(values, np.ndarray) and values.ndim > 1 for values in columns):
        try:
            return _appended(columns, lengths)
        except _REFUSED:
            pass  # no type holds both: what follows keeps each value as it is
    rows = [
        row
        for values, length in zip(columns, lengths, strict=True)
        for row in ([None] * length if values is None else as_values(values))
    ]
    return objects(rows)


def objects(values: Iterable[Any]) -> np.ndarray[Any, Any]:
    """An array of the values themselves."""
    values = list(values)
    array = np.empty(len(values), dtype=object)
    for index, value in enumerate(values):  # all at once, NumPy would look into lists
        array[index] = value
    return array


def untensored(values: Any) -> Column:
    """Arrow data of a caller as a column: Arrow's tensors become NumPy's."""
    chunked = values if isinstance(values, pa.ChunkedArray) else pa.chunked_array([values])
    if not isinstance(chunked.type, pa.FixedShapeTensorType):
        return chunked
    shape = tuple(chunked.type.shape)
    arrays = [_tensors(chunk, shape) for chunk in chunked.chunks if len(chunk)]
    if not arrays:
        return np.empty((0, *shape), _dtype(chunked.type.value_type))
    if any(array.dtype == object for array in arrays):
        return objects(row for array in arrays for row in array)
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _tensors(chunk: Any, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    turned = chunk.type.permutation
    if turned is not None and list(turned) != sorted(turned) and not chunk.null_count:
        array: np.ndarray[Any, Any] = chunk.to_numpy_ndarray()
        return array
    there = chunk.drop_null() if chunk.null_count else chunk
    flat: np.ndarray[Any, Any] = there.storage.flatten().to_numpy(zero_copy_only=False)
    rows = flat.reshape(len(there), *shape)
    if not chunk.null_count:
        return rows
    given = iter(rows)
    return objects(next(given) if valid else None for valid in chunk.is_valid().to_pylist())


def _dtype(kind: Any) -> Any:
    return pa.array([], type=kind).to_numpy(zero_copy_only=False).dtype


def _from_array(name: str, values: np.ndarray[Any, Any]) -> Column:
    if values.ndim == 0:
        raise ValueError(f"the column {name!r} of a batch is a single value: it needs one for each row")
    if values.dtype.kind in "US" or (values.dtype == object and values.ndim > 1):
        return _arrowed(values.tolist())
    return column_of(values.tolist()) if values.dtype == object else values


def _on_host(value: Any) -> Any:
    """A tensor of torch where NumPy can see it."""
    return value.detach().cpu() if hasattr(value, "detach") else value


def _stacked(arrays: Sequence[np.ndarray[Any, Any] | None]) -> Column:
    there = [array for array in arrays if array is not None]
    if any(array.dtype.kind in "OUS" for array in there):
        return _arrowed([None if array is None else array.tolist() for array in arrays])
    if len(there) == len(arrays) and len({(array.shape, array.dtype) for array in there}) == 1:
        return np.stack(there)
    return objects(arrays)


def _arrowed(values: Sequence[Any]) -> Column:
    """As Arrow data, if Arrow can hold it; else as the objects themselves."""
    try:
        return pa.chunked_array([_inferred(list(values))])
    except _REFUSED:
        return objects(values)


def _inferred(values: list[Any]) -> Any:
    try:
        return pa.array(values)
    except OverflowError:
        return pa.array(values, pa.uint64())


def _plain(values: Any) -> Any:
    """Arrow data without what is only a way to store or to name it."""
    if isinstance(values.type, pa.BaseExtensionType):
        values = pa.chunked_array([chunk.storage for chunk in values.chunks], type=values.type.storage_type)
    return values.cast(values.type.value_type) if pa.types.is_dictionary(values.type) else values


def _is_list(kind: Any) -> bool:
    return bool(pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _nested(values: Any) -> np.ndarray[Any, Any]:
    """Lists of one length as a matrix; others as an array of arrays."""
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
    there = array.is_valid().to_pylist()
    return objects(_regular(part) if valid else None for part, valid in zip(parts, there, strict=True))


def _regular(part: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """An array of arrays of one shape as one array."""
    if part.dtype != object or not len(part) or not all(isinstance(row, np.ndarray) for row in part):
        return part
    alike = part[0].dtype != object and len({(row.shape, row.dtype) for row in part}) == 1
    return np.stack(list(part)) if alike else part


def _lists(array: np.ndarray[Any, Any]) -> Any:
    """An array as Arrow takes it, which knows arrays of one dimension."""
    if array.ndim == 0:
        return array.item()
    return _supported(array) if array.ndim == 1 else [_lists(row) for row in array]


def _supported(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """In a form that Arrow has: it knows neither hours nor another machine's order of bytes."""
    if values.dtype.kind in "mM":
        unit = np.datetime_data(values.dtype)[0]
        known = ("s", "ms", "us", "ns") if values.dtype.kind == "m" else ("D", "s", "ms", "us", "ns")
        if unit not in known:
            return values.astype(f"{values.dtype.kind}8[s]")
    return values if values.dtype.isnative else values.astype(values.dtype.newbyteorder("="))


def _times(values: np.ndarray[Any, Any]) -> list[Any]:
    """Python's dates and durations, where those are fine enough; else NumPy's."""
    kind = "m8[us]" if values.dtype.kind == "m" else "M8[us]"
    if np.datetime_data(values.dtype)[0] in ("ns", "ps", "fs", "as"):
        rounded = values.astype(kind)
        values = rounded if ((rounded == values) | np.isnat(values)).all() else values
        if values is not rounded:
            return [None if np.isnat(value) else value for value in values]
    return list(values.tolist())


def _holds_arrays(values: np.ndarray[Any, Any]) -> bool:
    return values.dtype == object and any(isinstance(value, np.ndarray) for value in values)


def _promotable(dtypes: set[np.dtype[Any]]) -> bool:
    """Whether one type of NumPy holds the values of all as they are."""
    if len(dtypes) == 1:
        return True
    kinds = {dtype.kind for dtype in dtypes}
    if kinds <= {"i", "u"}:
        return np.result_type(*dtypes).kind != "f"
    return kinds <= {"i", "u", "f"} or kinds in ({"M"}, {"m"})


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _appended(columns: Sequence[Column | None], lengths: Sequence[int]) -> Column:
    """Through Arrow, which knows how to go on with nulls and with types that hold each other's values."""
    filled = [
        pa.chunked_array([pa.nulls(length)]) if values is None else as_arrow(values)
        for values, length in zip(columns, lengths, strict=True)
    ]
    if len({pa.types.is_dictionary(values.type) for values in filled}) > 1:
        filled = [
            values.cast(v.value_type) if pa.types.is_dictionary(v := values.type) else values for values in filled
        ]
    if len({_is_text(values.type) for values in filled if not pa.types.is_null(values.type)}) > 1:
        raise pa.ArrowInvalid("Arrow would take texts for the bytes of them")
    types = [values.type for values in filled]
    if any(map(pa.types.is_decimal, types)) and any(map(pa.types.is_floating, types)):
        raise pa.ArrowInvalid("Arrow would round decimals to floats")
    tables = [pa.table({"": values}) for values in filled]
    return untensored(pa.concat_tables(tables, promote_options="permissive").column(0))
