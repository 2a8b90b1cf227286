"""A dataset of blocks that a test makes itself, so that it is plain which rows are in which unit."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.data.block import Block
from paceline.data.dataset import Dataset
from paceline.data.planning.barriers import PreparedSource
from paceline.data.planning.plan import Read


@dataclass(frozen=True)
class Given:
    name: str
    make: Callable[[], Sequence[Block]]
    num_bytes: int | None
    """0: the rows are read in the process of the test; None: in data processes."""
    num_rows: int | None = None

    def read(self) -> Iterator[Block]:
        yield from self.make()


def dataset_of(
    *units: Sequence[Block | dict[str, Any]] | Callable[[], Iterator[Block]], in_processes: bool = False
) -> Dataset:
    """Each argument is a unit: its blocks, or a function that yields them."""
    num_bytes = None if in_processes else 0
    given = (Given(f"unit {number}", _maker(unit), num_bytes) for number, unit in enumerate(units))
    return Dataset(Read(PreparedSource("units", tuple(given))))


def _maker(unit: Any) -> Callable[[], Sequence[Block]]:
    if callable(unit):
        return unit
    return lambda: [block if isinstance(block, Block) else Block(block) for block in unit]
