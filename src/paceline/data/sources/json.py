"""JSON files: one row per line, or a document with an array of rows or a single row. A unit is a file.

Lines are read as a stream. The types come from the start of the first files; a missing field is null.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa

from paceline.data.block import ITEM, Block
from paceline.data.sources.files import InputFile, explain_read_errors
from paceline.data.sources.schemas import FileSource, FileUnit, conform_table, unify_schemas

JSON = "JSON"
_PIECE = 8 << 20
_NUM_SAMPLED_FILES = 8
"""The number of files whose start is read to infer types."""

_HINT = (
    f"hint: the fields and types are those of the beginnings of the first {_NUM_SAMPLED_FILES} files; "
    "parse_options=pyarrow.json.ParseOptions(explicit_schema=...) sets them"
)


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
    """One JSON file."""

    schema: Any
    """The fields in the file."""
    columns: tuple[str, ...]
    lines: bool
    options: JsonOptions

    def read(self) -> Iterator[Block]:
        row = 0
        for piece in read_pieces(self.file, self.lines):
            table = conform_table(parse_lines(self.file, piece, row, self.options, self.schema), self.schema)
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
            raise ValueError(place if number else f"{place}\n\n{_HINT}") from error


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
            head = stream.read(_PIECE).removeprefix(b"\xef\xbb\xbf")
            while not head.strip() and (more := stream.read(_PIECE)):
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
class JsonSource(FileSource):
    """The source of `read_json`."""

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
        schemas = [parse_lines(file, head, 0, self.options).schema for file, head in samples]
        return unify_schemas([file for file, _ in samples], schemas)
