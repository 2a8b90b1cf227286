"""CSV: a unit is a file, read as a stream. The columns and types of the first file's beginning are those of all."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import pyarrow as pa

from paceline.data.block import Block, Schema
from paceline.data.expressions import Expr
from paceline.data.files import File, reading
from paceline.data.sources.schemas import PATH, as_schema, block_of, partition_fields, with_file_columns

CSV = "CSV"
BLOCK_BYTES = 4 << 20

_HINT = (
    "hint: the columns and types of all files are those of the first one's beginning; "
    "convert_options=pyarrow.csv.ConvertOptions(column_types={...}) sets types"
)
_COLUMN = re.compile(r"In CSV column #(\d+): (?:Row #\d+: )?(.*)", re.DOTALL)


@dataclass(frozen=True)
class Options:
    """What pyarrow is told; None: its own defaults."""

    read: Any = None
    parse: Any = None
    convert: Any = None

    def opened(self, file: File, schema: Any = None, columns: Sequence[str] | None = None) -> Any:
        """A reader of record batches; with a schema, for its columns and no others."""
        from pyarrow import csv

        read = self.read or csv.ReadOptions(block_size=BLOCK_BYTES, use_threads=False)
        # An end of a line within quotes is rare, but where it is, a cut there would make other rows of it.
        parse = self.parse or csv.ParseOptions(newlines_in_values=True)
        given = self.convert or csv.ConvertOptions()
        if schema is not None:
            convert = csv.ConvertOptions(
                **{name: getattr(given, name) for name in _CONVERT},
                column_types={part.name: part.type for part in schema},
                include_columns=list(columns) if columns is not None else given.include_columns,
            )
        else:
            convert = given
        return csv.open_csv(file.stream(), read_options=read, parse_options=parse, convert_options=convert)


_CONVERT = (
    "check_utf8",
    "null_values",
    "true_values",
    "false_values",
    "decimal_point",
    "strings_can_be_null",
    "quoted_strings_can_be_null",
    "include_missing_columns",
    "auto_dict_encode",
    "auto_dict_max_cardinality",
    "timestamp_parsers",
)


@dataclass(frozen=True)
class CsvFile:
    """A unit."""

    file: File
    schema: Any
    """Of the columns in the file."""
    columns: tuple[str, ...]
    """What comes out."""
    options: Options
    partition: tuple[Any, ...]
    include_paths: bool
    chosen: bool
    """Only some of the file's columns come out."""

    @property
    def name(self) -> str:
        return self.file.name

    @property
    def num_rows(self) -> None:
        return None

    @property
    def num_bytes(self) -> int | None:
        return self.file.size or None

    def read(self) -> Iterator[Block]:
        stored = [name for name in self.columns if name in self.schema.names]
        rows = 0
        with _said(self.file, self.options, rows):
            reader = _unless_empty(self.options, self.file, self.schema, stored if self.chosen else None)
        if reader is None:
            return
        self._check(reader.schema.names)
        with reader:
            while True:
                with _said(self.file, self.options, rows):
                    batch = next(reader, None)
                if batch is None:
                    return
                rows += batch.num_rows
                table = pa.Table.from_batches([batch])
                table = with_file_columns(table, self.file, self.partition, self.include_paths)
                if table.num_rows:
                    yield block_of(table.select(list(self.columns)))

    def _check(self, found: Sequence[str]) -> None:
        known = set(self.schema.names)
        for name in found:
            if name not in known:
                raise ValueError(f"{self.file} has a column {name!r}, which the first file has not\n\n{_HINT}")
        if not self.chosen:
            for name in self.schema.names:
                if name not in found:
                    raise ValueError(f"{self.file} has no column {name!r}, which the first file has\n\n{_HINT}")


def _unless_empty(options: Options, file: File, schema: Any = None, columns: Sequence[str] | None = None) -> Any:
    """A reader; None for a file without a byte."""
    try:
        return options.opened(file, schema, columns)
    except pa.ArrowInvalid as error:
        if "Empty CSV file" in str(error):
            return None
        raise


def _known(kind: Any) -> Any:
    return pa.string() if pa.types.is_null(kind) else kind


@contextmanager
def _said(file: File, options: Options, before: int) -> Iterator[None]:
    """Errors name the file, and a column by its name instead of its number."""
    with reading(file, CSV):
        try:
            yield
        except pa.ArrowInvalid as error:
            found = _COLUMN.search(str(error))
            if found is None:
                raise
            with replace(options, convert=None).opened(file) as reader:  # with all columns, and types of its own
                names = reader.schema.names
            name = names[int(found[1])]
            raise ValueError(f"column {name!r}, after row {before}: {found[2]}\n\n{_HINT}") from error


@dataclass(frozen=True)
class Csv:
    """The source of `read_csv`."""

    name: str
    files: tuple[File, ...]
    options: Options = field(default_factory=Options)
    include_paths: bool = False
    columns: tuple[str, ...] | None = None

    def units(self) -> Sequence[CsvFile]:
        if self._stored is None:
            return ()
        unit = CsvFile(
            file=self.files[0],
            schema=self._stored,
            columns=self.columns or tuple(self._full.names),
            options=self.options,
            partition=tuple(partition_fields(self.files)),
            include_paths=self.include_paths,
            chosen=self.columns is not None,
        )
        return [replace(unit, file=file) for file in self.files if file.size or not file.local]

    def schema(self) -> Schema | None:
        if self._stored is None:
            return None
        return as_schema(pa.schema([self._full.field(name) for name in self.columns or self._full.names]))

    def projected(self, columns: Sequence[str]) -> Csv | None:
        if self._stored is None or not columns or not set(columns) & set(self._stored.names):
            return None  # no columns would mean all of them to pyarrow, and without any, rows cannot be counted
        if not set(columns) <= set(self._full.names):
            return None
        return replace(self, columns=tuple(columns))

    def pruned(self, predicate: Expr) -> None:
        return None

    def checked(self) -> Csv:
        """Itself, once the beginning of the first file has been read."""
        self.schema()
        return self

    @cached_property
    def _stored(self) -> Any:
        """The schema of the first file that has one."""
        for file in self.files:
            with _said(file, self.options, 0):
                reader = _unless_empty(self.options, file)
            if reader is None:
                continue
            with reader:
                names = reader.schema.names
                if len(set(names)) < len(names):
                    twice = next(name for name in names if names.count(name) > 1)
                    raise ValueError(f"{file} has two columns called {twice!r}: a dataset needs a name for each")
                # Nothing is known of a column that is empty so far, and as text it can be whatever comes.
                return pa.schema([(name, _known(kind)) for name, kind in zip(names, reader.schema.types, strict=True)])
        return None

    @cached_property
    def _full(self) -> Any:
        beside = [*partition_fields(self.files), *([pa.field(PATH, pa.string())] if self.include_paths else [])]
        names = {part.name for part in beside}
        return pa.schema([*(part for part in self._stored if part.name not in names), *beside])

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}
