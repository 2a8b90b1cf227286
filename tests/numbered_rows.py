"""Datasets of numbered rows for the tests of iterators, run in this process by the reference executor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from paceline.data.block import Block, Schema
from paceline.data.exec.pipeline import InlineExecutor, Pipeline, PipelineTask
from paceline.data.order.sharding import RowDelivery
from paceline.data.order.shuffle import Mixing, permutation
from paceline.data.planning.plan import Transform, TransformScope


@dataclass(frozen=True)
class Numbered:
    """The rows `first` to `first + num_rows - 1`, in blocks of `block_rows`."""

    first: int
    num_rows: int
    block_rows: int = 3
    columns: Callable[[Any], dict[str, Any]] = lambda ids: {"id": ids}
    num_bytes: int = 0

    @property
    def name(self) -> str:
        return f"rows from {self.first}"

    def read(self) -> Iterator[Block]:
        for begin in range(0, self.num_rows, self.block_rows):
            stop = min(begin + self.block_rows, self.num_rows)
            yield Block(self.columns(np.arange(self.first + begin, self.first + stop)))


@dataclass(frozen=True)
class Without(Transform):
    """Rows whose number is divisible by `divisor` go."""

    divisor: int

    @property
    def name(self) -> str:
        return f"without({self.divisor})"

    def apply(self, blocks: Iterator[Block], scope: TransformScope) -> Iterator[Block]:
        for block in blocks:
            yield block.take(np.flatnonzero(block.column("id") % self.divisor))


@dataclass
class Rows:
    """Feeds of numbered rows: one unit for each size."""

    sizes: Sequence[int]
    block_rows: int = 3
    without: int | None = None
    reorder: bool = False
    columns: Callable[[Any], dict[str, Any]] = lambda ids: {"id": ids}
    opened: list[tuple[int, int, int]] = field(default_factory=list)
    num_open: int = 0
    num_delivered: int = 0

    def __post_init__(self) -> None:
        self._fingerprint = self.pipeline(0).fingerprint

    def pipeline(self, epoch: int) -> Pipeline:
        firsts = np.cumsum([0, *self.sizes]).tolist()[: len(self.sizes)]
        units = [
            Numbered(first, size, self.block_rows, self.columns) for first, size in zip(firsts, self.sizes, strict=True)
        ]
        order = permutation(len(units), 0, epoch) if self.reorder else range(len(units))
        chain = () if self.without is None else (Without(self.without),)
        return Pipeline(tuple(PipelineTask(units[index], 0) for index in order), (chain,))

    def open(self, epoch: int, unit: int, offset: int) -> Iterator[RowDelivery]:
        self.opened.append((epoch, unit, offset))
        self.num_open += 1
        try:
            for delivered in InlineExecutor().run(self.pipeline(epoch), unit, offset):
                self.num_delivered += 1
                yield delivered
        finally:
            self.num_open -= 1

    def fingerprint(self) -> str:
        return self._fingerprint

    def num_rows(self) -> int | None:
        return self.pipeline(0).num_rows

    def mixing(self) -> Mixing:
        return Mixing(units=tuple((task.unit.first, task.unit.num_rows) for task in self.pipeline(0).tasks))

    def schema(self) -> Schema | None:
        return next((block.schema for task in self.pipeline(0).tasks for block in task.unit.read()), None)

    def stats(self) -> str:
        return f"{self.num_delivered} blocks"

    def order(self, epoch: int) -> list[int]:
        """The rows of an epoch, as nobody split or shuffled them."""
        delivered = InlineExecutor().run(self.pipeline(epoch))
        return [row for item in delivered for row in item.block.column("id").tolist()]
