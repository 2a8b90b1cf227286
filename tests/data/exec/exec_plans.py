"""Sources and transforms for the tests of executors: small, picklable by name, and able to misbehave."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from paceline.data.block import Block
from paceline.data.exec.pipeline import Pipeline, PipelineTask
from paceline.data.order.sharding import RowDelivery
from paceline.data.planning.barriers import PreparedSource
from paceline.data.planning.plan import Map, PlanNode, PoolSpec, Read, SkippedRows, Transform, TransformScope


@dataclass(frozen=True)
class Numbers:
    """A unit: blocks with the numbers from `first` on."""

    first: int
    rows: tuple[int, ...] = (10, 5)
    width: int = 4
    notes: str = ""
    """A directory in which each reading leaves a file."""

    @property
    def name(self) -> str:
        return f"numbers from {self.first}"

    @property
    def num_rows(self) -> int | None:
        return sum(self.rows)

    @property
    def num_bytes(self) -> int | None:
        return sum(self.rows) * (8 + 4 * self.width)

    def read(self) -> Iterator[Block]:
        if self.notes:
            (Path(self.notes) / f"{self.first}-{os.getpid()}-{time.monotonic_ns()}").touch()
        start = self.first
        for rows in self.rows:
            numbers = np.arange(start, start + rows)
            yield Block(
                {
                    "number": numbers,
                    "matrix": np.repeat(numbers.astype(np.float32), self.width).reshape(rows, self.width),
                    "text": pa.chunked_array([[f"row {number}" for number in numbers]], type=pa.string()),
                }
            )
            start += rows


@dataclass(frozen=True)
class Scaled(Transform):
    """Adds `by` times the number and, with `tell_process`, the id of the process."""

    by: int = 2
    pool: PoolSpec | None = None  # type: ignore[misc]
    tell_process: bool = False
    keeps_rows = True

    @property
    def name(self) -> str:
        return f"scaled({self.by})"

    def apply(self, blocks: Iterator[Block], scope: TransformScope) -> Iterator[Block]:
        for block in blocks:
            made = block.with_column(f"by_{self.by}", block.column("number") * self.by)
            yield made.with_column("pid", np.full(block.num_rows, os.getpid())) if self.tell_process else made


@dataclass(frozen=True)
class InBatches(Transform):
    """Regroups the rows of a unit; depends on where batches begin."""

    size: int = 4
    pool: PoolSpec | None = None  # type: ignore[misc]
    keeps_rows = True
    name = "in_batches"

    def apply(self, blocks: Iterator[Block], scope: TransformScope) -> Iterator[Block]:
        held = Block.concat(blocks)
        for begin in range(0, held.num_rows, self.size):
            batch = held.slice(begin, begin + self.size)
            yield batch.with_column("of_batch", np.full(batch.num_rows, batch.column("number").sum()))


@dataclass(frozen=True)
class EvenOnly(Transform):
    name = "even_only"

    def apply(self, blocks: Iterator[Block], scope: TransformScope) -> Iterator[Block]:
        for block in blocks:
            yield block.take(np.flatnonzero(block.column("number") % 2 == 0))


@dataclass(frozen=True)
class AtNumber(Transform):
    """Does something with the block that has a number."""

    at: int

    def apply(self, blocks: Iterator[Block], scope: TransformScope) -> Iterator[Block]:
        for block in blocks:
            yield self.act(block, scope) if self.at in block.column("number") else block

    def act(self, block: Block, scope: TransformScope) -> Block:
        raise NotImplementedError


@dataclass(frozen=True)
class Failing(AtNumber):
    """Raises, or skips the row."""

    error: type[BaseException] = ValueError
    skip: bool = False
    name = "failing"

    def act(self, block: Block, scope: TransformScope) -> Block:
        if not self.skip:
            raise self.error(f"cannot do {self.at}")
        row = int(np.flatnonzero(block.column("number") == self.at)[0])
        scope.skipped.append(SkippedRows(scope.unit, row, 1, "cannot"))
        return block.take(np.flatnonzero(block.column("number") != self.at))


@dataclass(frozen=True)
class Dying(AtNumber):
    """Kills its process, so many times."""

    notes: str = ""
    times: int = 1
    pool: PoolSpec | None = None  # type: ignore[misc]
    name = "dying"

    def act(self, block: Block, scope: TransformScope) -> Block:
        died = len(list(Path(self.notes).glob("died-*")))
        if died < self.times:
            (Path(self.notes) / f"died-{died}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return block


@dataclass(frozen=True)
class Holding(AtNumber):
    """Creates the file `held` and waits for the file `go`."""

    notes: str
    name = "holding"

    def act(self, block: Block, scope: TransformScope) -> Block:
        (Path(self.notes) / "held").touch()
        while not (Path(self.notes) / "go").exists():
            time.sleep(0.005)
        return block


def numbers(num_units: int = 6, rows: tuple[int, ...] = (10, 5), **more: object) -> tuple[Numbers, ...]:
    return tuple(Numbers(index * 1000, rows, **more) for index in range(num_units))  # type: ignore[arg-type]


def pipeline(units: Sequence[Numbers], *chain: Transform) -> Pipeline:
    return Pipeline(tuple(PipelineTask(unit, 0) for unit in units), (chain,))


def plan(units: Sequence[Numbers], *transforms: Transform) -> PlanNode:
    node: PlanNode = Read(PreparedSource("numbers", tuple(units)))
    for transform in transforms:
        node = Map(node, transform)
    return node


def collect_column(deliveries: Iterator[RowDelivery], name: str = "number") -> list[Any]:
    return [value for delivered in deliveries for value in delivered.block.column(name).tolist()]


def collect_rows(deliveries: Iterator[RowDelivery]) -> list[tuple[int, int, dict[str, Any]]]:
    """By unit and row of the unit, so that it does not matter how rows are cut into blocks."""
    return [
        (delivered.unit, delivered.offset + index, {name: _plain(value) for name, value in row.items()})
        for delivered in deliveries
        for index, row in enumerate(delivered.block.rows())
    ]


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value
