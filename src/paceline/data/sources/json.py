"""JSON: a line for each row, or a document with an array of rows, or with one. A unit is a file.

Lines are read as a stream. The types are those of the beginnings of the first files; a row that lacks a field has null
there.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import pyarrow as pa

from paceline.data.block import ITEM, Block, Schema
from paceline.data.expressions import Expr
from paceline.data.files import File, reading
from paceline.data.sources.schemas import (
    PATH,
    as_schema,
    block_of,
    conformed,
    partition_fields,
    unified,
    with_file_columns,
)

JSON = "JSON"
_PIECE = 8 << 20
_LOOKED_AT = 8
"""How many files' beginnings the types are taken from."""

_HINT = (
    f"hint: the fields and types are those of the beginnings of the first {_LOOKED_AT} files; "
    "parse_options=pyarrow.json.ParseOptions(explicit_schema=...) sets them"
)


@dataclass(frozen=True)
class Options:
    """What pyarrow is told; None: its own defaults."""

    read: Any = None
    parse: Any = None

    def table(self, lines: bytes, schema: Any = None) -> Any:
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
class JsonFile:
    """A unit."""

    file: File
    schema: Any
    """Of the fields in the file."""
    columns: tuple[str, ...]
    """What comes out."""
    lines: bool
    options: Options
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

    def read(self) -> Iterator[Block]:
        row = 0
        for piece in pieces(self.file, self.lines):
            table = conformed(parsed(self.file, piece, row, self.options, self.schema), self.schema)
            row += piece.count(b"\n")
            if table.num_rows:
                table = with_file_columns(table, self.file, self.partition, self.include_paths)
                yield block_of(table.select(list(self.columns)))


def parsed(file: File, lines: bytes, before: int, options: Options, schema: Any = None) -> Any:
    """A table from lines; what is wrong is said with the file and the line."""
    with reading(file, JSON):
        try:
            return options.table(lines, schema)
        except pa.ArrowInvalid as error:
            number, trouble = _first_bad(lines)
            place = f"row {before + number}: {trouble}" if number else f"after row {before}: {error}"
            raise ValueError(place if number else f"{place}\n\n{_HINT}") from error


def _first_bad(lines: bytes) -> tuple[int, str]:
    """Number, from 1, of the first line that is no object, and what is wrong with it; (0, "") if all are."""
    for number, line in enumerate(lines.split(b"\n"), 1):
        if line.strip():
            try:
                found = json.loads(line)
            except ValueError as error:
                return number, f"{error}: {line[:80].decode(errors='replace')!r}"
            if not isinstance(found, dict):
                return number, f"it is a {type(found).__name__}, not an object"
    return 0, ""


def pieces(file: File, lines: bool) -> Iterator[bytes]:
    """A file's rows as JSON lines, some at a time."""
    with reading(file, JSON):
        stream = file.stream()
    with stream:
        with reading(file, JSON):
            head = stream.read(_PIECE).removeprefix(b"\xef\xbb\xbf")
            while not head.strip() and (more := stream.read(_PIECE)):
                head = more
        if not head.strip():
            return
        if lines or _is_lines(head):
            yield from _lines(file, stream, head)
            return
        with reading(file, JSON):
            found = json.loads(head + stream.read())
    rows = found if isinstance(found, list) else [found]
    for start in range(0, len(rows), 1 << 16):
        yield b"\n".join(map(_line, rows[start : start + (1 << 16)])) + b"\n"


def _line(row: Any) -> bytes:
    return json.dumps(row if isinstance(row, dict) else {ITEM: row}).encode()


def _is_lines(head: bytes) -> bool:
    """Whether the first line is an object by itself."""
    first = head.lstrip().partition(b"\n")[0]
    if not first.startswith(b"{"):
        return False
    try:
        json.loads(first)
    except ValueError:
        return False  # a document over many lines; if it is none, reading it as one will tell what is wrong
    return True


def _lines(file: File, stream: Any, head: bytes) -> Iterator[bytes]:
    """Cut behind the last end of a line in each piece."""
    rest = head
    while True:
        with reading(file, JSON):
            more = stream.read(_PIECE)
        if not more:
            break
        cut = rest.rfind(b"\n") + 1
        if cut:
            yield rest[:cut]
        rest = rest[cut:] + more
    if rest.strip():
        yield rest


@dataclass(frozen=True)
class Json:
    """The source of `read_json`."""

    name: str
    files: tuple[File, ...]
    lines: bool = False
    """The files are lines, whatever their first one looks like."""
    options: Options = field(default_factory=Options)
    include_paths: bool = False

    def units(self) -> Sequence[JsonFile]:
        if self._stored is None:
            return ()
        unit = JsonFile(
            file=self.files[0],
            schema=self._stored,
            columns=tuple(self._full.names),
            lines=self.lines,
            options=self.options,
            partition=tuple(partition_fields(self.files)),
            include_paths=self.include_paths,
        )
        return [replace(unit, file=file) for file in self.files if file.size or not file.local]

    def schema(self) -> Schema | None:
        return as_schema(self._full) if self._stored is not None else None

    def projected(self, columns: Sequence[str]) -> None:
        return None

    def pruned(self, predicate: Expr) -> None:
        return None

    def checked(self) -> Json:
        """Itself, once the beginnings of the first files have been read."""
        self.schema()
        return self

    @cached_property
    def _stored(self) -> Any:
        """The schema of the first files that have rows; None where none has."""
        explicit = self.options.parse.explicit_schema if self.options.parse is not None else None
        if explicit is not None and self.options.parse.unexpected_field_behavior != "infer":
            return explicit
        begun = ((file, next(pieces(file, self.lines), b"")) for file in self.files)
        found = list(itertools.islice(((file, head) for file, head in begun if head), _LOOKED_AT))
        if not found:
            return None
        schemas = [parsed(file, head, 0, self.options).schema for file, head in found]
        return unified([file for file, _ in found], schemas)

    @cached_property
    def _full(self) -> Any:
        beside = [*partition_fields(self.files), *([pa.field(PATH, pa.string())] if self.include_paths else [])]
        names = {part.name for part in beside}
        return pa.schema([*(part for part in self._stored if part.name not in names), *beside])

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}
