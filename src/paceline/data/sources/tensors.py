"""Tensor columns in Arrow data: Arrow's own fixed-shape tensors, and those that Ray Data writes, read without Ray.

Ray's are lists with the shape in the field's metadata; tensors of varying shape are lists of (data, shape).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from paceline.data.block import Column

_NAME, _DETAILS = b"ARROW:extension:name", b"ARROW:extension:metadata"
_FIXED = ("ray.data.arrow_tensor", "ray.data.arrow_tensor_v2")
_VARIABLE = "ray.data.arrow_variable_shaped_tensor"


@dataclass(frozen=True)
class TensorField:
    """What a field says about its tensors."""

    dtype: Any
    shape: tuple[int, ...] | None
    """The shape of each row; None if rows differ."""


def parse_tensor_field(field: Any) -> TensorField | None:
    """None if the column has no tensors."""
    kind = field.type
    if isinstance(kind, pa.FixedShapeTensorType):
        is_in_order = kind.permutation in (None, list(range(len(kind.shape))))
        return TensorField(kind.value_type, tuple(kind.shape)) if is_in_order else None
    if isinstance(kind, pa.BaseExtensionType):
        name, details, storage = kind.extension_name, kind.__arrow_ext_serialize__(), kind.storage_type
    else:
        metadata = field.metadata or {}
        name, details, storage = metadata.get(_NAME, b"").decode(), metadata.get(_DETAILS, b""), kind
    if name in _FIXED and is_list(storage) and (shape := _parse_shape(details)) is not None:
        return TensorField(storage.value_type, shape)
    if name == _VARIABLE and pa.types.is_struct(storage) and {"data", "shape"} <= {part.name for part in storage}:
        return TensorField(storage.field("data").type.value_type, None)
    return None


def without_tensor_metadata(field: Any) -> Any:
    """The field as plain lists, without tensor metadata."""
    kind = field.type.storage_type if isinstance(field.type, pa.BaseExtensionType) else field.type
    metadata = {key: value for key, value in (field.metadata or {}).items() if key not in (_NAME, _DETAILS)}
    return pa.field(field.name, kind, field.nullable, metadata or None)


def to_tensor_array(field: Any, column: Any) -> Column:
    """Convert a tensor column to one array; to an array of arrays if shapes differ or some are null."""
    tensor = parse_tensor_field(field)
    assert tensor is not None
    if isinstance(column.type, pa.BaseExtensionType):
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], type=column.type.storage_type)
    if tensor.shape is None:
        return _to_object_array(zip(column, column, strict=True), len(column))
    if column.null_count:
        shape = pa.scalar(list(tensor.shape))
        return _to_object_array(((row, {"data": row, "shape": shape}) for row in column), len(column))
    arrays = [chunk.flatten().to_numpy(zero_copy_only=False) for chunk in column.chunks if len(chunk)]
    dtype = tensor.dtype.to_pandas_dtype()
    joined = np.empty(0, dtype) if not arrays else arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
    return joined.reshape(len(column), *tensor.shape)


def _to_object_array(rows: Iterable[tuple[Any, Any]], number: int) -> Column:
    """Each row is (a value that may be null, its data and shape)."""
    arrays = np.empty(number, dtype=object)
    for index, (row, parts) in enumerate(rows):
        if row.is_valid:
            arrays[index] = parts["data"].values.to_numpy(zero_copy_only=False).reshape(parts["shape"].as_py())
    return arrays


def is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _parse_shape(details: bytes) -> tuple[int, ...] | None:
    """Parse from JSON; anything else is ignored, and the column stays a list column."""
    try:
        shape = json.loads(details)
    except ValueError:
        return None
    shape = shape.get("shape") if isinstance(shape, dict) else shape
    return tuple(shape) if isinstance(shape, list) and all(isinstance(size, int) for size in shape) else None
