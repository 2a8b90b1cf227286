"""The base class of transforms, which `map_batches`, `filter` and others create.

A transform takes the blocks of one unit and yields blocks. It knows no other unit, so units can run anywhere, in any
order, and can be retried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from paceline.data.block import Block


@dataclass(frozen=True)
class PoolSpec:
    """Dedicated processes for a transform: between `min_size` and `max_size` of them."""

    min_size: int = 1
    max_size: int = 1
    num_cpus: float = 1.0
    num_gpus: float = 0.0


class SkippedRows(msgspec.Struct, frozen=True):
    """Rows that a user's function failed on, with `on_error="skip"`."""

    unit: str
    row: int
    """The first of them, counted from the start of the unit."""
    num_rows: int
    error: str


@dataclass
class TransformScope:
    """State shared by the transforms of one process: instances of the user's classes, and the current unit."""

    unit: str = ""
    skipped: list[SkippedRows] = field(default_factory=list)
    _created: dict[object, tuple[Transform, Any]] = field(default_factory=dict)

    def get_or_create(self, transform: Transform, make: Callable[[], Any]) -> Any:
        """Return the object of a transform. It is created once per process."""
        if transform.key not in self._created:
            # Keep the transform alive too: its key may be its address, which could be reused by another transform.
            self._created[transform.key] = transform, make()
        return self._created[transform.key][1]


@dataclass(frozen=True)
class Transform:
    @property
    def name(self) -> str:
        """The name in `explain()` and `stats()`: `map_batches(normalize)`."""
        raise NotImplementedError

    @property
    def pool(self) -> PoolSpec | None:
        """None means in whatever process the rows are."""
        return None

    @property
    def keeps_rows(self) -> bool:
        """Whether each input row gives one output row, in the same order."""
        return False

    @property
    def key(self) -> object:
        """Equal for all copies of a transform that share its object."""
        return id(self)

    def apply(self, blocks: Iterator[Block], scope: TransformScope) -> Iterator[Block]:
        raise NotImplementedError
