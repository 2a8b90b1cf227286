"""Datasets whose rows a test cuts into units and blocks as it likes."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hypothesis import strategies as st
from made_datasets import ListedUnit

from paceline.data.block import Block
from paceline.data.dataset import Dataset
from paceline.data.planning.barriers import PreparedSource
from paceline.data.planning.plan import Read


def cut(rows: Block | Mapping[str, Any], *units: Sequence[int]) -> Dataset:
    """A dataset of these rows: each unit is a list of the sizes of its blocks. Without units, all in one block."""
    block = Block.from_batch(rows)
    made, start = [], 0
    for index, sizes in enumerate(units or [[block.num_rows]]):
        blocks = []
        for size in sizes:
            blocks.append(block.slice(start, start + size))
            start += size
        made.append(ListedUnit(f"part-{index}", tuple(blocks)))
    assert start == block.num_rows, "the cuts do not cover the rows"
    return Dataset(Read(PreparedSource("rows that were cut", tuple(made))))


def all_rows(ds: Dataset) -> Block:
    return Block.concat(blocks(ds))


def blocks(ds: Dataset) -> Iterator[Block]:
    for batch in ds.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
        yield Block.from_batch(batch)


def as_columns(ds: Dataset) -> dict[str, Any]:
    return all_rows(ds).to_numpy()


@st.composite
def cuts(draw: st.DrawFn, num_rows: int) -> list[list[int]]:
    """Sizes of blocks in units that cover so many rows; some may be empty."""
    places = draw(st.lists(st.tuples(st.integers(0, num_rows), st.booleans()), max_size=5))
    units: list[list[int]] = [[]]
    start = 0
    for place, ends_unit in sorted(places):
        units[-1].append(place - start)
        start = place
        if ends_unit:
            units.append([])
    units[-1].append(num_rows - start)
    return units
