"""The units of Parquet files: row groups, and how what is stored in them becomes rows of the dataset."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from paceline.data.block import Block
from paceline.data.expressions import Expr, values_of
from paceline.data.files import File, reading
from paceline.data.sources.footers import PARQUET, footer
from paceline.data.sources.schemas import block_of, conformed, with_file_columns

PIECE_BYTES = 16 << 20
"""How much is read, and handed on, at a time."""
WHOLE_BYTES = 64 << 20
"""A row group up to here is read in one go, which is faster; a larger one as a stream."""


@dataclass(frozen=True, eq=False)  # an expression has no truth value, so it cannot be compared
class Scan:
    """How the rows of a file become the rows of the dataset."""

    columns: tuple[str, ...]
    """What comes out, in this order."""
    read: tuple[str, ...]
    """What is read of the file."""
    target: Any = None
    """The schema that its rows are brought to; None where they are as they should be."""
    partition: tuple[Any, ...] = ()
    include_paths: bool = False
    filter: Any = None
    """An `Expr` or a `pyarrow.compute.Expression`."""

    def blocks(self, table: Any, file: File) -> Iterator[Block]:
        if self.target is not None:
            with reading(file, PARQUET):
                table = conformed(table, self.target)
        if self.partition or self.include_paths:
            table = with_file_columns(table, file, self.partition, self.include_paths)
        if self.filter is not None:
            table = filtered(table, self.filter)
        if tuple(table.schema.names) != self.columns:
            table = table.select(list(self.columns))
        if not table.num_rows:
            return
        block = block_of(table)
        rows = max(1, block.num_rows * PIECE_BYTES // max(PIECE_BYTES, block.nbytes))
        for start in range(0, block.num_rows, rows):
            yield block.slice(start, start + rows)


def filtered(table: Any, condition: Any) -> Any:
    if isinstance(condition, Expr):
        return table.filter(values_of(condition, block_of(table.select(sorted(condition.columns())))))
    # Not `table.filter`, which hands the rows to threads, and takes them back in the order in which those are done.
    from pyarrow.acero import Declaration, FilterNodeOptions, TableSourceNodeOptions

    rows = Declaration("table_source", TableSourceNodeOptions(table))
    return Declaration("filter", FilterNodeOptions(condition), inputs=[rows]).to_table(use_threads=False)


@dataclass(frozen=True, eq=False)
class RowGroups:
    """A unit: neighbouring row groups of one file, less those in which no row can be wanted."""

    file: File
    name: str
    groups: tuple[int, ...]
    sizes: tuple[int, ...]
    """About how many bytes each of them takes, once read."""
    num_stored: int
    """Rows in them, before any is filtered out."""
    scan: Scan

    @property
    def num_rows(self) -> int | None:
        return self.num_stored if self.scan.filter is None else None

    @property
    def num_bytes(self) -> int:
        return sum(self.sizes)

    def read(self) -> Iterator[Block]:
        metadata = footer(self.file)
        self._check(metadata)
        local = self.file.local
        with reading(self.file, PARQUET):
            source = pa.memory_map(local) if local is not None else self.file.open()
        with source:
            with reading(self.file, PARQUET):
                # From a store, what lies near to each other is asked for at once and ahead.
                opened = pq.ParquetFile(source, metadata=metadata, pre_buffer=local is None)
            for groups, size in runs(self.groups, self.sizes, PIECE_BYTES):
                for table in self._tables(opened, groups, size):
                    yield from self.scan.blocks(table, self.file)

    def _tables(self, opened: Any, groups: Sequence[int], size: int) -> Iterator[Any]:
        columns = list(self.scan.read)
        if size <= WHOLE_BYTES:
            with reading(self.file, PARQUET):
                table = opened.read_row_groups(list(groups), columns=columns, use_threads=False)
            yield table
            return
        num_rows = sum(opened.metadata.row_group(group).num_rows for group in groups)
        rows = max(1, num_rows * PIECE_BYTES // size)
        with reading(self.file, PARQUET):
            batches = opened.iter_batches(rows, row_groups=list(groups), columns=columns, use_threads=False)
        while True:
            with reading(self.file, PARQUET):
                batch = next(batches, None)
            if batch is None:
                return
            yield pa.Table.from_batches([batch])

    def _check(self, metadata: Any) -> None:
        """The file must be the one that the plan was made of, or rows would be lost or doubled."""
        last = self.groups[-1]
        known = metadata.num_row_groups > last
        rows = sum(metadata.row_group(group).num_rows for group in self.groups) if known else -1
        if rows != self.num_stored:
            now = f"they have {rows}" if known else f"there are only {metadata.num_row_groups}"
            raise ValueError(
                f"{self.file} has changed since the dataset was made: its row groups {self.groups[0]} to {last} had "
                f"{self.num_stored} rows, now {now}\n\nhint: make the dataset again, from files that stay as they are"
            )


def runs(groups: Sequence[int], sizes: Sequence[int], limit: int) -> Iterator[tuple[list[int], int]]:
    """Row groups one after the other, up to a size, and what they come to."""
    found: list[int] = []
    total = 0
    for group, size in zip(groups, sizes, strict=True):
        if found and total + size > limit:
            yield found, total
            found, total = [], 0
        found.append(group)
        total += size
    if found:
        yield found, total
