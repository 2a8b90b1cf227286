"""A source whose units and blocks a test gives: what datasets are tried on without any file."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from paceline.data.block import Block, Schema
from paceline.data.dataset import Dataset
from paceline.data.expressions import Expr, evaluate_column
from paceline.data.planning.plan import Read


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
    import numpy as np

    units, first = [], 0
    for unit in sizes:
        blocks = []
        for size in unit:
            blocks.append({"id": np.arange(first, first + size)})
            first += size
        units.append(blocks)
    return listed(*units, **options)
