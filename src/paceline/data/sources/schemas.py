"""What sources share: the base of sources and of units that are files, and one schema for different files.

Missing values are null, and numbers get the wider type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self, TypeVar

import numpy as np
import pyarrow as pa

from paceline.data.block import Block, Schema, TensorType
from paceline.data.expressions import Expr
from paceline.data.planning.plan import Source
from paceline.data.sources import tensors
from paceline.data.sources.files import InputFile

_Unit = TypeVar("_Unit", bound="FileUnit")

PATH = "path"
"""The column added by `include_paths=True`."""


class PlainSource:
    """Base of sources: no schema in advance, and neither columns nor units can be left out."""

    def schema(self) -> Schema | None:
        return None

    def project_columns(self, columns: Sequence[str]) -> Source | None:
        return None

    def prune_units(self, predicate: Expr) -> Source | None:
        return None


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


@dataclass(frozen=True)
class FileUnit:
    """Base of units that are one file, with an unknown number of rows."""

    file: InputFile
    partition: tuple[Any, ...]
    include_paths: bool

    @property
    def name(self) -> str:
        return self.file.name

    @property
    def num_rows(self) -> None:
        return None

    @property
    def num_bytes(self) -> int | None:
        return self.file.size or None

    def make_block(self, table: Any, columns: Sequence[str] | None = None) -> Block:
        """Add the columns from the file's path, and select the output columns."""
        table = with_file_columns(table, self.file, self.partition, self.include_paths)
        return table_to_block(table if columns is None else table.select(list(columns)))


@dataclass(frozen=True)
class FileSource(PlainSource):
    """Base of sources whose units are files with one schema, `_file_schema`; None if the files are empty."""

    name: str
    files: tuple[InputFile, ...]
    include_paths: bool = False

    @cached_property
    def _file_schema(self) -> Any:
        raise NotImplementedError

    @cached_property
    def _full_schema(self) -> Any:
        return with_path_fields(self._file_schema, self.files, self.include_paths)

    def schema(self) -> Schema | None:
        return to_schema(self._full_schema) if self._file_schema is not None else None

    def validate(self) -> Self:
        """Read the start of the first files to check the arguments; return self."""
        self.schema()
        return self

    def make_units(self, kind: Callable[..., _Unit], **details: Any) -> list[_Unit]:
        """One unit per file that is not known to be empty."""
        partition = tuple(partition_fields(self.files))
        files = [file for file in self.files if file.size or not file.local_path]
        return [kind(file, partition, self.include_paths, **details) for file in files]

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}


def unify_schemas(files: Sequence[InputFile], schemas: Sequence[Any]) -> Any:
    """One schema for all files; equal schemas are examined once."""
    distinct: list[tuple[InputFile, Any]] = []
    for file, schema in zip(files, schemas, strict=True):
        if not any(schema.equals(other, check_metadata=True) for _, other in reversed(distinct)):
            distinct.append((file, schema))
    fields: dict[str, tuple[Any, InputFile]] = {}
    for file, schema in distinct:
        for field in schema:
            earlier = fields.get(field.name)
            fields[field.name] = (field, file) if earlier is None else (_widen_field(earlier, field, file), earlier[1])
    return pa.schema([field for field, _ in fields.values()])


def _widen_field(earlier: tuple[Any, InputFile], field: Any, file: InputFile) -> Any:
    before, first = earlier
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
            f"column {field.name!r} has incompatible types: {before.type} in {first}, {field.type} in {file}\n\n"
            "hint: read them separately, convert one with map_batches, and join them with union; or leave the column "
            "out with columns=[...]"
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
    is_int = {name: isinstance(value, int) for file in files for name, value in file.partition if value is not None}
    return [pa.field(name, pa.int64() if is_int.get(name) else pa.string()) for name in names]


def check_unique_names(file: InputFile, names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{file} has two columns named {name!r}; column names must be unique")


def path_fields(files: Sequence[InputFile], include_paths: bool) -> list[Any]:
    """The columns derived from the path of a file."""
    return [*partition_fields(files), *([pa.field(PATH, pa.string())] if include_paths else [])]


def with_path_fields(schema: Any, files: Sequence[InputFile], include_paths: bool) -> Any:
    """The schema of a file, with the columns from its path, which replace columns of the same name."""
    fields = path_fields(files, include_paths)
    names = {field.name for field in fields}
    return pa.schema([*(field for field in schema if field.name not in names), *fields])


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
    tensor = tensors.parse_tensor_field(field)
    if tensor is None:
        return field.type
    dtype: Any = np.dtype(tensor.dtype.to_pandas_dtype())
    return TensorType(dtype, tensor.shape) if tensor.shape is not None else TensorType(np.dtype(object), None)


def table_to_block(table: Any) -> Block:
    """Convert a table: tensors to arrays, every other column to one chunk, which becomes an array without a copy."""
    table = table.combine_chunks()
    columns = {
        field.name: tensors.to_tensor_array(field, column) if tensors.parse_tensor_field(field) else column
        for field, column in zip(table.schema, table.columns, strict=True)
    }
    return Block(columns, num_rows=table.num_rows)
