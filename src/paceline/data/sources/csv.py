"""CSV files: a unit is a file, read as a stream. The start of the first file decides the columns and types of all."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import pyarrow as pa

from paceline.data.block import Block, Schema
from paceline.data.sources.files import InputFile, explain_read_errors
from paceline.data.sources.schemas import FileSource, FileUnit, check_unique_names, to_schema

CSV = "CSV"
BLOCK_BYTES = 4 << 20

_HINT = (
    "hint: the columns and types of all files are those of the first one's beginning; "
    "convert_options=pyarrow.csv.ConvertOptions(column_types={...}) sets types"
)
_COLUMN = re.compile(r"In CSV column #(\d+): (?:Row #\d+: )?(.*)", re.DOTALL)


@dataclass(frozen=True)
class CsvOptions:
    """Options passed to pyarrow; None: its defaults."""

    read: Any = None
    parse: Any = None
    convert: Any = None

    def open_reader(self, file: InputFile, schema: Any = None, columns: Sequence[str] | None = None) -> Any:
        """Open a reader of record batches; with a schema, of exactly its columns."""
        from pyarrow import csv

        read = self.read or csv.ReadOptions(block_size=BLOCK_BYTES, use_threads=False)
        # Newlines within quotes are rare, but without this a block boundary there would corrupt rows.
        parse = self.parse or csv.ParseOptions(newlines_in_values=True)
        convert = self.convert or csv.ConvertOptions()
        if schema is not None:
            convert = copy.copy(convert)
            convert.column_types = schema
            if columns is not None:
                convert.include_columns = list(columns)
        return csv.open_csv(file.stream(), read_options=read, parse_options=parse, convert_options=convert)


@dataclass(frozen=True)
class CsvUnit(FileUnit):
    """One CSV file."""

    schema: Any
    """The columns in the file."""
    columns: tuple[str, ...]
    options: CsvOptions
    is_projected: bool
    """Only some of the file's columns are output."""

    def read(self) -> Iterator[Block]:
        stored = [name for name in self.columns if name in self.schema.names]
        rows = 0
        with _explain_errors(self.file, self.options, rows):
            reader = _open_unless_empty(self.options, self.file, self.schema, stored if self.is_projected else None)
        if reader is None:
            return
        self._check_columns(reader.schema.names)
        with reader:
            while True:
                with _explain_errors(self.file, self.options, rows):
                    batch = next(reader, None)
                if batch is None:
                    return
                rows += batch.num_rows
                if batch.num_rows:
                    yield self.make_block(pa.Table.from_batches([batch]), self.columns)

    def _check_columns(self, columns: Sequence[str]) -> None:
        for name in columns:
            if name not in self.schema.names:
                raise ValueError(f"{self.file} has a column {name!r} that the first file lacks\n\n{_HINT}")
        if not self.is_projected:
            for name in self.schema.names:
                if name not in columns:
                    raise ValueError(f"{self.file} lacks the column {name!r} of the first file\n\n{_HINT}")


def _open_unless_empty(
    options: CsvOptions, file: InputFile, schema: Any = None, columns: Sequence[str] | None = None
) -> Any:
    """Open a reader; None for an empty file."""
    try:
        return options.open_reader(file, schema, columns)
    except pa.ArrowInvalid as error:
        if "Empty CSV file" in str(error):
            return None
        raise


@contextmanager
def _explain_errors(file: InputFile, options: CsvOptions, before: int) -> Iterator[None]:
    """Errors name the file, and the column by name instead of number."""
    with explain_read_errors(file, CSV):
        try:
            yield
        except pa.ArrowInvalid as error:
            match = _COLUMN.search(str(error))
            if match is None:
                raise
            with replace(options, convert=None).open_reader(file) as reader:  # all columns, with inferred types
                names = reader.schema.names
            name = names[int(match[1])]
            raise ValueError(f"column {name!r}, after row {before}: {match[2]}\n\n{_HINT}") from error


@dataclass(frozen=True)
class CsvSource(FileSource):
    """The source of `read_csv`."""

    options: CsvOptions = field(default_factory=CsvOptions)
    columns: tuple[str, ...] | None = None

    def units(self) -> Sequence[CsvUnit]:
        if self._file_schema is None:
            return ()
        return self.make_units(
            CsvUnit,
            schema=self._file_schema,
            columns=self.columns or tuple(self._full_schema.names),
            options=self.options,
            is_projected=self.columns is not None,
        )

    def schema(self) -> Schema | None:
        if self._file_schema is None:
            return None
        return to_schema(pa.schema([self._full_schema.field(name) for name in self.columns or self._full_schema.names]))

    def project_columns(self, columns: Sequence[str]) -> CsvSource | None:
        if self._file_schema is None or not columns or not set(columns) & set(self._file_schema.names):
            return None  # to pyarrow, no columns means all of them; and without columns, rows cannot be counted
        if not set(columns) <= set(self._full_schema.names):
            return None
        return replace(self, columns=tuple(columns))

    @cached_property
    def _file_schema(self) -> Any:
        """The schema of the first file that has one."""
        for file in self.files:
            with _explain_errors(file, self.options, 0):
                reader = _open_unless_empty(self.options, file)
            if reader is None:
                continue
            with reader:
                names = reader.schema.names
                check_unique_names(file, names)
                # The type of a column that is empty so far is unknown; as text it accepts any value.
                types = [pa.string() if pa.types.is_null(kind) else kind for kind in reader.schema.types]
                return pa.schema(list(zip(names, types, strict=True)))
        return None
