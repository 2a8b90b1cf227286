"""Text files: CSV, JSON and plain lines. A unit is a file, read as a stream.

The start of the first CSV file decides the columns and types of all; for JSON, the starts of the first files do, and a
missing field is null.
"""

from __future__ import annotations

import copy
import io
import itertools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self, TypeVar

import pyarrow as pa

from paceline.data.block import ITEM, Block, Schema
from paceline.data.planning.plan import PlainSource
from paceline.data.sources import schemas
from paceline.data.sources.files import InputFile, explain_read_errors

_Unit = TypeVar("_Unit", bound="FileUnit")

TEXT, CSV, JSON = "text", "CSV", "JSON"
TEXT_PIECE_BYTES, CSV_BLOCK_BYTES, JSON_PIECE_BYTES = 4 << 20, 4 << 20, 8 << 20
_NUM_SAMPLED_FILES = 8
"""The number of JSON files whose start is read to infer types."""

_CSV_HINT = (
    "hint: the columns and types of all files are those of the first one's beginning; "
    "convert_options=pyarrow.csv.ConvertOptions(column_types={...}) sets types"
)
_CSV_COLUMN = re.compile(r"In CSV column #(\d+): (?:Row #\d+: )?(.*)", re.DOTALL)
_JSON_HINT = (
    f"hint: the fields and types are those of the beginnings of the first {_NUM_SAMPLED_FILES} files; "
    "parse_options=pyarrow.json.ParseOptions(explicit_schema=...) sets them"
)


@dataclass(frozen=True)
class FileUnit:
    """Base of units that are one file, with an unknown number of rows."""

    file: InputFile
    partition: tuple[Any, ...]
    include_paths: bool
    num_rows = None

    @property
    def name(self) -> str:
        return self.file.name

    @property
    def num_bytes(self) -> int | None:
        return self.file.size or None

    def make_block(self, table: Any, columns: Sequence[str] | None = None) -> Block:
        """Add the columns from the file's path, and select the output columns."""
        table = schemas.with_file_columns(table, self.file, self.partition, self.include_paths)
        return schemas.table_to_block(table if columns is None else table.select(list(columns)))


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
        """With the columns from a file's path, which replace columns of the same name."""
        fields = schemas.path_fields(self.files, self.include_paths)
        names = {field.name for field in fields}
        return pa.schema([*(field for field in self._file_schema if field.name not in names), *fields])

    def schema(self) -> Schema | None:
        return schemas.to_schema(self._full_schema) if self._file_schema is not None else None

    def validate(self) -> Self:
        """Read the start of the first files to check the arguments; return self."""
        self.schema()
        return self

    def make_units(self, kind: Callable[..., _Unit], **details: Any) -> list[_Unit]:
        """One unit per file that is not known to be empty."""
        partition = tuple(schemas.partition_fields(self.files))
        files = [file for file in self.files if file.size or not file.local_path]
        return [kind(file, partition, self.include_paths, **details) for file in files]

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}


@dataclass(frozen=True)
class TextUnit(FileUnit):
    encoding: str
    drop_empty_lines: bool

    def read(self) -> Iterator[Block]:
        kind = f"{self.encoding} text"
        with explain_read_errors(self.file, kind):
            stream = io.TextIOWrapper(self.file.stream(), encoding=self.encoding, newline="\n")
        with stream:
            while True:
                with explain_read_errors(self.file, kind):
                    lines = stream.readlines(TEXT_PIECE_BYTES)
                if not lines:
                    return
                rows = [line.removesuffix("\n").removesuffix("\r") for line in lines]
                if self.drop_empty_lines:
                    rows = [line for line in rows if line and not line.isspace()]
                if rows:
                    yield self.make_block(pa.table({TEXT: pa.array(rows, pa.string())}))


@dataclass(frozen=True)
class TextSource(FileSource):
    encoding: str = "utf-8"
    drop_empty_lines: bool = True

    _file_schema = pa.schema([(TEXT, pa.string())])

    def units(self) -> Sequence[TextUnit]:
        return self.make_units(TextUnit, encoding=self.encoding, drop_empty_lines=self.drop_empty_lines)


