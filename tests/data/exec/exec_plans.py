"""Sources and transforms for the tests of executors: small, picklable by name, and able to misbehave."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from paceline.data.block import Block, Schema
from paceline.data.exec.pipeline import Pipeline, Task
from paceline.data.transform import Pool, Scope, Skipped, Transform


@dataclass(frozen=True)
class Numbers:
    """A unit: blocks with the numbers from `first` on."""

    first: int
    rows: tuple[int, ...] = (10, 5)
    width: int = 4
    notes: str = ""
    """A directory that each reading is noted in."""

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
class NumbersSource:
    parts: tuple[Numbers, ...]

    @property
    def name(self) -> str:
        return "numbers"

    def units(self) -> Sequence[Numbers]:
        return self.parts

    def schema(self) -> Schema | None:
        return None

    def projected(self, columns: Sequence[str]) -> None:
        return None

    def pruned(self, predicate: object) -> None:
        return None


@dataclass(frozen=True)
class Scaled(Transform):
    """Adds `by` times the number, and the process that did it where asked."""

    by: int = 2
    pool: Pool | None = None  # type: ignore[misc]
    tell_process: bool = False
    keeps_rows = True

    @property
    def name(self) -> str:
        return f"scaled({self.by})"

    def apply(self, blocks: Iterator[Block], scope: Scope) -> Iterator[Block]:
        for block in blocks:
            made = block.with_column(f"by_{self.by}", block.column("number") * self.by)
            yield made.with_column("pid", np.full(block.num_rows, os.getpid())) if self.tell_process else made


@dataclass(frozen=True)
class InBatches(Transform):
    """Regroups the rows of a unit; depends on where batches begin."""

    size: int = 4
    pool: Pool | None = None  # type: ignore[misc]
    keeps_rows = True

    @property
    def name(self) -> str:
        return f"in_batches({self.size})"

    def apply(self, blocks: Iterator[Block], scope: Scope) -> Iterator[Block]:
        held = Block.concat(blocks)
        for begin in range(0, held.num_rows, self.size):
            batch = held.slice(begin, begin + self.size)
            yield batch.with_column("of_batch", np.full(batch.num_rows, batch.column("number").sum()))


@dataclass(frozen=True)
class EvenOnly(Transform):
    @property
    def name(self) -> str:
        return "even_only"

    def apply(self, blocks: Iterator[Block], scope: Scope) -> Iterator[Block]:
        for block in blocks:
            yield block.take(np.flatnonzero(block.column("number") % 2 == 0))


@dataclass(frozen=True)
class Failing(Transform):
    """Raises at a number, or skips it."""

    at: int
    error: type[BaseException] = ValueError
    skip: bool = False

    @property
    def name(self) -> str:
        return "failing"

    def apply(self, blocks: Iterator[Block], scope: Scope) -> Iterator[Block]:
        for block in blocks:
            if self.at in block.column("number"):
                if not self.skip:
                    raise self.error(f"cannot do {self.at}")
                row = int(np.flatnonzero(block.column("number") == self.at)[0])
                scope.skipped.append(Skipped(scope.unit, row, 1, "cannot"))
                block = block.take(np.flatnonzero(block.column("number") != self.at))
            yield block


@dataclass(frozen=True)
class Dying(Transform):
    """Ends its process at a number, so many times."""

    at: int = 0
    notes: str = ""
    times: int = 1
    pool: Pool | None = None  # type: ignore[misc]

    @property
    def name(self) -> str:
        return "dying"

    def apply(self, blocks: Iterator[Block], scope: Scope) -> Iterator[Block]:
        for block in blocks:
            if self.at in block.column("number"):
                died = len(list(Path(self.notes).glob("died-*")))
                if died < self.times:
                    (Path(self.notes) / f"died-{died}").touch()
                    os.kill(os.getpid(), signal.SIGKILL)
            yield block


@dataclass(frozen=True)
class Holding(Transform):
    """Waits, once at a number, until a file is there; says by another that it has come there."""

    at: int
    notes: str

    @property
    def name(self) -> str:
        return "holding"

    def apply(self, blocks: Iterator[Block], scope: Scope) -> Iterator[Block]:
        for block in blocks:
            if self.at in block.column("number"):
                (Path(self.notes) / "held").touch()
                while not (Path(self.notes) / "go").exists():
                    time.sleep(0.005)
            yield block


def pipeline(units: Sequence[Numbers], *chain: Transform) -> Pipeline:
    return Pipeline(tuple(Task(unit, 0) for unit in units), (chain,))


def numbers(num_units: int = 6, rows: tuple[int, ...] = (10, 5), **more: object) -> tuple[Numbers, ...]:
    return tuple(Numbers(index * 1000, rows, **more) for index in range(num_units))  # type: ignore[arg-type]
