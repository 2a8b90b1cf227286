"""Sources of rows: a source lists units, and a unit reads itself.

A unit is what one process reads at a time, such as some row groups of a file. Units are small and picklable, and a
source returns the same units in the same order every time.
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
        """The name in messages: `part-3.parquet`, `part-3.parquet (row groups 4 to 7)`."""
        ...

    @property
    def num_rows(self) -> int | None:
        """Number of rows; None if unknown before reading."""
        ...

    @property
    def num_bytes(self) -> int | None:
        """Approximate size in memory; None if unknown."""
        ...

    def read(self) -> Iterator[Block]: ...


class Source(Protocol):
    @property
    def name(self) -> str:
        """The call as the user wrote it: `read_parquet('train/')`."""
        ...

    def units(self) -> Sequence[Unit]: ...

    def schema(self) -> Schema | None:
        """Return the schema without reading rows; None if that is impossible."""
        ...

    def project_columns(self, columns: Sequence[str]) -> Source | None:
        """Return a source that reads only these columns; None if that saves nothing."""
        ...

    def prune_units(self, predicate: Expr) -> Source | None:
        """Return a source without units that contain no matching row; None if that cannot be determined.

        The caller still filters the remaining rows.
        """
        ...