@dataclass(frozen=True)
class CsvOptions:
    """Options passed to pyarrow; None: its defaults."""

    read: Any = None
    parse: Any = None
    convert: Any = None

    def open_reader(self, file: InputFile, schema: Any = None, columns: Sequence[str] | None = None) -> Any:
        """Open a reader of record batches; with a schema, of exactly its columns."""
        from pyarrow import csv

        read = self.read or csv.ReadOptions(block_size=CSV_BLOCK_BYTES, use_threads=False)
        # Newlines within quotes are rare, but without this a block boundary there would corrupt rows.
        parse = self.parse or csv.ParseOptions(newlines_in_values=True)
        convert = self.convert or csv.ConvertOptions()
        if schema is not None:
            convert = copy.copy(convert)
            convert.column_types = schema
            if columns is not None:
                convert.include_columns = list(columns)
        return csv.open_csv(file.stream(), read_options=read, parse_options=parse, convert_options=convert)

    def open_unless_empty(self, file: InputFile, schema: Any = None, columns: Sequence[str] | None = None) -> Any:
        try:
            return self.open_reader(file, schema, columns)
        except pa.ArrowInvalid as error:
            if "Empty CSV file" in str(error):
                return None
            raise

    @contextmanager
    def explain_errors(self, file: InputFile, before: int) -> Iterator[None]:
        """Errors name the file, and the column by name instead of number."""
        with explain_read_errors(file, CSV):
            try:
                yield
            except pa.ArrowInvalid as error:
                match = _CSV_COLUMN.search(str(error))
                if match is None:
                    raise
                with replace(self, convert=None).open_reader(file) as reader:  # all columns, with inferred types
                    name = reader.schema.names[int(match[1])]
                raise ValueError(f"column {name!r}, after row {before}: {match[2]}\n\n{_CSV_HINT}") from error


@dataclass(frozen=True)
class CsvUnit(FileUnit):
    schema: Any
    columns: tuple[str, ...]
    options: CsvOptions
    is_projected: bool

    def read(self) -> Iterator[Block]:
        stored = [name for name in self.columns if name in self.schema.names]
        rows = 0
        with self.options.explain_errors(self.file, rows):
            reader = self.options.open_unless_empty(self.file, self.schema, stored if self.is_projected else None)
        if reader is None:
            return
        self._check_columns(reader.schema.names)
        with reader:
            while True:
                with self.options.explain_errors(self.file, rows):
                    batch = next(reader, None)
                if batch is None:
                    return
                rows += batch.num_rows
                if batch.num_rows:
                    yield self.make_block(pa.Table.from_batches([batch]), self.columns)

    def _check_columns(self, columns: Sequence[str]) -> None:
        for name in columns:
            if name not in self.schema.names:
                raise ValueError(f"{self.file} has a column {name!r} that the first file lacks\n\n{_CSV_HINT}")
        for name in () if self.is_projected else self.schema.names:
            if name not in columns:
                raise ValueError(f"{self.file} lacks the column {name!r} of the first file\n\n{_CSV_HINT}")


@dataclass(frozen=True)
class CsvSource(FileSource):
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
        names = self.columns or self._full_schema.names
        return schemas.to_schema(pa.schema([self._full_schema.field(name) for name in names]))

    def project_columns(self, columns: Sequence[str]) -> CsvSource | None:
        if self._file_schema is None or not columns or not set(columns) & set(self._file_schema.names):
            return None  # to pyarrow, no columns means all of them; and without columns, rows cannot be counted
        return replace(self, columns=tuple(columns)) if set(columns) <= set(self._full_schema.names) else None

    @cached_property
    def _file_schema(self) -> Any:
        """The schema of the first file that has one."""
        for file in self.files:
            with self.options.explain_errors(file, 0):
                reader = self.options.open_unless_empty(file)
            if reader is None:
                continue
            with reader:
                names = reader.schema.names
                schemas.check_unique_names(file, names)
                # The type of a column that is empty so far is unknown; as text it accepts any value.
                types = [pa.string() if pa.types.is_null(kind) else kind for kind in reader.schema.types]
                return pa.schema(list(zip(names, types, strict=True)))
        return None


@dataclass(frozen=True)
class JsonOptions:
    """Options passed to pyarrow; None: its defaults."""

    read: Any = None
    parse: Any = None

    def parse_table(self, lines: bytes, schema: Any = None) -> Any:
        from pyarrow import json as arrow_json

        parse = self.parse or arrow_json.ParseOptions()
        if schema is not None:
            parse = arrow_json.ParseOptions(
                explicit_schema=schema,
                newlines_in_values=parse.newlines_in_values,
                unexpected_field_behavior="ignore" if parse.unexpected_field_behavior == "ignore" else "error",
            )
        size = max(len(lines) + 1, 1 << 16)
        read = self.read or arrow_json.ReadOptions(use_threads=False, block_size=size)
        return arrow_json.read_json(pa.BufferReader(lines), read_options=read, parse_options=parse)


