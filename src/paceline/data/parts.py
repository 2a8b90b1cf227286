"""Which rows of each block each worker will use: worked out from the sizes of blocks alone, without their rows.

On a cluster blocks are cut where they lie, and a worker fetches its own rows. `Owners` says whose a row is, exactly as
`Cutter` will have it; `Dealt` says of which blocks that is certain, as sizes become known one after the other: whose
the rows of a last, small batch are is seen at the end of the epoch only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np

from paceline.data.order import hashed
from paceline.data.position import Cursor, Mode, Split, gone
from paceline.data.sparse import Rows

Numbers = np.ndarray[Any, np.dtype[np.int64]]

NOBODY = -1


class Division(msgspec.Struct, frozen=True):
    """How the rows of an epoch are divided among workers: what all of them cut by. See `Cutter`."""

    start: Cursor
    mode: Mode
    world: int
    chunk_rows: int | None = None

    @property
    def parts(self) -> int:
        return Split(0, self.world, self.mode).parts

    @property
    def group(self) -> int:
        """So many rows, of those that are given to anybody, are divided at a time."""
        return self.chunk_rows or self.parts


class Span(msgspec.Struct, frozen=True):
    """A block's rows in the order of the epoch, and what must be known to say whose they are."""

    first: int
    num_rows: int
    total: int | None = None
    """The rows of the epoch, where its end is known."""

    @property
    def last(self) -> int:
        return self.first + self.num_rows


@dataclass(frozen=True)
class Owners:
    """Says whose rows are."""

    division: Division
    _begins: Numbers
    _stops: Numbers
    """Ranges of the order that nobody is given."""
    _sizes: Numbers
    """How many rows the first so many of them have."""

    @staticmethod
    def of(division: Division) -> Owners:
        """The same one again for the same division: many blocks ask."""
        return _owners(division)

    def of_rows(self, span: Span) -> Numbers:
        """For each row of a block the rank it is given to, or `NOBODY`."""
        division = self.division
        places = self._places(span)
        kept = self.kept_before(places)
        index = kept % division.group
        in_turn = division.chunk_rows is None
        owners = index if in_turn else _part_of(index, division.group, division.parts)
        if span.total is not None:
            num_kept = int(self.kept_before(np.int64(span.total)))
            last = num_kept % division.group
            size = last - last % division.parts if division.mode == "equal" else last
            in_last = kept >= num_kept - last
            shared = _part_of(index, size, division.parts) if size else np.full_like(index, NOBODY)
            owners = np.where(in_last, np.where(index < size, shared, NOBODY), owners)
        return np.where((places < division.start.row) | self._is_gone(places), NOBODY, owners)

    def rows(self, span: Span) -> list[Rows]:
        """For each rank, the rows of a block that it is given."""
        owners = self.of_rows(span)
        by_owner = np.argsort(owners, kind="stable")
        ends = np.searchsorted(owners[by_owner], np.arange(self.division.parts + 1))
        return [by_owner[begin:stop] for begin, stop in pairwise(ends)]

    def kept_before(self, place: Any) -> Any:
        """How many rows from the start on are given to anybody before a place in the order."""
        index = np.searchsorted(self._begins, place)
        ahead = np.concatenate([[np.iinfo(np.int64).min], self._stops])[index]
        passed_over = self._sizes[index] - np.where(index > 0, np.maximum(ahead, place) - place, 0)
        return np.maximum(place - self.division.start.row - passed_over, 0)

    def place_of(self, kept: int) -> int:
        """The place in the order of a row that is given, by how many are before it."""
        before = self.kept_before(self._begins)
        return int(self.division.start.row + kept + self._sizes[np.searchsorted(before, kept, side="right")])

    def _is_gone(self, places: Numbers) -> Any:
        index = np.searchsorted(self._begins, places, side="right")
        ahead = np.concatenate([[np.iinfo(np.int64).min], self._stops])[index]
        return places < ahead

    def _places(self, span: Span) -> Numbers:
        """Where each row comes in the order, once rows have changed places within windows."""
        start = self.division.start
        if not start.window:
            return np.arange(span.first, span.last)
        begins = range(span.first - span.first % start.window, span.last, start.window)
        places = np.concatenate([_window(begin, start.window, span.total, start.seed, start.epoch) for begin in begins])
        return places[span.first - begins[0] : span.last - begins[0]]


class Dealt:
    """Tells of which blocks it is certain whose their rows are. Blocks come in order, by their sizes."""

    def __init__(self, division: Division) -> None:
        self._division = division
        self._owners = Owners.of(division)
        self._delivered = division.start.at
        self._uncertain: list[Span] = []

    @property
    def num_uncertain(self) -> int:
        """Blocks that wait for others."""
        return len(self._uncertain)

    def block(self, num_rows: int) -> Sequence[Span]:
        """The blocks that have become certain with another one, in order."""
        self._uncertain.append(Span(self._delivered, num_rows))
        self._delivered += num_rows
        return self._certain(self._settled())

    def end(self, *, broken: bool = False) -> Sequence[Span]:
        """All that are left: there are no more. `broken`: where they end is not the end of the epoch.

        Then batches that are not whole are nobody's, and all others are given as if the epoch went on.
        """
        total = None if broken else self._delivered
        found = [Span(span.first, span.num_rows, total) for span in self._uncertain]
        self._uncertain.clear()
        return found

    def _certain(self, settled: int) -> Sequence[Span]:
        num = next((num for num, span in enumerate(self._uncertain) if span.last > settled), len(self._uncertain))
        found, self._uncertain = self._uncertain[:num], self._uncertain[num:]
        return found

    def _settled(self) -> int:
        """The place in the order before which all rows have their owners, in whole windows."""
        window = self._division.start.window or 1
        known = self._delivered - self._delivered % window
        if self._division.parts == 1 or known <= self._division.start.row:
            return self._delivered if self._division.parts == 1 else known
        num_kept = int(self._owners.kept_before(np.int64(known)))
        divided = num_kept - num_kept % self._division.group
        settled = known if divided == num_kept else self._owners.place_of(divided)
        return settled - settled % window


def _part_of(index: Any, size: int, parts: int) -> Any:
    """Whose part of `size` rows a row is in: the inverse of `position.part`."""
    return ((index + 1) * parts - 1) // size


@lru_cache(maxsize=8)
def _owners(division: Division) -> Owners:
    ranges = np.array(gone(division.start, Split(0, division.world, division.mode)), dtype=np.int64).reshape(-1, 2)
    sizes = np.concatenate([[0], np.cumsum(ranges[:, 1] - ranges[:, 0])])
    return Owners(division, ranges[:, 0], ranges[:, 1], sizes)


@lru_cache(maxsize=4)
def _window(begin: int, size: int, total: int | None, seed: int, epoch: int) -> Numbers:
    """Where the rows of a window come to lie."""
    stop = begin + size if total is None else min(begin + size, total)
    order = np.argsort(hashed(np.arange(begin, stop), seed, epoch), kind="stable")
    places = np.empty(len(order), dtype=np.int64)
    places[order] = np.arange(begin, stop)
    return places
