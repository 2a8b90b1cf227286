"""Datasets of Hugging Face: their Arrow tables a range of rows at a time; those that stream, as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.data.block import Block, Schema
from paceline.data.expressions import Expr
from paceline.data.source import Unit
from paceline.data.sources.held import Held
from paceline.data.sources.memory import cuts
from paceline.data.sources.schemas import block_of

_BLOCK_ROWS = 1000
_LEAST_UNITS = 16


@dataclass(frozen=True, eq=False)
class ArrowRows:
    """The source of `from_huggingface` for a dataset with an index; selections and shuffles of it are kept."""

    name: str
    dataset: Held
    """With the format "arrow", so that a range of it is a table."""
    num_rows: int
    num_bytes: int
    num_units: int | None = None

    def units(self) -> Sequence[Unit]:
        each = self.num_bytes // max(self.num_rows, 1)
        return [
            RowRange(self.name, self.dataset, begin, end, (end - begin) * each)
            for begin, end in cuts(self.num_rows, self.num_bytes, self.num_units, _LEAST_UNITS)
        ]

    def schema(self) -> Schema | None:
        return None

    def projected(self, columns: Sequence[str]) -> None:
        return None

    def pruned(self, predicate: Expr) -> None:
        return None


@dataclass(frozen=True, eq=False)
class RowRange:
    source: str
    dataset: Held
    begin: int
    end: int
    num_bytes: int

    @property
    def name(self) -> str:
        return f"{self.source} (rows {self.begin} to {self.end - 1})"

    @property
    def num_rows(self) -> int:
        return self.end - self.begin

    def read(self) -> Iterator[Block]:
        dataset = self.dataset.get()
        for first in range(self.begin, self.end, _BLOCK_ROWS):
            yield block_of(dataset[first : min(first + _BLOCK_ROWS, self.end)])


@dataclass(frozen=True, eq=False)
class Tables:
    """A source, and its one unit: whatever gives Arrow tables when it is iterated in the way that `how` names."""

    name: str
    held: Held
    how: str
    num_rows: int | None = None
    num_bytes: int | None = None

    def units(self) -> Sequence[Unit]:
        return [self]

    def read(self) -> Iterator[Block]:
        for table in _tables(self.held.get(), self.how):
            yield block_of(table)

    def schema(self) -> Schema | None:
        return None

    def projected(self, columns: Sequence[str]) -> None:
        return None

    def pruned(self, predicate: Expr) -> None:
        return None


def _tables(value: Any, how: str) -> Iterator[Any]:
    match how:
        case "huggingface":
            yield from value.with_format("arrow").iter(batch_size=_BLOCK_ROWS)
        case "ray":
            value.context.execution_options.preserve_order = True  # where it stands is a number of rows
            yield from value.iter_batches(batch_size=_BLOCK_ROWS, batch_format="pyarrow")
        case "polars":
            yield value.collect().to_arrow()
        case _:
            raise AssertionError(how)
