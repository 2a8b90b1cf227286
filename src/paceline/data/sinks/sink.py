"""Rows into files: what a format has to know, and how the rows of a unit are dealt out to files.

Files are written into a staging directory, under names that nobody has to agree on, and reported as `Written`. Their
final names follow from the order of the units and are given once all of them are there.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paceline.data.block import Block, as_arrow
from paceline.data.transform import Pool, Scope, Transform

MAX_OPEN_FILES = 128
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"


class Writer(Protocol):
    """One file that is being written."""

    def takes(self, block: Block) -> bool:
        """Whether these rows can go to the same file as those before them."""
        ...

    def write(self, block: Block) -> None: ...

    def close(self) -> None:
        """The file is whole afterwards."""
        ...

    def abandon(self) -> None:
        """Nobody wants the file any more."""
        ...


class Sink(Protocol):
    @property
    def name(self) -> str:
        """As the user called it: `write_parquet`."""
        ...

    @property
    def suffix(self) -> str: ...

    @property
    def one_row_each(self) -> bool:
        """Each row is a file of its own."""
        ...

    def open(self, path: Path) -> Writer: ...


@dataclass(frozen=True)
class Sizes:
    """How rows are dealt out to files."""

    least: int | None = None
    most: int | None = None
    partition_cols: tuple[str, ...] = ()


class Written(msgspec.Struct, frozen=True):
    """A file in the staging directory."""

    file: str
    partition: str
    """The directory it belongs in, such as `year=2024/month=5`; empty where rows are not partitioned."""
    num_rows: int
    num_bytes: int


@dataclass
class _Open:
    writer: Writer
    file: str
    partition: str
    place: int
    """In the order in which files were begun."""
    num_rows: int = 0


@dataclass
class Filing:
    """Deals out rows to files in a directory."""

    sink: Sink
    directory: Path
    sizes: Sizes
    _open: dict[str, _Open] = field(default_factory=dict)
    _done: list[tuple[int, Written]] = field(default_factory=list)
    _num_begun: int = 0

    def add(self, block: Block) -> None:
        if not self.sizes.partition_cols:
            self._add("", block)
            return
        for partition, part in partitioned(block, self.sizes.partition_cols):
            self._add(partition, part)

    def end_unit(self) -> None:
        """Files that have enough rows end with a unit."""
        for partition in [p for p, one in self._open.items() if one.num_rows >= (self.sizes.least or 0)]:
            self._close(partition)

    def finish(self) -> list[Written]:
        """All files, in the order in which they were begun."""
        for partition in list(self._open):
            self._close(partition)
        return [written for _, written in sorted(self._done, key=lambda item: item[0])]

    def abandon(self) -> None:
        for one in self._open.values():
            one.writer.abandon()
        self._open.clear()

    def _add(self, partition: str, block: Block) -> None:
        most = 1 if self.sink.one_row_each else self.sizes.most
        start = 0
        while start < block.num_rows:
            one = self._opened(partition, block)
            stop = block.num_rows if most is None else min(block.num_rows, start + most - one.num_rows)
            one.writer.write(block.slice(start, stop))
            one.num_rows += stop - start
            start = stop
            if one.num_rows == most:
                self._close(partition)

    def _opened(self, partition: str, block: Block) -> _Open:
        one = self._open.pop(partition, None)
        if one is not None and not one.writer.takes(block):
            self._open[partition] = one
            self._close(partition)
            one = None
        if one is None:
            if len(self._open) >= MAX_OPEN_FILES:
                self._close(next(iter(self._open)))
            file = f"{uuid.uuid4().hex}{self.sink.suffix}"
            one = _Open(self.sink.open(self.directory / file), file, partition, self._num_begun)
            self._num_begun += 1
        self._open[partition] = one  # Put last: the first is the one that was not needed for longest.
        return one

    def _close(self, partition: str) -> None:
        one = self._open.pop(partition)
        one.writer.close()
        num_bytes = synced(self.directory / one.file)
        self._done.append((one.place, Written(one.file, partition, one.num_rows, num_bytes)))


@dataclass(frozen=True)
class Write(Transform):
    """Writes the rows of each unit, and gives a row for each file."""

    sink: Sink
    directory: str
    sizes: Sizes
    processes: Pool | None = None

    @property
    def name(self) -> str:
        return self.sink.name

    @property
    def pool(self) -> Pool | None:
        return self.processes

    def apply(self, blocks: Iterator[Block], scope: Scope) -> Iterator[Block]:
        if written := filed((block for block in blocks), self.sink, Path(self.directory), self.sizes):
            yield Block(
                {
                    "file": pa.array([one.file for one in written]),
                    "partition": pa.array([one.partition for one in written]),
                    "num_rows": np.array([one.num_rows for one in written], np.int64),
                    "num_bytes": np.array([one.num_bytes for one in written], np.int64),
                }
            )


def filed(blocks: Iterable[Block | None], sink: Sink, directory: Path, sizes: Sizes) -> list[Written]:
    """Write all of them; None among the blocks says that a unit has ended."""
    filing = Filing(sink, directory, sizes)
    try:
        for block in blocks:
            if block is None:
                filing.end_unit()
            else:
                filing.add(block)
        return filing.finish()
    except BaseException:
        filing.abandon()
        raise


def reported(block: Block) -> list[Written]:
    """What `Write` gave, as it was."""
    return [Written(**row) for row in block.rows()]


def partitioned(block: Block, names: tuple[str, ...]) -> Iterator[tuple[str, Block]]:
    """The rows by the values of some columns, which are left out: `a=1/b=x` and the rows that have them."""
    if not block.num_rows:
        return
    codes = np.zeros(block.num_rows, np.int64)
    texts: list[list[str]] = []
    for name in names:
        numbers, found = _encoded(name, block.column(name))
        codes = codes * len(found) + numbers
        texts.append([f"{quote(name, safe='')}={NULL_PARTITION if t is None else quote(t, safe='')}" for t in found])
    rest = block.drop(names)
    if not rest.columns:
        raise ValueError(f"partition_cols={list(names)} are all columns that there are: nothing is left to be written")
    _, firsts, inverse = np.unique(codes, return_index=True, return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    ends = np.cumsum(np.bincount(inverse))
    for group in np.argsort(firsts, kind="stable"):
        code, segments = int(codes[firsts[group]]), []
        for found_texts in reversed(texts):
            code, number = divmod(code, len(found_texts))
            segments.append(found_texts[number])
        rows = order[ends[group - 1] if group else 0 : ends[group]]
        yield "/".join(reversed(segments)), rest.take(rows)


def _encoded(name: str, values: Any) -> tuple[Any, list[str | None]]:
    """A number for each row, and the text that each number stands for."""
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
            f"partition_cols: the column {name!r} is of type {column.type}, which makes no name of a directory"
        ) from None
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), texts


def synced(path: Path) -> int:
    """Bring a file to the disk; returns its size."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
        return os.fstat(fd).st_size
    finally:
        os.close(fd)
