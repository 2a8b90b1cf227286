"""Columns of a block as preprocessors see them: numbers, categories, lists and missing values.

Null and nan are both missing: statistics ignore them, and they stay missing when numbers are transformed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paceline.data.block import Block, Column, as_numpy, list_columns
from paceline.data.column import as_nullable, is_list, is_text, merge_zeros

Array = np.ndarray[Any, Any]


def check_columns(block: Block, names: Iterable[str], who: str) -> None:
    missing = [name for name in names if name not in block.columns]
    if missing:
        raise ValueError(
            f"{who}: unknown column {', '.join(map(repr, missing))}; "
            f"the columns are {list_columns(block.columns, missing[0])}\n\n"
            "hint: an earlier preprocessor or select_columns() may have dropped or renamed it"
        )


def numeric_column(block: Block, name: str, who: str) -> Array:
    """Return a number column as a one-dimensional array, with nan for missing values."""
    values = block.columns[name]
    if not isinstance(values, np.ndarray):
        values = _arrow_numbers(values, name, who)
    if values.ndim != 1:
        raise ValueError(
            f"{who}: column {name!r} must have single numbers, got tensors of shape {values.shape[1:]}\n\n"
            "hint: preprocess single columns before Concatenator joins them"
        )
    if values.dtype.kind not in "biuf":
        raise ValueError(f"{who}: column {name!r} must have numbers, got {_value_kind(values)}")
    return values


def floats(values: Array) -> Array:
    """Convert to float64 unless already float: subtracting from unsigned integers would wrap around."""
    return values if values.dtype.kind == "f" else values.astype(np.float64)


def drop_missing(values: Array) -> Array:
    if values.dtype.kind != "f":
        return values
    missing = np.isnan(values)
    return values[~missing] if missing.any() else values


def to_plain_arrow(values: Column) -> Any:
    """Return a column as Arrow data without dictionaries, with nan as null; None if Arrow cannot hold it."""
    if isinstance(values, np.ndarray) and (values.ndim != 1 or values.dtype == object):
        return None
    return merge_zeros(as_nullable(values))


def holds_lists(values: Column) -> bool:
    """Whether each row is a list: a tensor, an array or an Arrow list."""
    if not isinstance(values, np.ndarray):
        return is_list(values.type)
    if values.ndim > 1:
        return True
    first = next((value for value in values if value is not None), None) if values.dtype == object else None
    return isinstance(first, list | tuple | np.ndarray)


def to_lists(values: Column) -> list[list[Any] | None]:
    rows = values if isinstance(values, np.ndarray) else values.to_pylist()
    return [row.tolist() if isinstance(row, np.ndarray) else row if row is None else list(row) for row in rows]


def to_python_values(values: Column) -> list[Any]:
    """Return a Python value for each row: tuples for lists, None for missing values."""
    if holds_lists(values):
        return [None if row is None else tuple(row) for row in to_lists(values)]
    arrow = to_plain_arrow(values)
    if arrow is not None:
        return arrow.to_pylist()  # type: ignore[no-any-return]
    return [None if isinstance(value, float) and value != value else value for value in values.tolist()]


def refuse_missing(block: Block, names: Iterable[str], who: str) -> None:
    for name in names:
        count = _num_missing(block.columns[name])
        if count:
            raise ValueError(
                f"{who}: column {name!r} has {count} missing values among {block.num_rows}\n\n"
                "hint: fill them with SimpleImputer first"
            )


def look_up_indices(values: Column, index: Mapping[Any, int]) -> Array:
    """Return the number that `index` has for each row's value; -1 if it has none."""
    arrow = None if holds_lists(values) else to_plain_arrow(values)
    if arrow is not None and index:
        compared = _cast_alike(arrow, list(index))
        if compared is not None:
            positions = as_numpy(pc.fill_null(pc.index_in(compared[0], value_set=compared[1], skip_nulls=True), -1))
            numbers = np.fromiter(index.values(), np.int64, len(index))
            return np.where(positions < 0, -1, numbers[positions])
    rows = to_python_values(values)
    return np.fromiter((index.get(value, -1) for value in rows), np.int64, len(rows))


def count_vectors(rows: Sequence[Iterable[Any] | None], index: Mapping[Any, int], width: int) -> Array:
    numbers_by_row = [[index.get(item, -1) for item in row or ()] for row in rows]
    numbers = np.fromiter((number for row in numbers_by_row for number in row), np.int64)
    row_indices = np.repeat(np.arange(len(rows)), [len(row) for row in numbers_by_row])
    vectors = np.zeros((len(rows), width), np.int64)
    np.add.at(vectors, (row_indices[numbers >= 0], numbers[numbers >= 0]), 1)
    return vectors


def _cast_alike(values: Any, keys: Sequence[Any]) -> tuple[Any, Any] | None:
    """Convert both to Arrow data of one type, if that loses nothing."""
    try:
        values_set = to_plain_arrow(pa.array(keys))
        if values.type != values_set.type:
            same_kind = any(
                kind(values.type) and kind(values_set.type)
                for kind in (pa.types.is_integer, pa.types.is_floating, is_text)
            )
            if not same_kind:
                return None
            values = values.cast(values_set.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
        return None
    return values, values_set


def _arrow_numbers(values: Any, name: str, who: str) -> Array:
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    kind = values.type
    if pa.types.is_null(kind):
        return np.full(len(values), np.nan)
    if pa.types.is_decimal(kind) or (pa.types.is_boolean(kind) and values.null_count):
        values = values.cast(pa.float64())
    elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        if is_list(kind):
            return as_numpy(values)
        raise ValueError(f"{who}: column {name!r} must have numbers, got {kind}")
    return as_numpy(values)


def _num_missing(values: Column) -> int:
    if not isinstance(values, np.ndarray):
        nans = int(pc.sum(pc.is_nan(values)).as_py() or 0) if pa.types.is_floating(values.type) else 0
        return int(values.null_count) + nans
    if values.dtype.kind == "f":
        return int(np.isnan(values).any(axis=tuple(range(1, values.ndim))).sum())
    if values.dtype == object:
        return sum(1 for value in values if value is None or (isinstance(value, float) and value != value))
    return 0


def _value_kind(values: Array) -> str:
    first = next((value for value in values if value is not None), None) if values.dtype == object else None
    return type(first).__name__ if first is not None else str(values.dtype)
