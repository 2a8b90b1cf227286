"""What the sources of images, audio, video, tar files and similar share: files that each contain some rows.

A unit is one file, or several small consecutive ones; the grouping depends only on the files.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from paceline.data.block import Block, Schema
from paceline.data.context import DataContext
from paceline.data.planning.plan import Unit
from paceline.data.sources.files import InputFile, explain_read_errors
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

    def read_blocks(self, file: InputFile) -> Iterator[Block]:
        """Yield the rows of a file. Errors name the file."""
        raise NotImplementedError

    def num_rows(self, file: InputFile) -> int | None:
        return None

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

    def units(self) -> Sequence[Unit]:
        groups = (
            _group_by_size(self.files, self.reader.unit_bytes)
            if self.num_units is None
            else _split_evenly(self.files, self.num_units)
        )
        partition = tuple(partition_fields(self.files))
        return [MediaUnit(tuple(group), self.reader, self.include_paths, partition) for group in groups]

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
        return _sum_if_known(self.reader.num_rows(file) for file in self.files)

    @property
    def num_bytes(self) -> int | None:
        return _sum_if_known(self.reader.num_bytes(file) for file in self.files)

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


def _sum_if_known(numbers: Iterator[int | None]) -> int | None:
    total = 0
    for number in numbers:
        if number is None:
            return None
        total += number
    return total


_MAX_UNIT_FILES = 256


def _group_by_size(files: Sequence[InputFile], unit_bytes: int) -> Iterator[Sequence[InputFile]]:
    """Group consecutive files up to a number of bytes or files."""
    group: list[InputFile] = []
    size = 0
    for file in files:
        if group and (size + file.size > unit_bytes or len(group) == _MAX_UNIT_FILES):
            yield group
            group, size = [], 0
        group.append(file)
        size += file.size
    if group:
        yield group


def _split_evenly(files: Sequence[InputFile], num_units: int) -> Iterator[Sequence[InputFile]]:
    """Split into `num_units` groups, or one per file if there are fewer files."""
    bounds = np.linspace(0, len(files), min(num_units, len(files)) + 1).astype(int).tolist()
    for begin, end in pairwise(bounds):
        yield files[begin:end]


def import_required(module: str, reader: str, extra: str) -> Any:
    """Import a library that an extra installs."""
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f'{reader} needs {module}: {error}\n\nhint: pip install "paceline[{extra}]"') from error
