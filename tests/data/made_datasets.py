"""Datasets of units and blocks that a test makes itself, and what comes of a dataset, run by the reference executor."""

import dataclasses
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import cloudpickle
import numpy as np

from paceline.data.block import Block, Schema
from paceline.data.dataset import Dataset
from paceline.data.exec.pipeline import InlineExecutor, Pipeline, lower_plan
from paceline.data.expressions import Expr, evaluate_column
from paceline.data.planning.barriers import PreparedSource
from paceline.data.planning.optimizer import optimize_plan
from paceline.data.planning.plan import Read, Source


@dataclasses.dataclass(frozen=True, eq=False)
class ListedUnit:
    name: str
    blocks: tuple[Block, ...]
    counted: bool = True

    @property
    def num_rows(self) -> int | None:
        return sum(block.num_rows for block in self.blocks) if self.counted else None

    @property
    def num_bytes(self) -> int | None:
        return sum(block.nbytes for block in self.blocks)

    def read(self) -> Iterator[Block]:
        for block in self.blocks:
            READ.append((self.name, list(block.columns), block.num_rows))
            yield block


READ: list[tuple[str, list[str], int]] = []
"""What was read since a test cleared it: unit, columns and rows, one entry for each block."""


@dataclasses.dataclass(frozen=True, eq=False)
class Listed:
    listed: tuple[ListedUnit, ...]
    columns: tuple[str, ...] | None = None
    """Of all blocks, where the source knows its schema."""
    ranges: bool = False
    """Whether it can tell from a predicate which units to leave out."""

    @property
    def name(self) -> str:
        return "listed"

    def units(self) -> Sequence[ListedUnit]:
        return self.listed

    def schema(self) -> Schema | None:
        if self.columns is None:
            return None
        blocks = (block.select(self.columns).schema for unit in self.listed for block in unit.blocks)
        return next(blocks, Schema([], []))

    def project_columns(self, columns: Sequence[str]) -> "Listed | None":
        if self.columns is None:
            return None
        kept = tuple(name for name in self.columns if name in columns)
        units = tuple(
            dataclasses.replace(unit, blocks=tuple(block.select(kept) for block in unit.blocks)) for unit in self.listed
        )
        return dataclasses.replace(self, listed=units, columns=kept)

    def prune_units(self, predicate: Expr) -> "Listed | None":
        """A unit stays where it is in the order, though nothing of it need be read."""

        def prune(unit: ListedUnit) -> ListedUnit:
            if any(any(evaluate_column(predicate, block).to_pylist()) for block in unit.blocks if block.num_rows):
                return unit
            return dataclasses.replace(unit, blocks=tuple(block.slice(0, 0) for block in unit.blocks[:1]))

        return dataclasses.replace(self, listed=tuple(map(prune, self.listed))) if self.ranges else None


def listed(*units: Sequence[Any], schema: bool = False, ranges: bool = False, counted: bool = True) -> Dataset:
    """A dataset of units, each a list of what blocks are made of."""
    made = [
        ListedUnit(f"part-{index}.file", tuple(map(Block.from_batch, blocks)), counted)
        for index, blocks in enumerate(units)
    ]
    columns = None
    if schema:
        columns = tuple(next(block for unit in made for block in unit.blocks).columns)
    return Dataset(Read(Listed(tuple(made), columns, ranges)))


def numbers(*sizes: Sequence[int], **options: Any) -> Dataset:
    """The numbers from 0 on, as `id`, in units of blocks of these sizes."""
    units, first = [], 0
    for unit in sizes:
        blocks = []
        for size in unit:
            blocks.append({"id": np.arange(first, first + size)})
            first += size
        units.append(blocks)
    return listed(*units, **options)


@dataclasses.dataclass(frozen=True)
class MadeUnit:
    name: str
    read: Callable[[], Iterator[Block]]
    num_bytes: int | None
    """0: the rows are read in the process of the test; None: in data processes."""
    num_rows: int | None = None


def dataset_of(
    *units: Sequence[Block | dict[str, Any]] | Callable[[], Iterator[Block]], in_processes: bool = False
) -> Dataset:
    """Each argument is a unit: its blocks, or a function that yields them."""
    readers = [unit if callable(unit) else lambda unit=unit: map(Block.from_batch, unit) for unit in units]
    num_bytes = None if in_processes else 0
    made = (MadeUnit(f"unit {number}", read, num_bytes) for number, read in enumerate(readers))
    return Dataset(Read(PreparedSource("units", tuple(made))))


def pipeline(dataset: Any, epoch: int = 0, optimize: bool = False) -> Pipeline:
    def unresolved(barrier: Any, epoch: int) -> Any:
        raise AssertionError(barrier)

    return lower_plan(optimize_plan(dataset._plan) if optimize else dataset._plan, epoch, unresolved)


def block(dataset: Any, epoch: int = 0, optimize: bool = False) -> Block:
    """All rows, after the units went through pickle, as they do on their way to another process."""
    sent = cloudpickle.loads(cloudpickle.dumps(pipeline(dataset, epoch, optimize)))
    return Block.concat(delivered.block for delivered in InlineExecutor().run(sent))


def source_of(dataset: Dataset) -> Source:
    assert isinstance(dataset._plan, Read)
    return dataset._plan.source


def blocks_of(dataset: Dataset) -> list[Block]:
    units = [pickle.loads(pickle.dumps(unit)) for unit in source_of(dataset).units()]
    return [block for unit in units for block in unit.read()]


def rows_of(dataset: Dataset) -> list[dict[str, Any]]:
    return [row for block in blocks_of(dataset) for row in block.rows()]


def column(dataset: Dataset, name: str) -> list[Any]:
    return [row[name] for row in rows_of(dataset)]
