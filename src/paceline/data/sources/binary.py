"""Files as raw bytes, one row each. Small files are grouped into units."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from paceline.data.block import Block, Schema
from paceline.data.sources.files import InputFile
from paceline.data.sources.schemas import (
    PlainSource,
    partition_fields,
    path_fields,
    table_to_block,
    to_schema,
    with_file_columns,
)

BYTES = "bytes"
_UNIT_BYTES = 32 << 20
_UNIT_FILES = 512
_PIECE_BYTES = 8 << 20
_WIDE_BYTES = 1 << 30
"""From this size on, Arrow's 32-bit binary type may be too small for a joined column."""


@dataclass(frozen=True)
class BinaryFileUnit:
    """Neighbouring files, read as one unit."""

    files: tuple[InputFile, ...]
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
                yield table_to_block(pa.concat_tables(rows))
                rows, size = [], 0
            rows.append(self._row(file, content))
            size += len(content)
        yield table_to_block(pa.concat_tables(rows))

    def _row(self, file: InputFile, content: bytes) -> Any:
        table = pa.table({BYTES: pa.array([content], binary_type(self.wide))})
        return with_file_columns(table, file, self.partition, self.include_paths)


def binary_type(wide: bool) -> Any:
    return pa.large_binary() if wide else pa.binary()


@dataclass(frozen=True)
class BinaryFileSource(PlainSource):
    """The source of `read_binary_files`."""

    name: str
    files: tuple[InputFile, ...]
    include_paths: bool = False
    num_units: int | None = None

    def units(self) -> Sequence[BinaryFileUnit]:
        partition = tuple(partition_fields(self.files))
        return [BinaryFileUnit(group, partition, self.include_paths, self._is_wide) for group in _group_files(self)]

    def schema(self) -> Schema:
        return to_schema(
            pa.schema([pa.field(BYTES, binary_type(self._is_wide)), *path_fields(self.files, self.include_paths)])
        )

    @property
    def _is_wide(self) -> bool:
        return any(
            file.size >= _WIDE_BYTES or (file.compression and file.size >= _WIDE_BYTES // 16) for file in self.files
        )


def _group_files(source: BinaryFileSource) -> Iterator[tuple[InputFile, ...]]:
    """Group neighbouring files, by the requested number of units or by size."""
    files = source.files
    if source.num_units is not None:
        number = min(source.num_units, len(files))
        for index in range(number):
            yield files[len(files) * index // number : len(files) * (index + 1) // number]
        return
    group: list[InputFile] = []
    for file in files:
        if group and (len(group) == _UNIT_FILES or sum(other.size for other in group) + file.size > _UNIT_BYTES):
            yield tuple(group)
            group = []
        group.append(file)
    yield tuple(group)
