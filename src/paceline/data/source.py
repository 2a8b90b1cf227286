"""Where rows come from: a source lists units, a unit reads itself.

A unit is what one process reads at a time, such as some row groups of one file: small, picklable, and the same list in
the same order every time it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from paceline.data.block import Block, Schema

if TYPE_CHECKING:
    from paceline.data.expressions import Expr


class Unit(Protocol):
    @property
    def name(self) -> str:
        """As a person would point to it: `part-3.parquet`, `part-3.parquet (row groups 4 to 7)`."""
        ...

    @property
    def num_rows(self) -> int | None:
        """How many rows come of it; None where that is not known before they are read."""
        ...

    @property
    def num_bytes(self) -> int | None:
        """About how much memory they take; None where nothing is known."""
        ...

    def read(self) -> Iterator[Block]: ...


class Source(Protocol):
    @property
    def name(self) -> str:
        """As the user called it: `read_parquet('train/')`."""
        ...

    def units(self) -> Sequence[Unit]: ...

    def schema(self) -> Schema | None:
        """Without reading rows; None where that cannot be."""
        ...

    def projected(self, columns: Sequence[str]) -> Source | None:
        """The same rows with these columns only; None where that saves nothing."""
        ...

    def pruned(self, predicate: Expr) -> Source | None:
        """Without units in which the predicate holds for no row; None where that cannot be told.

        The rows that stay are still filtered by whoever asks.
        """
        ...
