"""Rows that are already in memory, and generated numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from paceline.data.block import Block, Schema, TensorType
from paceline.data.planning.plan import Map, PlainSource, PlanNode, Read
from paceline.data.sources.schemas import RowRangeUnit

_UNIT_BYTES = 8 << 20
_PIECE_ROWS = 1 << 20


def unit_ranges(
    num_rows: int, num_bytes: int, number: int | None, least: int, batch_size: int = 1
) -> list[tuple[int, int]]:
    """The (start, stop) row ranges of units: all but the last are whole batches. The same on every machine."""
    if number is None:
        number = max(least, -(-num_bytes // _UNIT_BYTES))
    number = max(1, min(number, num_rows))
    if batch_size > 1:
        each = -(-num_rows // (number * batch_size)) * batch_size
        return [(start, min(start + each, num_rows)) for start in range(0, num_rows, each)]
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
    batch_size: int = 1

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
            for start, stop in unit_ranges(part.num_rows, part.nbytes, share, least, self.batch_size):
                name = f"{function} (rows {before + start} to {before + stop - 1})"
                units.append(MemoryUnit(name, part.slice(start, stop)))
            before += part.num_rows
        return units

    def __reduce__(self) -> tuple[Any, ...]:
        # Without the cached units.
        return MemorySource, (self.name, self.parts, self.num_units, self.min_units, self.batch_size)

    def schema(self) -> Schema | None:
        first = next((part for part in self.parts if part.num_rows), self.parts[0] if self.parts else None)
        return first.schema if first is not None and first.columns else None

    def project_columns(self, columns: Sequence[str]) -> MemorySource | None:
        if any(not set(columns) <= set(part.columns) for part in self.parts):
            return None
        if all(list(columns) == list(part.columns) for part in self.parts):
            return None
        return replace(self, parts=tuple(part.select(columns) for part in self.parts))


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
    batch_size: int = 1

    def units(self) -> Sequence[RangeUnit]:
        each = 8 * math.prod(self.shape)
        ranges = unit_ranges(self.num_rows, self.num_rows * each, self.num_units, 16, self.batch_size)
        return [
            RangeUnit(f"range (rows {begin} to {end - 1})", begin, end, (end - begin) * each, self.column, self.shape)
            for begin, end in ranges
        ]

    def schema(self) -> Schema:
        kind = TensorType(np.dtype(np.int64), self.shape) if self.shape else pa.int64()
        return Schema.from_columns([self.column], [kind])


def divide_for_batches(plan: PlanNode, batch_size: int) -> PlanNode:
    """Return the plan with the rows it has in memory divided into whole batches, unless the user has divided them.

    A batch never spans two units. With the usual units, a few thousand rows would come in batches of a dozen.
    """
    match plan:
        case Map(input=below, transform=transform) if not transform.depends_on_row_number:
            changed = divide_for_batches(below, batch_size)
            return plan if changed is below else replace(plan, input=changed)
        case Read(source=MemorySource(num_units=None) | RangeSource(num_units=None) as source):
            return plan if source.batch_size >= batch_size else Read(replace(source, batch_size=batch_size))
    return plan