@dataclass(frozen=True)
class JsonUnit(FileUnit):
    schema: Any
    columns: tuple[str, ...]
    lines: bool
    options: JsonOptions

    def read(self) -> Iterator[Block]:
        row = 0
        for piece in read_pieces(self.file, self.lines):
            table = schemas.conform_table(parse_lines(self.file, piece, row, self.options, self.schema), self.schema)
            row += piece.count(b"\n")
            if table.num_rows:
                yield self.make_block(table, self.columns)


def parse_lines(file: InputFile, lines: bytes, before: int, options: JsonOptions, schema: Any = None) -> Any:
    """Parse lines into a table; errors name the file and the line."""
    with explain_read_errors(file, JSON):
        try:
            return options.parse_table(lines, schema)
        except pa.ArrowInvalid as error:
            number, trouble = _find_bad_line(lines)
            place = f"row {before + number}: {trouble}" if number else f"after row {before}: {error}"
            raise ValueError(place if number else f"{place}\n\n{_JSON_HINT}") from error


def _find_bad_line(lines: bytes) -> tuple[int, str]:
    """Number, from 1, of the first line that is not an object, and what is wrong with it; (0, "") if there is none."""
    for number, line in enumerate(lines.split(b"\n"), 1):
        if line.strip():
            try:
                value = json.loads(line)
            except ValueError as error:
                return number, f"{error}: {line[:80].decode(errors='replace')!r}"
            if not isinstance(value, dict):
                return number, f"it is a {type(value).__name__}, not an object"
    return 0, ""


def read_pieces(file: InputFile, lines: bool) -> Iterator[bytes]:
    """Yield a file's rows as JSON lines, in pieces."""
    with explain_read_errors(file, JSON):
        stream = file.stream()
    with stream:
        with explain_read_errors(file, JSON):
            head = stream.read(JSON_PIECE_BYTES).removeprefix(b"\xef\xbb\xbf")
            while not head.strip() and (more := stream.read(JSON_PIECE_BYTES)):
                head = more
        if not head.strip():
            return
        if lines or _looks_like_lines(head):
            yield from _split_at_lines(file, stream, head)
            return
        with explain_read_errors(file, JSON):
            document = json.loads(head + stream.read())
    rows = document if isinstance(document, list) else [document]
    for start in range(0, len(rows), 1 << 16):
        yield b"\n".join(map(_encode_line, rows[start : start + (1 << 16)])) + b"\n"


def _encode_line(row: Any) -> bytes:
    return json.dumps(row if isinstance(row, dict) else {ITEM: row}).encode()


def _looks_like_lines(head: bytes) -> bool:
    """Whether the first line is a complete object."""
    first = head.lstrip().partition(b"\n")[0]
    if not first.startswith(b"{"):
        return False
    try:
        json.loads(first)
    except ValueError:
        return False  # a multi-line document; if it is not, parsing it as one reports the error
    return True


def _split_at_lines(file: InputFile, stream: Any, head: bytes) -> Iterator[bytes]:
    """Cut each piece after its last newline."""
    rest = head
    while True:
        with explain_read_errors(file, JSON):
            more = stream.read(JSON_PIECE_BYTES)
        if not more:
            break
        cut = rest.rfind(b"\n") + 1
        if cut:
            yield rest[:cut]
        rest = rest[cut:] + more
    if rest.strip():
        yield rest


@dataclass(frozen=True)
class JsonSource(FileSource):
    lines: bool = False
    """Treat the files as lines, whatever the first line looks like."""
    options: JsonOptions = field(default_factory=JsonOptions)

    def units(self) -> Sequence[JsonUnit]:
        if self._file_schema is None:
            return ()
        columns = tuple(self._full_schema.names)
        return self.make_units(
            JsonUnit, schema=self._file_schema, columns=columns, lines=self.lines, options=self.options
        )

    @cached_property
    def _file_schema(self) -> Any:
        """The schema of the first files that have rows; None if none has."""
        explicit = self.options.parse.explicit_schema if self.options.parse is not None else None
        if explicit is not None and self.options.parse.unexpected_field_behavior != "infer":
            return explicit
        begun = ((file, next(read_pieces(file, self.lines), b"")) for file in self.files)
        samples = list(itertools.islice(((file, head) for file, head in begun if head), _NUM_SAMPLED_FILES))
        if not samples:
            return None
        parsed = [parse_lines(file, head, 0, self.options).schema for file, head in samples]
        return schemas.unify_schemas([file for file, _ in samples], parsed)
