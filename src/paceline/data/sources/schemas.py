"""Files whose columns differ are brought to one schema: what a file lacks is null, numbers get the wider type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from paceline.data.block import Block, Schema, TensorType
from paceline.data.files import File
from paceline.data.sources import tensors

PATH = "path"
"""The column that `include_paths=True` gives."""


def unified(files: Sequence[File], schemas: Sequence[Any]) -> Any:
    """One schema for all files; those of a kind are looked at once."""
    distinct: list[tuple[File, Any]] = []
    for file, schema in zip(files, schemas, strict=True):
        if not any(schema.equals(other, check_metadata=True) for _, other in reversed(distinct)):
            distinct.append((file, schema))
    fields: dict[str, tuple[Any, File]] = {}
    for file, schema in distinct:
        for field in schema:
            known = fields.get(field.name)
            fields[field.name] = (field, file) if known is None else (_wider(known, field, file), known[1])
    return pa.schema([field for field, _ in fields.values()])


def _wider(known: tuple[Any, File], field: Any, file: File) -> Any:
    before, first = known
    if before.equals(field, check_metadata=True):
        return before
    if tensors.told_in(before) != tensors.told_in(field):
        before, field = tensors.plain(before), tensors.plain(field)
    if before.type == field.type:
        return before.with_nullable(True)
    one, other = _undictionaried(before.type), _undictionaried(field.type)
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


def _undictionaried(kind: Any) -> Any:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def conformed(table: Any, target: Any) -> Any:
    """A table with the columns of `target`, in its order and with its types."""
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


def partition_fields(files: Sequence[File]) -> list[Any]:
    """The columns that directories give: whole numbers or text, as all files have it."""
    names = [name for name, _ in files[0].partition] if files else []
    whole = {name: isinstance(value, int) for file in files for name, value in file.partition if value is not None}
    return [pa.field(name, pa.int64() if whole.get(name) else pa.string()) for name in names]


def with_file_columns(table: Any, file: File, fields: Sequence[Any], include_paths: bool) -> Any:
    """With the columns that a file's place gives; they stand for those of the same name in the file."""
    values = dict(file.partition)
    added = [(field, values.get(field.name)) for field in fields]
    if include_paths:
        added.append((pa.field(PATH, pa.string()), file.path))
    for field, value in added:
        column = pa.repeat(pa.scalar(value, field.type), table.num_rows)
        index = table.schema.get_field_index(field.name)
        table = table.append_column(field, column) if index < 0 else table.set_column(index, field, column)
    return table


def as_schema(schema: Any) -> Schema:
    """As a user sees it, after tensors have become arrays."""
    return Schema(list(schema.names), [_shown(field) for field in schema])


def _shown(field: Any) -> Any:
    found = tensors.told_in(field)
    if found is None:
        return field.type
    dtype: Any = np.dtype(found.dtype.to_pandas_dtype())
    return TensorType(dtype, found.shape) if found.shape is not None else TensorType(np.dtype(object), None)


def block_of(table: Any) -> Block:
    """A table's rows: tensors as arrays, every other column in one chunk, so that it is an array without a copy."""
    table = table.combine_chunks()
    columns = {
        field.name: tensors.array_of(field, column) if tensors.told_in(field) else column
        for field, column in zip(table.schema, table.columns, strict=True)
    }
    return Block(columns, num_rows=table.num_rows)
