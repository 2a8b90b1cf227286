"""The units of Parquet files: row groups, and their conversion to rows of the dataset."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from paceline.data.block import Block
from paceline.data.expressions import Expr, evaluate_column
from paceline.data.sources.files import InputFile, explain_read_errors
from paceline.data.sources.footers import PARQUET, read_footer
from paceline.data.sources.schemas import conform_table, table_to_block, with_file_columns

PIECE_BYTES = 16 << 20
"""How much is read and passed on at a time."""
WHOLE_BYTES = 64 << 20
"""Row groups up to this size are read at once, which is faster; larger ones as a stream."""


@dataclass(frozen=True, eq=False)  # expressions have no truth value, so they cannot be compared
class ParquetScan:
    """How the rows of a file become rows of the dataset."""

    columns: tuple[str, ...]
    stored_columns: tuple[str, ...]
    target: Any = None
    """The schema that rows are converted to; None if no conversion is needed."""
    partition: tuple[Any, ...] = ()
    include_paths: bool = False
    filter: Any = None
    """An `Expr` or a `pyarrow.compute.Expression`."""

    def to_blocks(self, table: Any, file: InputFile) -> Iterator[Block]:
        if self.target is not None:
            with explain_read_errors(file, PARQUET):
                table = conform_table(table, self.target)
        if self.partition or self.include_paths:
            table = with_file_columns(table, file, self.partition, self.include_paths)
        if self.filter is not None:
            table = filter_table(table, self.filter)
        if tuple(table.schema.names) != self.columns:
            table = table.select(list(self.columns))
        if not table.num_rows:
            return
        block = table_to_block(table)
        rows = max(1, block.num_rows * PIECE_BYTES // max(PIECE_BYTES, block.nbytes))
        for start in range(0, block.num_rows, rows):
            yield block.slice(start, start + rows)


def filter_table(table: Any, condition: Any) -> Any:
    if isinstance(condition, Expr):
        return table.filter(evaluate_column(condition, table_to_block(table.select(sorted(condition.columns())))))
    # Not `table.filter`: it uses threads and returns rows in the order in which those finish.
    from pyarrow.acero import Declaration, FilterNodeOptions, TableSourceNodeOptions

    rows = Declaration("table_source", TableSourceNodeOptions(table))
    return Declaration("filter", FilterNodeOptions(condition), inputs=[rows]).to_table(use_threads=False)


@dataclass(frozen=True, eq=False)
class RowGroupUnit:
    """Neighbouring row groups of one file, without those in which no row can match."""

    file: InputFile
    name: str
    groups: tuple[int, ...]
    sizes: tuple[int, ...]
    """The approximate bytes of each row group, once read."""
    num_stored: int
    """The rows in them, before filtering."""
    scan: ParquetScan

    @property
    def num_rows(self) -> int | None:
        return self.num_stored if self.scan.filter is None else None

    @property
    def num_bytes(self) -> int:
        return sum(self.sizes)

    def read(self) -> Iterator[Block]:
        metadata = read_footer(self.file)
        self._check_unchanged(metadata)
        local = self.file.local_path
        with explain_read_errors(self.file, PARQUET):
            source = pa.memory_map(local) if local is not None else self.file.open()
        with source:
            with explain_read_errors(self.file, PARQUET):
                # From an object store, merge nearby ranges into one request, and read ahead.
                opened = pq.ParquetFile(source, metadata=metadata, pre_buffer=local is None)
            for groups, size in group_by_size(self.groups, self.sizes, PIECE_BYTES):
                for table in self._read_tables(opened, groups, size):
                    yield from self.scan.to_blocks(table, self.file)

    def _read_tables(self, opened: Any, groups: Sequence[int], size: int) -> Iterator[Any]:
        columns = list(self.scan.stored_columns)
        if size <= WHOLE_BYTES:
            with explain_read_errors(self.file, PARQUET):
                table = opened.read_row_groups(list(groups), columns=columns, use_threads=False)
            yield table
            return
        num_rows = sum(opened.metadata.row_group(group).num_rows for group in groups)
        rows = max(1, num_rows * PIECE_BYTES // size)
        with explain_read_errors(self.file, PARQUET):
            batches = opened.iter_batches(rows, row_groups=list(groups), columns=columns, use_threads=False)
        while True:
            with explain_read_errors(self.file, PARQUET):
                batch = next(batches, None)
            if batch is None:
                return
            yield pa.Table.from_batches([batch])

    def _check_unchanged(self, metadata: Any) -> None:
        """The file must be the one that was planned, or rows would be lost or duplicated."""
        last = self.groups[-1]
        has_groups = metadata.num_row_groups > last
        rows = sum(metadata.row_group(group).num_rows for group in self.groups) if has_groups else -1
        if rows != self.num_stored:
            now = f"they have {rows}" if has_groups else f"there are only {metadata.num_row_groups} row groups"
            raise ValueError(
                f"{self.file} has changed since the dataset was created: row groups {self.groups[0]} to {last} had "
                f"{self.num_stored} rows, now {now}\n\nhint: create the dataset again, from unchanging files"
            )


def group_by_size(groups: Sequence[int], sizes: Sequence[int], limit: int) -> Iterator[tuple[list[int], int]]:
    """Group consecutive row groups up to a size; yield each group with its total size."""
    run: list[int] = []
    total = 0
    for group, size in zip(groups, sizes, strict=True):
        if run and total + size > limit:
            yield run, total
            run, total = [], 0
        run.append(group)
        total += size
    if run:
        yield run, total
