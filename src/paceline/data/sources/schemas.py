"""Unifies files with different columns to one schema: missing values are null, numbers get the wider type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from paceline.data.block import Block, Schema, TensorType
from paceline.data.files import InputFile
from paceline.data.sources import tensors

PATH = "path"
"""The column added by `include_paths=True`."""


def unify_schemas(files: Sequence[InputFile], schemas: Sequence[Any]) -> Any:
    """One schema for all files; equal schemas are examined once."""
    distinct: list[tuple[InputFile, Any]] = []
    for file, schema in zip(files, schemas, strict=True):
        if not any(schema.equals(other, check_metadata=True) for _, other in reversed(distinct)):
            distinct.append((file, schema))
    fields: dict[str, tuple[Any, InputFile]] = {}
    for file, schema in distinct:
        for field in schema:
            known = fields.get(field.name)
            fields[field.name] = (field, file) if known is None else (_widen_field(known, field, file), known[1])
    return pa.schema([field for field, _ in fields.values()])


def _widen_field(known: tuple[Any, InputFile], field: Any, file: InputFile) -> Any:
    before, first = known
    if before.equals(field, check_metadata=True):
        return before
    if tensors.parse_tensor_field(before) != tensors.parse_tensor_field(field):
        before, field = tensors.without_tensor_metadata(before), tensors.without_tensor_metadata(field)
    if before.type == field.type:
        return before.with_nullable(True)
    one, other = _value_type(before.type), _value_type(field.type)
    try:
        both = [pa.schema([pa.field(field.name, kind)]) for kind in (one, other)]
        kind = pa.unify_schemas(both, promote_options="permissive").field(0).type
    except (pa.ArrowTypeError, pa.ArrowInvalid):
        raise ValueError(
            f"the column {field.name!r} is {before.type} in {first} and {field.type} in {file}: there is no type for "
            "both\n\nhint: read them apart, convert one with map_batches, and join them with union; or leave the "
            "column out with columns=[...]"
        ) from None
    return pa.field(field.name, kind, metadata=before.metadata)


def _value_type(kind: Any) -> Any:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def conform_table(table: Any, target: Any) -> Any:
    """Convert a table to the columns, order and types of `target`."""
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
    """The columns from directory names: integers if all files have integers there, else strings."""
    names = [name for name, _ in files[0].partition] if files else []
    whole = {name: isinstance(value, int) for file in files for name, value in file.partition if value is not None}
    return [pa.field(name, pa.int64() if whole.get(name) else pa.string()) for name in names]


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
    return Schema(list(schema.names), [_user_type(field) for field in schema])


def _user_type(field: Any) -> Any:
    found = tensors.parse_tensor_field(field)
    if found is None:
        return field.type
    dtype: Any = np.dtype(found.dtype.to_pandas_dtype())
    return TensorType(dtype, found.shape) if found.shape is not None else TensorType(np.dtype(object), None)


def table_to_block(table: Any) -> Block:
    """Convert a table: tensors to arrays, every other column to one chunk, which becomes an array without a copy."""
    table = table.combine_chunks()
    columns = {
        field.name: tensors.to_tensor_array(field, column) if tensors.parse_tensor_field(field) else column
        for field, column in zip(table.schema, table.columns, strict=True)
    }
    return Block(columns, num_rows=table.num_rows)
