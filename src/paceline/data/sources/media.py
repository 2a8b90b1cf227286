"""What the sources of images, audio, video, tar files and similar share: files that each contain some rows.

A unit is one file, or several small consecutive ones; the grouping depends only on the files.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from paceline.data.block import Block, Schema
from paceline.data.context import DataContext
from paceline.data.sources.files import InputFile, explain_read_errors
from paceline.data.sources.memory import unit_ranges
from paceline.data.sources.schemas import PATH, PlainSource, partition_fields, path_fields

_BLOCK_BYTES = 8 << 20
"""Rows are passed on once they reach this size, so that the first ones do not wait for the last."""


class InvalidContentError(ValueError):
    """The content of a file is invalid; the message is shown without the exception type."""


@contextlib.contextmanager
def explain_decoding(file: InputFile, kind: str) -> Iterator[None]:
    """Errors raised inside name the file and the expected format."""
    try:
        with explain_read_errors(file, kind):
            yield
    except ValueError as error:
        if isinstance(error.__cause__, InvalidContentError):
            raise ValueError(f"cannot read {file} as {kind}: {error.__cause__}") from error.__cause__
        raise


class FileReader:
    """Reads the files of one format."""

    unit_bytes = 0
    """Files are grouped into units up to this size; 0: each file is a unit."""
    max_unit_files = 256
    rows_per_file: int | None = None

    def read_blocks(self, file: InputFile) -> Iterator[Block]:
        """Yield the rows of a file. Errors name the file."""
        raise NotImplementedError

    def num_bytes(self, file: InputFile) -> int | None:
        """The approximate size in memory."""
        return file.size

    def schema(self) -> Schema | None:
        return None

    def project_columns(self, columns: Sequence[str]) -> FileReader | None:
        """A reader of only these columns; None if that saves nothing. If a column is missing, it reads all of them, so
        that the error can list the existing ones."""
        return None


@dataclass(frozen=True)
class MediaSource(PlainSource):
    """A source of files and their reader."""

    name: str
    files: tuple[InputFile, ...]
    reader: FileReader
    include_paths: bool = False
    num_units: int | None = None
    """None: chosen by size."""

    def units(self) -> Sequence[Any]:
        if self.num_units is None:
            groups: Iterable[Sequence[InputFile]] = self._group_by_size()
        else:  # one per file if there are fewer files
            groups = [self.files[start:stop] for start, stop in unit_ranges(len(self.files), 0, self.num_units, 1)]
        partition = tuple(partition_fields(self.files))
        return [MediaUnit(tuple(group), self.reader, self.include_paths, partition) for group in groups]

    def _group_by_size(self) -> Iterator[Sequence[InputFile]]:
        """Group consecutive files up to a number of bytes or files."""
        group: list[InputFile] = []
        size = 0
        for file in self.files:
            if group and (size + file.size > self.reader.unit_bytes or len(group) == self.reader.max_unit_files):
                yield group
                group, size = [], 0
            group.append(file)
            size += file.size
        if group:
            yield group

    def schema(self) -> Schema | None:
        schema = self.reader.schema()
        if schema is None:
            return None
        more = path_fields(self.files, self.include_paths)
        return Schema([*schema.names, *(f.name for f in more)], [*schema.types, *(f.type for f in more)])

    def project_columns(self, columns: Sequence[str]) -> MediaSource | None:
        added = {field.name for field in path_fields(self.files, self.include_paths)}
        reader = self.reader.project_columns([name for name in columns if name not in added])
        if reader is None:
            return None
        return replace(self, reader=reader, include_paths=self.include_paths and PATH in columns)


@dataclass(frozen=True)
class MediaUnit:
    files: tuple[InputFile, ...]
    reader: FileReader
    include_paths: bool
    partition: tuple[Any, ...]
    """The Arrow fields of the columns from directory names."""

    @property
    def name(self) -> str:
        first, last = self.files[0].name, self.files[-1].name
        return first if len(self.files) == 1 else f"{first} to {last} ({len(self.files)} files)"

    @property
    def num_rows(self) -> int | None:
        return None if self.reader.rows_per_file is None else self.reader.rows_per_file * len(self.files)

    @property
    def num_bytes(self) -> int | None:
        sizes = [self.reader.num_bytes(file) for file in self.files]
        return None if None in sizes else sum(size or 0 for size in sizes)

    def read(self) -> Iterator[Block]:
        limit = min(_BLOCK_BYTES, DataContext.get_current().target_max_block_size)
        parts: list[tuple[InputFile, Block]] = []
        size = 0
        for file in self.files:
            for block in self.reader.read_blocks(file):
                parts.append((file, block))
                size += block.nbytes
                if size >= limit:
                    yield with_origin_columns(parts, self.include_paths, self.partition)
                    parts, size = [], 0
        if parts:
            yield with_origin_columns(parts, self.include_paths, self.partition)


def with_origin_columns(
    parts: Sequence[tuple[InputFile, Block]], include_paths: bool, partition: Sequence[Any]
) -> Block:
    """Join blocks, and add the columns that say which file a row is from."""
    block = Block.concat(part for _, part in parts)
    if not partition and not include_paths:
        return block
    files = [file for file, part in parts for _ in range(part.num_rows)]
    for field in partition:
        block = block.with_column(
            field.name, pa.array([dict(file.partition)[field.name] for file in files], field.type)
        )
    return block.with_column(PATH, pa.array([file.path for file in files], pa.string())) if include_paths else block


def import_required(module: str, reader: str, extra: str) -> Any:
    """Import a library that an extra installs."""
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f'{reader} needs {module}: {error}\n\nhint: pip install "paceline[{extra}]"') from error
