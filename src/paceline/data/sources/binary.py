"""Files as they are: a row is a whole file. Small files are read many to a unit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from paceline.data.block import Block, Schema
from paceline.data.expressions import Expr
from paceline.data.files import File
from paceline.data.sources.schemas import PATH, as_schema, block_of, partition_fields, with_file_columns

BYTES = "bytes"
_UNIT_BYTES = 32 << 20
_UNIT_FILES = 512
_PIECE_BYTES = 8 << 20
_WIDE = 1 << 30
"""From here on, Arrow's binary type is not sure to hold what comes together."""


@dataclass(frozen=True)
class WholeFiles:
    """A unit."""

    files: tuple[File, ...]
    partition: tuple[Any, ...]
    include_paths: bool
    wide: bool

    @property
    def name(self) -> str:
        first, last = self.files[0].name, self.files[-1].name
        return first if len(self.files) == 1 else f"{first} to {last}"

    @property
    def num_rows(self) -> int:
        return len(self.files)

    @property
    def num_bytes(self) -> int | None:
        return sum(file.size for file in self.files) or None

    def read(self) -> Iterator[Block]:
        rows: list[Any] = []
        size = 0
        for file in self.files:
            content = file.read()
            if rows and size + len(content) > _PIECE_BYTES:
                yield block_of(pa.concat_tables(rows))
                rows, size = [], 0
            rows.append(self._row(file, content))
            size += len(content)
        yield block_of(pa.concat_tables(rows))

    def _row(self, file: File, content: bytes) -> Any:
        table = pa.table({BYTES: pa.array([content], binary_type(self.wide))})
        return with_file_columns(table, file, self.partition, self.include_paths)


def binary_type(wide: bool) -> Any:
    return pa.large_binary() if wide else pa.binary()


@dataclass(frozen=True)
class Binary:
    """The source of `read_binary_files`."""

    name: str
    files: tuple[File, ...]
    include_paths: bool = False
    num_units: int | None = None

    def units(self) -> Sequence[WholeFiles]:
        partition = tuple(partition_fields(self.files))
        return [WholeFiles(group, partition, self.include_paths, self._wide) for group in _groups(self)]

    def schema(self) -> Schema:
        fields = [pa.field(BYTES, binary_type(self._wide)), *partition_fields(self.files)]
        return as_schema(pa.schema([*fields, *([pa.field(PATH, pa.string())] if self.include_paths else [])]))

    def projected(self, columns: Sequence[str]) -> None:
        return None

    def pruned(self, predicate: Expr) -> None:
        return None

    @property
    def _wide(self) -> bool:
        return any(file.size >= _WIDE or (file.compression and file.size >= _WIDE // 16) for file in self.files)


def _groups(source: Binary) -> Iterator[tuple[File, ...]]:
    """Neighbours together, by number or by size."""
    files = source.files
    if source.num_units is not None:
        number = min(source.num_units, len(files))
        for index in range(number):
            yield files[len(files) * index // number : len(files) * (index + 1) // number]
        return
    found: list[File] = []
    for file in files:
        if found and (len(found) == _UNIT_FILES or sum(other.size for other in found) + file.size > _UNIT_BYTES):
            yield tuple(found)
            found = []
        found.append(file)
    yield tuple(found)
