"""What happens to the rows of a unit on their way: the base of all that `map_batches`, `filter` and the like make.

A transform takes the blocks of one unit and gives blocks; it knows of no other unit, so units can be done anywhere, in
any order, and again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from paceline.data.block import Block


@dataclass(frozen=True)
class Pool:
    """Processes of its own for a transform: between `least` and `most` of them."""

    least: int = 1
    most: int = 1
    num_cpus: float = 1.0
    num_gpus: float = 0.0


class Skipped(msgspec.Struct, frozen=True):
    """Rows that a user's function failed on, under `on_error="skip"`."""

    unit: str
    row: int
    """The first of them, counted from the beginning of the unit."""
    num_rows: int
    error: str


@dataclass
class Scope:
    """What the transforms in one process share: objects made of the user's classes, and the unit they are at."""

    unit: str = ""
    skipped: list[Skipped] = field(default_factory=list)
    _made: dict[object, tuple[Transform, Any]] = field(default_factory=dict)

    def made(self, transform: Transform, make: Callable[[], Any]) -> Any:
        """One object for each transform, for as long as the process lives."""
        if transform.key not in self._made:
            # The transform is kept too: a key that is made of its address would else be given to another one.
            self._made[transform.key] = transform, make()
        return self._made[transform.key][1]


@dataclass(frozen=True)
class Transform:
    @property
    def name(self) -> str:
        """As in `explain()` and `stats()`: `map_batches(normalize)`."""
        raise NotImplementedError

    @property
    def pool(self) -> Pool | None:
        """None: in whatever process the rows are."""
        return None

    @property
    def keeps_rows(self) -> bool:
        """Each row in gives one row out, in the same order."""
        return False

    @property
    def key(self) -> object:
        """The same for all copies of a transform that share what is made for it."""
        return id(self)

    def apply(self, blocks: Iterator[Block], scope: Scope) -> Iterator[Block]:
        raise NotImplementedError
