"""A source whose units and blocks a test gives: what datasets are tried on without any file."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from paceline.data.block import Block, Schema
from paceline.data.dataset import Dataset
from paceline.data.expressions import Expr
from paceline.data.plan import Read


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
        return None

    def read(self) -> Iterator[Block]:
        for block in self.blocks:
            READ.append((self.name, list(block.columns)))
            yield block


READ: list[tuple[str, list[str]]] = []
"""What was read since a test cleared it: unit and columns, one entry for each block."""


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
        block = next(block for unit in self.listed for block in unit.blocks)
        return block.select(self.columns).schema

    def projected(self, columns: Sequence[str]) -> "Listed | None":
        if self.columns is None:
            return None
        kept = tuple(name for name in self.columns if name in columns)
        units = tuple(
            dataclasses.replace(unit, blocks=tuple(block.select(kept) for block in unit.blocks)) for unit in self.listed
        )
        return dataclasses.replace(self, listed=units, columns=kept)

    def pruned(self, predicate: Expr) -> "Listed | None":
        from paceline.data.expressions import values_of

        if not self.ranges:
            return None
        kept = tuple(
            unit
            for unit in self.listed
            if any(any(values_of(predicate, block).to_pylist()) for block in unit.blocks if block.num_rows)
        )
        return dataclasses.replace(self, listed=kept)


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
