"""What the sources of images, sound, video, tar files and the like share: files that each give some rows.

A unit is one file, or some small ones after one another; which, depends on the files alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from paceline.data.block import Block, Schema
from paceline.data.context import DataContext
from paceline.data.expressions import Expr
from paceline.data.files import File, reading
from paceline.data.source import Unit
from paceline.data.sources.schemas import PATH, partition_fields

_BLOCK_BYTES = 8 << 20
"""Rows are handed on when there are so many bytes of them, so that the first ones need not wait for the last."""


class UnfitError(ValueError):
    """What is wrong with a file's content, in words that need no type of error before them."""


@contextlib.contextmanager
def decoding(file: File, kind: str) -> Iterator[None]:
    """Whatever goes wrong in here is said with the file's name and with what it should have been."""
    try:
        with reading(file, kind):
            yield
    except ValueError as error:
        if isinstance(error.__cause__, UnfitError):
            raise ValueError(f"{file} cannot be read as {kind}: {error.__cause__}") from error.__cause__
        raise


class FileReader(Protocol):
    """How the files of one kind are read."""

    @property
    def unit_bytes(self) -> int:
        """Files are put together until they have so many bytes; 0: each is a unit."""
        ...

    def blocks(self, file: File) -> Iterator[Block]:
        """The rows of a file. What is wrong with it is said with its name."""
        ...

    def num_rows(self, file: File) -> int | None: ...

    def num_bytes(self, file: File) -> int | None:
        """In memory, about."""
        ...

    def schema(self) -> Schema | None: ...

    def projected(self, columns: Sequence[str]) -> FileReader | None:
        """One that makes only these columns where all of them are there, and every one where not, so that whoever
        misses one can say which there are; None where that saves nothing."""
        ...


@dataclass(frozen=True)
class MediaFiles:
    """A source: files, and how to read them."""

    name: str
    files: tuple[File, ...]
    reader: FileReader
    include_paths: bool = False
    num_units: int | None = None
    """None: as many as there should be."""

    def units(self) -> Sequence[Unit]:
        groups = (
            _grouped(self.files, self.reader.unit_bytes)
            if self.num_units is None
            else _dealt(self.files, self.num_units)
        )
        partition = tuple(partition_fields(self.files))
        return [MediaUnit(tuple(group), self.reader, self.include_paths, partition) for group in groups]

    def schema(self) -> Schema | None:
        schema = self.reader.schema()
        if schema is None:
            return None
        more = [*partition_fields(self.files), *([pa.field(PATH, pa.string())] if self.include_paths else [])]
        return Schema([*schema.names, *(f.name for f in more)], [*schema.types, *(f.type for f in more)])

    def projected(self, columns: Sequence[str]) -> MediaFiles | None:
        added = {PATH} if self.include_paths else set()
        added |= {field.name for field in partition_fields(self.files)}
        reader = self.reader.projected([name for name in columns if name not in added])
        if reader is None:
            return None
        return replace(self, reader=reader, include_paths=self.include_paths and PATH in columns)

    def pruned(self, predicate: Expr) -> MediaFiles | None:
        return None


@dataclass(frozen=True)
class MediaUnit:
    files: tuple[File, ...]
    reader: FileReader
    include_paths: bool
    partition: tuple[Any, ...]
    """The Arrow fields of the columns that the files' directories give."""

    @property
    def name(self) -> str:
        first, last = self.files[0].name, self.files[-1].name
        return first if len(self.files) == 1 else f"{first} to {last} ({len(self.files)} files)"

    @property
    def num_rows(self) -> int | None:
        return _total(self.reader.num_rows(file) for file in self.files)

    @property
    def num_bytes(self) -> int | None:
        return _total(self.reader.num_bytes(file) for file in self.files)

    def read(self) -> Iterator[Block]:
        limit = min(_BLOCK_BYTES, DataContext.get_current().target_max_block_size)
        held: list[tuple[File, Block]] = []
        size = 0
        for file in self.files:
            for block in self.reader.blocks(file):
                held.append((file, block))
                size += block.nbytes
                if size >= limit:
                    yield labelled(held, self.include_paths, self.partition)
                    held, size = [], 0
        if held:
            yield labelled(held, self.include_paths, self.partition)


def labelled(held: Sequence[tuple[File, Block]], include_paths: bool, partition: Sequence[Any]) -> Block:
    """Blocks as one, with the columns that tell which file a row is from."""
    block = Block.concat(part for _, part in held)
    if not partition and not include_paths:
        return block
    files = [file for file, part in held for _ in range(part.num_rows)]
    for field in partition:
        block = block.with_column(
            field.name, pa.array([dict(file.partition)[field.name] for file in files], field.type)
        )
    return block.with_column(PATH, pa.array([file.path for file in files], pa.string())) if include_paths else block


def _total(numbers: Iterator[int | None]) -> int | None:
    total = 0
    for number in numbers:
        if number is None:
            return None
        total += number
    return total


_MOST_FILES = 256


def _grouped(files: Sequence[File], unit_bytes: int) -> Iterator[Sequence[File]]:
    """One after the other, until there are enough bytes or files."""
    group: list[File] = []
    size = 0
    for file in files:
        if group and (size + file.size > unit_bytes or len(group) == _MOST_FILES):
            yield group
            group, size = [], 0
        group.append(file)
        size += file.size
    if group:
        yield group


def _dealt(files: Sequence[File], num_units: int) -> Iterator[Sequence[File]]:
    """As many groups as asked for, or one for each file where there are not enough."""
    bounds = np.linspace(0, len(files), min(num_units, len(files)) + 1).astype(int).tolist()
    for begin, end in pairwise(bounds):
        yield files[begin:end]


def needed(module: str, reader: str, extra: str) -> Any:
    """A library that is installed with an extra."""
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f'{reader} needs {module}: {error}\n\nhint: pip install "paceline[{extra}]"') from error
