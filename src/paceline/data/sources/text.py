"""Lines of text files: a unit is a file, and a row is a line without its end."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from paceline.data.block import Block, Schema
from paceline.data.expressions import Expr
from paceline.data.files import File, reading
from paceline.data.sources.schemas import PATH, as_schema, block_of, partition_fields, with_file_columns

TEXT = "text"
_PIECE = 4 << 20
"""About how many characters a block has."""


@dataclass(frozen=True)
class Lines:
    """A unit."""

    file: File
    encoding: str
    drop_empty_lines: bool
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
        kind = f"{self.encoding} text"
        with reading(self.file, kind):
            stream = io.TextIOWrapper(self.file.stream(), encoding=self.encoding, newline="\n")
        with stream:
            while True:
                with reading(self.file, kind):
                    lines = stream.readlines(_PIECE)
                if not lines:
                    return
                rows = [line.removesuffix("\n").removesuffix("\r") for line in lines]
                if self.drop_empty_lines:
                    rows = [line for line in rows if line and not line.isspace()]
                if rows:
                    table = pa.table({TEXT: pa.array(rows, pa.string())})
                    yield block_of(with_file_columns(table, self.file, self.partition, self.include_paths))


@dataclass(frozen=True)
class Text:
    """The source of `read_text`."""

    name: str
    files: tuple[File, ...]
    encoding: str = "utf-8"
    drop_empty_lines: bool = True
    include_paths: bool = False

    def units(self) -> Sequence[Lines]:
        partition = tuple(partition_fields(self.files))
        return [Lines(file, self.encoding, self.drop_empty_lines, partition, self.include_paths) for file in self.files]

    def schema(self) -> Schema:
        fields = [pa.field(TEXT, pa.string()), *partition_fields(self.files)]
        return as_schema(pa.schema([*fields, *([pa.field(PATH, pa.string())] if self.include_paths else [])]))

    def projected(self, columns: Sequence[str]) -> None:
        return None

    def pruned(self, predicate: Expr) -> None:
        return None
