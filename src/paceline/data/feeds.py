"""Where an iterator gets the rows of an epoch from: run for it alone, or shared with the other workers of a group."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from paceline.data.block import Schema
from paceline.data.position import Delivered


class Feeds(Protocol):
    def open(self, epoch: int, unit: int, offset: int) -> Iterator[Delivered]:
        """The rows of an epoch's order, from there on; to close it is to leave it."""
        ...

    def fingerprint(self) -> str: ...

    def num_rows(self) -> int | None:
        """Of an epoch, where it is known beforehand."""
        ...

    def schema(self) -> Schema | None: ...

    def stats(self) -> str: ...
