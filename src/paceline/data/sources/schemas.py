"""What sources share: their base, one schema for different files, and tensor columns in Arrow data.

In one schema for all files, missing values are null, and numbers get the wider type. Tensors are Arrow's own of a fixed
shape, and those that Ray Data writes, read without Ray: lists with the shape in the field's metadata, or lists of
(data, shape) if shapes vary.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from paceline.data.block import Block, Schema, TensorType
from paceline.data.column import Column, is_list, object_array, without_views
from paceline.data.sources.files import InputFile

PATH = "path"
"""The column added by `include_paths=True`."""
_NAME, _DETAILS = b"ARROW:extension:name", b"ARROW:extension:metadata"
_FIXED = ("ray.data.arrow_tensor", "ray.data.arrow_tensor_v2")
_VARIABLE = "ray.data.arrow_variable_shaped_tensor"


@dataclass(frozen=True, eq=False)
class RowRangeUnit:
    """Base of units that are rows `begin` to `end` of something larger."""

    name: str
    begin: int
    end: int
    num_bytes: int | None

    @property
    def num_rows(self) -> int:
        return self.end - self.begin


def unify_schemas(files: Sequence[InputFile], schemas: Sequence[Any]) -> Any:
    """One schema for all files; equal schemas are examined once."""
    distinct: list[tuple[InputFile, Any]] = []
    for file, schema in zip(files, schemas, strict=True):
        if not any(schema.equals(other, check_metadata=True) for _, other in reversed(distinct)):
            distinct.append((file, schema))
    fields: dict[str, list[tuple[Any, InputFile]]] = {}
    for file, schema in distinct:
        for field in schema:
            fields.setdefault(field.name, []).append((field.with_type(without_views(field.type)), file))
    return pa.schema([_unify_fields(same_name) for same_name in fields.values()])


def _unify_fields(fields: Sequence[tuple[Any, InputFile]]) -> Any:
    unified, _ = fields[0]
    for number, (field, file) in enumerate(fields):
        try:
            unified = _widen_field(unified, field)
        except (pa.ArrowTypeError, pa.ArrowInvalid):
            other, earlier = next((pair for pair in fields[:number] if not _can_widen(pair[0], field)), fields[0])
            raise ValueError(
                f"column {field.name!r} has incompatible types: {other.type} in {earlier}, {field.type} in {file}\n\n"
                "hint: read them separately, convert one with map_batches, and join them with union; or leave the "
                "column out with columns=[...]"
            ) from None
    return unified


def _can_widen(before: Any, field: Any) -> bool:
    try:
        _widen_field(before, field)
    except (pa.ArrowTypeError, pa.ArrowInvalid):
        return False
    return True


def _widen_field(before: Any, field: Any) -> Any:
    if before.equals(field, check_metadata=True):
        return before
    if parse_tensor_field(before) != parse_tensor_field(field):
        before, field = without_tensor_metadata(before), without_tensor_metadata(field)
    if before.type == field.type:
        return before.with_nullable(True)
    types = [kind.value_type if pa.types.is_dictionary(kind) else kind for kind in (before.type, field.type)]
    both = [pa.schema([pa.field(field.name, kind)]) for kind in types]
    kind = pa.unify_schemas(both, promote_options="permissive").field(0).type
    return pa.field(field.name, kind, metadata=before.metadata)


def conform_table(table: Any, target: Any) -> Any:
    columns = []
    for field in target:
        index = table.schema.get_field_index(field.name)
        if index < 0:
            columns.append(pa.chunked_array([pa.nulls(table.num_rows, field.type)]))
        else:
            column = table.column(index)
            columns.append(column if column.type == field.type else column.cast(field.type))
    if not columns:
        return table.select([])
    return pa.table(columns, schema=target)


def partition_fields(files: Sequence[InputFile]) -> list[Any]:
    """The columns from directory names, by the type of their values; strings if there are none."""
    names = [name for name, _ in files[0].partition] if files else []
    values = {name: value for file in files for name, value in file.partition if value is not None}
    return [pa.field(name, pa.scalar(values[name]).type if name in values else pa.string()) for name in names]


def check_unique_names(file: InputFile, names: Sequence[str]) -> None:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"{file} has two columns named {twice!r}; column names must be unique")


def path_fields(files: Sequence[InputFile], include_paths: bool) -> list[Any]:
    return [*partition_fields(files), *([pa.field(PATH, pa.string())] if include_paths else [])]


def with_file_columns(table: Any, file: InputFile, fields: Sequence[Any], include_paths: bool) -> Any:
    """Add the columns from a file's path; they replace columns of the same name in the file."""
    values = dict(file.partition)
    added = [(field, values.get(field.name)) for field in fields]
    if include_paths:
        added.append((pa.field(PATH, pa.string()), file.path))
    for field, value in added:
        column = pa.repeat(pa.scalar(value, field.type), table.num_rows)
        index = table.schema.get_field_index(field.name)
        table = table.append_column(field, column) if index < 0 else table.set_column(index, field, column)
    return table


def to_schema(schema: Any) -> Schema:
    """The schema as a user sees it, after tensors have become arrays."""
    return Schema.from_columns(list(schema.names), [_user_type(field) for field in schema])


def _user_type(field: Any) -> Any:
    tensor = parse_tensor_field(field)
    if tensor is None:
        return without_views(field.type)
    dtype: Any = np.dtype(tensor.dtype.to_pandas_dtype())
    return TensorType(dtype, tensor.shape) if tensor.shape is not None else TensorType(np.dtype(object), None)


def table_to_block(table: Any) -> Block:
    """Convert a table: tensors to arrays, every other column to one chunk, which becomes an array without a copy."""
    table = table.combine_chunks()
    columns = {
        field.name: to_tensor_array(field, column) if parse_tensor_field(field) else column
        for field, column in zip(table.schema, table.columns, strict=True)
    }
    return Block(columns, num_rows=table.num_rows)


@dataclass(frozen=True)
class TensorField:
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
        return _to_object_array(zip(column, column, strict=True))
    if column.null_count:
        shape = pa.scalar(list(tensor.shape))
        return _to_object_array((row, {"data": row, "shape": shape}) for row in column)
    arrays = [chunk.flatten().to_numpy(zero_copy_only=False) for chunk in column.chunks if len(chunk)]
    dtype = tensor.dtype.to_pandas_dtype()
    joined = np.empty(0, dtype) if not arrays else arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
    return joined.reshape(len(column), *tensor.shape)


def _to_object_array(rows: Iterable[tuple[Any, Any]]) -> Column:
    """Each row is (a value that may be null, its data and shape)."""
    return object_array(
        parts["data"].values.to_numpy(zero_copy_only=False).reshape(parts["shape"].as_py()) if row.is_valid else None
        for row, parts in rows
    )


def _parse_shape(details: bytes) -> tuple[int, ...] | None:
    """Parse from JSON; anything else is ignored, and the column stays a list column."""
    try:
        shape = json.loads(details)
    except ValueError:
        return None
    shape = shape.get("shape") if isinstance(shape, dict) else shape
    return tuple(shape) if isinstance(shape, list) and all(isinstance(size, int) for size in shape) else None
