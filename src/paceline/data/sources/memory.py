"""Rows that are already in memory, and generated numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from paceline.data.block import Block, Schema, TensorType
from paceline.data.planning.plan import PlainSource
from paceline.data.sources.schemas import RowRangeUnit

_UNIT_BYTES = 8 << 20
_PIECE_ROWS = 1 << 20


def unit_ranges(num_rows: int, num_bytes: int, number: int | None, least: int) -> list[tuple[int, int]]:
    """The (start, stop) row ranges of units. The same on every machine."""
    if number is None:
        number = max(least, -(-num_bytes // _UNIT_BYTES))
    number = max(1, min(number, num_rows))
    edges = [num_rows * index // number for index in range(number + 1)]
    return [(start, stop) for start, stop in pairwise(edges) if stop > start]


@dataclass(frozen=True, eq=False)
class MemoryUnit:
    name: str
    block: Block

    @property
    def num_rows(self) -> int:
        return self.block.num_rows

    @property
    def num_bytes(self) -> int:
        return self.block.nbytes

    def read(self) -> Iterator[Block]:
        yield self.block

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickling a slice of Arrow data would include its whole buffers; an IPC stream has only the slice.
        arrow = {name: values for name, values in self.block.columns.items() if isinstance(values, pa.ChunkedArray)}
        others = {name: values for name, values in self.block.columns.items() if name not in arrow}
        return _rebuild_unit, (self.name, list(self.block.columns), others, _pack_arrow(arrow), self.block.num_rows)


def _pack_arrow(columns: Mapping[str, Any]) -> bytes:
    if not columns:
        return b""
    table = pa.table(dict(columns))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def _rebuild_unit(name: str, names: list[str], others: dict[str, Any], packed: bytes, num_rows: int) -> MemoryUnit:
    table = pa.ipc.open_stream(packed).read_all() if packed else pa.table({})
    columns = {**others, **dict(zip(table.column_names, table.columns, strict=True))}
    return MemoryUnit(name, Block({column: columns[column] for column in names}, num_rows=num_rows))


@dataclass(frozen=True, eq=False)
class MemorySource(PlainSource):
    name: str
    parts: tuple[Block, ...]
    num_units: int | None = None
    min_units: int = 16
    """The minimum number of units, if there are enough rows and `num_units` is not set."""

    def units(self) -> Sequence[MemoryUnit]:
        return self._units

    @cached_property
    def _units(self) -> Sequence[MemoryUnit]:
        """The same objects every time, so that a unit need not be sent twice."""
        function = self.name.partition("(")[0]
        num_rows, units, before = sum(part.num_rows for part in self.parts), [], 0
        for part in self.parts:
            share = self.num_units and max(1, round(self.num_units * part.num_rows / max(1, num_rows)))
            least = max(1, self.min_units // max(1, len(self.parts)))
            for start, stop in unit_ranges(part.num_rows, part.nbytes, share, least):
                name = f"{function} (rows {before + start} to {before + stop - 1})"
                units.append(MemoryUnit(name, part.slice(start, stop)))
            before += part.num_rows
        return units

    def __reduce__(self) -> tuple[Any, ...]:
        return MemorySource, (self.name, self.parts, self.num_units, self.min_units)  # without the cached units

    def schema(self) -> Schema | None:
        first = next((part for part in self.parts if part.num_rows), self.parts[0] if self.parts else None)
        return first.schema if first is not None and first.columns else None

    def project_columns(self, columns: Sequence[str]) -> MemorySource | None:
        if any(not set(columns) <= set(part.columns) for part in self.parts):
            return None
        if all(list(columns) == list(part.columns) for part in self.parts):
            return None
        return MemorySource(
            self.name, tuple(part.select(columns) for part in self.parts), self.num_units, self.min_units
        )


@dataclass(frozen=True)
class RangeUnit(RowRangeUnit):
    column: str
    shape: tuple[int, ...]

    def read(self) -> Iterator[Block]:
        piece = max(1, _PIECE_ROWS // max(1, math.prod(self.shape)))
        for start in range(self.begin, self.end, piece):
            numbers = np.arange(start, min(start + piece, self.end), dtype=np.int64)
            if self.shape:
                column = numbers.reshape(-1, *(1 for _ in self.shape))
                numbers = np.ascontiguousarray(np.broadcast_to(column, (len(numbers), *self.shape)))
            yield Block({self.column: numbers})


@dataclass(frozen=True)
class RangeSource(PlainSource):
    name: str
    num_rows: int
    column: str = "id"
    shape: tuple[int, ...] = ()
    num_units: int | None = None

    def units(self) -> Sequence[RangeUnit]:
        each = 8 * math.prod(self.shape)
        return [
            RangeUnit(f"range (rows {begin} to {end - 1})", begin, end, (end - begin) * each, self.column, self.shape)
            for begin, end in unit_ranges(self.num_rows, self.num_rows * each, self.num_units, 16)
        ]

    def schema(self) -> Schema:
        kind = TensorType(np.dtype(np.int64), self.shape) if self.shape else pa.int64()
        return Schema.from_columns([self.column], [kind])
