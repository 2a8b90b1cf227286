"""Hugging Face datasets: indexed ones as Arrow tables, a range of rows at a time; streaming ones as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.data.block import Block
from paceline.data.planning.plan import Unit
from paceline.data.sources.memory import unit_ranges
from paceline.data.sources.schemas import PlainSource, RowRangeUnit, table_to_block
from paceline.data.sources.shared_object import SharedObject, StreamSource

_BLOCK_ROWS = 1000
_LEAST_UNITS = 16


@dataclass(frozen=True, eq=False)
class HuggingFaceSource(PlainSource):
    """The source of `from_huggingface` for an indexed dataset; its selections and shuffles are respected."""

    name: str
    dataset: SharedObject
    """With the format "arrow", so that a range of it is a table."""
    num_rows: int
    num_bytes: int
    num_units: int | None = None

    def units(self) -> Sequence[Unit]:
        each = self.num_bytes // max(self.num_rows, 1)
        return [
            HuggingFaceUnit(f"{self.name} (rows {begin} to {end - 1})", begin, end, (end - begin) * each, self.dataset)
            for begin, end in unit_ranges(self.num_rows, self.num_bytes, self.num_units, _LEAST_UNITS)
        ]


@dataclass(frozen=True, eq=False)
class HuggingFaceUnit(RowRangeUnit):
    dataset: SharedObject

    def read(self) -> Iterator[Block]:
        dataset = self.dataset.get()
        for first in range(self.begin, self.end, _BLOCK_ROWS):
            yield table_to_block(dataset[first : min(first + _BLOCK_ROWS, self.end)])


@dataclass(frozen=True, eq=False)
class TableStreamSource(StreamSource):
    """Any object that yields Arrow tables when iterated as `how` says."""

    how: str

    def read(self) -> Iterator[Block]:
        for table in _iterate_tables(self.dataset.get(), self.how):
            yield table_to_block(table)


def _iterate_tables(value: Any, how: str) -> Iterator[Any]:
    match how:
        case "huggingface":
            yield from value.with_format("arrow").iter(batch_size=_BLOCK_ROWS)
        case "ray":
            value.context.execution_options.preserve_order = True  # the saved position is a number of rows
            yield from value.iter_batches(batch_size=_BLOCK_ROWS, batch_format="pyarrow")
        case "polars":
            yield value.collect().to_arrow()
        case _:
            raise AssertionError(how)
