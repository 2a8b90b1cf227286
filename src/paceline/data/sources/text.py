"""Lines of text files: a unit is a file, and a row is a line without its newline."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from paceline.data.block import Block, Schema
from paceline.data.sources.files import InputFile, explain_read_errors
from paceline.data.sources.schemas import (
    FileUnit,
    PlainSource,
    partition_fields,
    path_fields,
    table_to_block,
    to_schema,
    with_file_columns,
)

TEXT = "text"
_PIECE = 4 << 20
"""The approximate number of characters per block."""


@dataclass(frozen=True)
class TextUnit(FileUnit):
    """One text file."""

    encoding: str
    drop_empty_lines: bool
    partition: tuple[Any, ...]
    include_paths: bool

    def read(self) -> Iterator[Block]:
        kind = f"{self.encoding} text"
        with explain_read_errors(self.file, kind):
            stream = io.TextIOWrapper(self.file.stream(), encoding=self.encoding, newline="\n")
        with stream:
            while True:
                with explain_read_errors(self.file, kind):
                    lines = stream.readlines(_PIECE)
                if not lines:
                    return
                rows = [line.removesuffix("\n").removesuffix("\r") for line in lines]
                if self.drop_empty_lines:
                    rows = [line for line in rows if line and not line.isspace()]
                if rows:
                    table = pa.table({TEXT: pa.array(rows, pa.string())})
                    yield table_to_block(with_file_columns(table, self.file, self.partition, self.include_paths))


@dataclass(frozen=True)
class TextSource(PlainSource):
    """The source of `read_text`."""

    name: str
    files: tuple[InputFile, ...]
    encoding: str = "utf-8"
    drop_empty_lines: bool = True
    include_paths: bool = False

    def units(self) -> Sequence[TextUnit]:
        partition = tuple(partition_fields(self.files))
        return [
            TextUnit(file, self.encoding, self.drop_empty_lines, partition, self.include_paths) for file in self.files
        ]

    def schema(self) -> Schema:
        return to_schema(pa.schema([pa.field(TEXT, pa.string()), *path_fields(self.files, self.include_paths)]))
