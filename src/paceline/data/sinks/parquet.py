"""Parquet files: row groups of a useful size, whatever the size of the incoming blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from paceline._core.arguments import check_int
from paceline.data.block import Block
from paceline.data.sinks.sink import FileWriter, FormatSink

ROW_GROUP_BYTES = 64 << 20
"""The approximate memory of a row group, unless the user sets its number of rows."""


@dataclass(frozen=True)
class ParquetSink(FormatSink):
    options: Mapping[str, Any]
    row_group_size: int | None = None

    name = "write_parquet"
    suffix = ".parquet"

    @classmethod
    def from_arguments(cls, options: Mapping[str, Any]) -> ParquetSink:
        """Check the options against pyarrow now rather than in the middle of the write."""
        import pyarrow.parquet as pq

        size = check_int("row_group_size", options.get("row_group_size"), at_least=1, optional=True)
        passed = {name: value for name, value in options.items() if name != "row_group_size"}
        # Options that refer to columns by index can only be checked once there are columns.
        tried = {name: value for name, value in passed.items() if name != "sorting_columns"}
        try:
            pq.ParquetWriter(pa.BufferOutputStream(), pa.schema([("x", pa.int64())]), **tried).close()
        except (TypeError, ValueError, OSError, pa.ArrowException) as error:
            raise ValueError(f"write_parquet: pyarrow rejects {tried!r}: {error}") from error
        return cls(passed, size)

    def open(self, path: Path) -> ParquetWriter:
        return ParquetWriter(path, self)


class ParquetWriter(FileWriter):
    def __init__(self, path: Path, sink: ParquetSink) -> None:
        self._path = path
        self._sink = sink
        self._writer: Any = None
        self._group_rows = 0
        self._waiting: list[Any] = []
        self._num_waiting = 0

    def can_append(self, block: Block) -> bool:
        if self._writer is None:
            return True
        try:
            self._cast_to_schema(block.to_arrow())
        except (pa.ArrowException, KeyError):
            return False
        return True

    def write(self, block: Block) -> None:
        table = block.to_arrow()
        if self._writer is None:
            self._open_writer(table)
        self._waiting.append(self._cast_to_schema(table))
        self._num_waiting += table.num_rows
        if self._num_waiting >= self._group_rows:
            self._flush()

    def close(self) -> None:
        self._flush(with_rest=True)
        self._writer.close()

    def abandon(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _open_writer(self, table: Any) -> None:
        import pyarrow.parquet as pq

        self._writer = pq.ParquetWriter(self._path, table.schema, **self._sink.options)
        row_bytes = max(1, table.nbytes // max(1, table.num_rows))
        self._group_rows = self._sink.row_group_size or max(1, ROW_GROUP_BYTES // row_bytes)

    def _cast_to_schema(self, table: Any) -> Any:
        """Convert to the columns and types of the file's first rows; raise if that would lose data."""
        schema = self._writer.schema
        if table.schema.equals(schema):
            return table
        if set(table.column_names) != set(schema.names):
            raise KeyError(f"other columns: {table.column_names}")
        return table.select(schema.names).cast(schema)

    def _flush(self, with_rest: bool = False) -> None:
        """Write full row groups, and the rest if wanted."""
        if not self._num_waiting:
            return
        table = pa.concat_tables(self._waiting)
        start = 0
        while table.num_rows - start >= self._group_rows or (with_rest and start < table.num_rows):
            count = min(self._group_rows, table.num_rows - start)
            self._writer.write_table(table.slice(start, count), row_group_size=count)
            start += count
        rest = table.slice(start)
        self._waiting, self._num_waiting = ([rest] if rest.num_rows else []), rest.num_rows
