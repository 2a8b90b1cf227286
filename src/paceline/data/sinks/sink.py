"""The interface of a file format, and the distribution of rows to files.

Files are written to a staging directory under arbitrary names, and reported as `StagedFile`. Their final names follow
from the order of the units and are assigned once all files are complete.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paceline._core.arguments import check_choice
from paceline.data.block import Block, as_arrow
from paceline.data.datasource.filename_provider import FileNaming
from paceline.data.datasource.partitioning import NULL_PARTITION
from paceline.data.planning.plan import PoolSpec, Transform, TransformScope
from paceline.data.sources.files import COMPRESSIONS

MAX_OPEN_FILES = 128


class FileWriter:
    """A file being written."""

    def __init__(self, path: Path, sink: Any) -> None:
        self.path, self.sink = path, sink

    def can_append(self, block: Block) -> bool:
        """Whether these rows can go into the same file as the previous ones."""
        return True

    def write(self, block: Block) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """The file is complete afterwards."""

    def abandon(self) -> None:
        """The file is no longer wanted."""
        self.close()


class FormatSink:
    name: ClassVar[str]
    """The public function: `write_parquet`."""
    writer: ClassVar[type[FileWriter]]
    one_row_each: ClassVar[bool] = False

    @property
    def suffix(self) -> str:
        raise NotImplementedError


@dataclass(frozen=True)
class FileSizing:
    min_rows: int | None = None
    max_rows: int | None = None
    partition_cols: tuple[str, ...] = ()
    min_bytes: int | None = None
    """Approximate, in memory."""

    @property
    def spans_units(self) -> bool:
        """Whether rows of several units go to one file."""
        return self.min_rows is not None or self.min_bytes is not None


class StagedFile(msgspec.Struct, frozen=True):
    file: str
    partition: str
    """The directory it belongs in, such as `year=2024/month=5`; empty if rows are not partitioned."""
    num_rows: int
    num_bytes: int
    name: str = ""
    """Chosen by a `FilenameProvider`; empty: the files are numbered."""


@dataclass
class _OpenFile:
    writer: FileWriter
    file: str
    partition: str
    sequence: int
    name: str
    num_rows: int = 0
    num_bytes: int = 0


@dataclass
class PartitionedWriter:
    sink: FormatSink
    directory: Path
    sizes: FileSizing
    naming: FileNaming | None = None
    unit: int = 0
    _open: dict[str, _OpenFile] = field(default_factory=dict)
    _done: list[tuple[int, StagedFile]] = field(default_factory=list)
    _num_begun: int = 0

    def add(self, block: Block) -> None:
        if not self.sizes.partition_cols:
            self._add_rows("", block)
            return
        for partition, part in split_by_partition(block, self.sizes.partition_cols):
            self._add_rows(partition, part)

    def end_unit(self) -> None:
        """Close files that have enough rows."""
        for partition in [each for each, open_file in self._open.items() if self._is_large(open_file)]:
            self._close(partition)

    def _is_large(self, open_file: _OpenFile) -> bool:
        sizes = self.sizes
        return open_file.num_rows >= (sizes.min_rows or 0) and open_file.num_bytes >= (sizes.min_bytes or 0)

    def finish(self) -> list[StagedFile]:
        """Close all files; return them in the order in which they were started."""
        for partition in list(self._open):
            self._close(partition)
        return [written for _, written in sorted(self._done, key=lambda item: item[0])]

    def abandon(self) -> None:
        for open_file in self._open.values():
            open_file.writer.abandon()
        self._open.clear()

    def _add_rows(self, partition: str, block: Block) -> None:
        most = 1 if self.sink.one_row_each else self.sizes.max_rows
        start = 0
        while start < block.num_rows:
            open_file = self._file_for(partition, block.slice(start))
            stop = block.num_rows if most is None else min(block.num_rows, start + most - open_file.num_rows)
            open_file.writer.write(block.slice(start, stop))
            open_file.num_rows += stop - start
            open_file.num_bytes += block.nbytes * (stop - start) // block.num_rows
            start = stop
            if open_file.num_rows == most:
                self._close(partition)

    def _file_for(self, partition: str, block: Block) -> _OpenFile:
        open_file = self._open.pop(partition, None)
        if open_file is not None and not open_file.writer.can_append(block):
            self._open[partition] = open_file
            self._close(partition)
            open_file = None
        if open_file is None:
            if len(self._open) >= MAX_OPEN_FILES:
                self._close(next(iter(self._open)))
            name = ""
            if self.naming is not None:
                of_unit = self.unit, self._num_begun, self.sink.suffix
                name = self.naming.name_file(block, self.sink.one_row_each, *of_unit)
            file = f"{uuid.uuid4().hex}{self.sink.suffix}"
            writer = self.sink.writer(self.directory / file, self.sink)
            open_file = _OpenFile(writer, file, partition, self._num_begun, name)
            self._num_begun += 1
        self._open[partition] = open_file  # Moved to the end: the first is the least recently used.
        return open_file

    def _close(self, partition: str) -> None:
        open_file = self._open.pop(partition)
        open_file.writer.close()
        num_bytes = sync_path(self.directory / open_file.file)
        staged = StagedFile(open_file.file, partition, open_file.num_rows, num_bytes, open_file.name)
        self._done.append((open_file.sequence, staged))


@dataclass(frozen=True)
class WriteFiles(Transform):
    """Writes the rows of each unit, and yields one row per file."""

    label = "{0.sink.name}"
    sink: FormatSink
    directory: str
    sizes: FileSizing
    pool: PoolSpec | None = None
    naming: FileNaming | None = None

    def apply(self, blocks: Iterator[Block], scope: TransformScope) -> Iterator[Block]:
        if written := write_files(blocks, self.sink, Path(self.directory), self.sizes, self.naming, scope.number):
            yield Block.from_rows([msgspec.structs.asdict(file) for file in written])


def write_files(
    blocks: Iterable[Block | None],
    sink: FormatSink,
    directory: Path,
    sizes: FileSizing,
    naming: FileNaming | None = None,
    unit: int = 0,
) -> list[StagedFile]:
    """Write all blocks; None among them marks the end of a unit."""
    writer = PartitionedWriter(sink, directory, sizes, naming, unit)
    try:
        for block in blocks:
            if block is None:
                writer.end_unit()
            else:
                writer.add(block)
        return writer.finish()
    except BaseException:
        writer.abandon()
        raise


def parse_staged_files(block: Block) -> list[StagedFile]:
    return [StagedFile(**row) for row in block.rows()]


def split_by_partition(block: Block, names: tuple[str, ...]) -> Iterator[tuple[str, Block]]:
    """Group rows by the values of some columns, and drop those columns: yields `a=1/b=x` and its rows."""
    if not block.num_rows:
        return
    codes = np.zeros(block.num_rows, np.int64)
    texts: list[list[str]] = []
    for name in names:
        numbers, values = _encode_partition_values(name, block.column(name))
        codes = codes * len(values) + numbers
        texts.append([f"{quote(name, safe='')}={NULL_PARTITION if t is None else quote(t, safe='')}" for t in values])
    rest = block.drop(names)
    if not rest.columns:
        raise ValueError(f"partition_cols must leave a column to write, got {list(names)}, which are all columns")
    _, firsts, inverse = np.unique(codes, return_index=True, return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    ends = np.cumsum(np.bincount(inverse))
    for group in np.argsort(firsts, kind="stable"):
        code, segments = int(codes[firsts[group]]), []
        for column_texts in reversed(texts):
            code, number = divmod(code, len(column_texts))
            segments.append(column_texts[number])
        rows = order[ends[group - 1] if group else 0 : ends[group]]
        yield "/".join(reversed(segments)), rest.take(rows)


def _encode_partition_values(name: str, values: Any) -> tuple[Any, list[str | None]]:
    """A code for each row, and the text of each code."""
    column = as_arrow(values)
    column = column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    try:
        encoded = pc.dictionary_encode(column, null_encoding="encode").combine_chunks()
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.chunk(0)
        texts: list[str | None] = encoded.dictionary.cast(pa.string()).to_pylist()
    except pa.ArrowException:
        raise ValueError(
            f"partition_cols: column {name!r} has type {column.type}, which cannot be a directory name"
        ) from None
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), texts


def sync_path(path: Path) -> int:
    """Flush a file or directory to disk; return its size."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        return os.fstat(fd).st_size
    finally:
        os.close(fd)


def compression_suffix(compression: str | None) -> str:
    """The suffix by which readers recognize the compression."""
    suffixes: dict[str | None, str] = {None: "", **{name: suffix for suffix, name in COMPRESSIONS.items()}}
    check_choice("compression", compression, suffixes)
    return suffixes[compression]


def open_output(path: Path, compression: str | None) -> Any:
    stream = pa.OSFile(str(path), "wb")
    return stream if compression is None else pa.CompressedOutputStream(stream, compression)
