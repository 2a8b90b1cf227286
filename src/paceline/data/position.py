"""Which rows go to which worker, and where an epoch stands: the arithmetic of exactly-once.

The rows of an epoch have one order, whatever the number of workers. It is cut into chunks of one batch for every worker
together, and of each chunk every worker takes its part. So what all workers have used after so many batches is a
beginning of the order, and a few integers say where the rest begins: see `Cursor`. `cutting.py` does the cutting.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from paceline.data import ranges
from paceline.data.block import Block
from paceline.data.ranges import Range

Mode = Literal["equal", "exact", "all"]
"""`equal`: as many rows for each worker, the few that are too many are left out. `exact`: every row, on one worker.
`all`: every row on every worker."""

Count = Annotated[int, msgspec.Meta(ge=0)]

MAX_LEADS = 8
"""So many different places ahead of the others are told apart, which keeps a cursor small."""


class Ahead(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What some workers had used beyond the row where the last of them stood."""

    row: Count
    leads: tuple[tuple[Count, Annotated[str, msgspec.Meta(pattern="^[0-9a-f]+$")]], ...]
    """How far, and which workers: the bits of a hexadecimal number."""
    chunk: Count
    world: Count
    """The workers there were, and the rows of a batch of all of them."""
    total: Count | None = None
    """The rows of the epoch, as they knew it."""
    before: Ahead | None = None
    """The same of an earlier time: what they found used when they began."""


class Cursor(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Where the reading of a dataset stands. Small, plain, and free of the number of workers."""

    epoch: Count = 0
    row: Count = 0
    """How many rows of the epoch's order are done."""
    unit: Count = 0
    """From where on to read: the place of a unit in the epoch's order,"""
    offset: Count = 0
    """how many of the rows that come of it to pass over,"""
    at: Count = 0
    """and which row of the epoch that is."""
    total: Count | None = None
    """The rows of the epoch, if they were known when it began."""
    fingerprint: str = ""
    """Of the dataset: a cursor is good for the same one only."""
    chunk: Count = 0
    world: Count = 1
    """How the batches up to here were cut: the rows of a batch of all workers, and how many those were."""
    window: Count = 0
    seed: int = 0
    """The window of shuffled rows that `row` is in the middle of; it begins at `at`."""
    ahead: Ahead | None = None
    """What is used beyond `row`, of this epoch,"""
    later: Ahead | None = None
    """and of the next one."""


class Delivered(msgspec.Struct, frozen=True):
    """Some rows of the order, and where they came from."""

    unit: int
    offset: int
    block: Block


@dataclass(frozen=True)
class Split:
    """The part of one worker."""

    rank: int = 0
    world: int = 1
    mode: Mode = "all"

    @property
    def parts(self) -> int:
        """How many workers divide a chunk among them."""
        return 1 if self.mode == "all" else self.world

    def part(self, num_rows: int) -> Range:
        """Where this worker's part of a chunk begins and ends."""
        return (0, num_rows) if self.mode == "all" else part(num_rows, self.rank, self.world)


def part(num_rows: int, rank: int, world: int) -> Range:
    return rank * num_rows // world, (rank + 1) * num_rows // world


def left_out(total: int, parts: int, epoch: int) -> list[Range]:
    """The rows that an epoch leaves out so that all parts are equal: other ones in every epoch."""
    if not total:
        return []
    num = total % parts
    start = (total - num * (epoch + 1)) % total
    return ranges.joined([(start, min(start + num, total)), (0, start + num - total)])


def gone(start: Cursor, split: Split) -> list[Range]:
    """The rows from the start on that are not to be given: used already by a worker that was ahead, or left out."""
    used = _used(start.ahead, start.epoch, split.mode)
    omitted = _omitted(start.row, start.total, split.parts, start.epoch, split.mode, used)
    return ranges.joined((max(begin, start.row), stop) for begin, stop in used + omitted)


def merged(cursors: Sequence[Cursor]) -> Cursor:
    """Where all workers together stand, from where each does, in the order of their ranks.

    In step they stand at one place. If not, it is that of the last, and what the others have used beyond it is noted.
    """
    last = min(cursors, key=lambda cursor: (cursor.epoch, cursor.row))
    # Of a worker that is in the next epoch already, all of this one is done.
    this = {
        rank: cursor.row if cursor.epoch == last.epoch else max(cursor.total or 0, last.row)
        for rank, cursor in enumerate(cursors)
    }
    following = {
        rank: cursor.row if cursor.epoch == last.epoch + 1 else cursor.total or 0
        for rank, cursor in enumerate(cursors)
        if cursor.epoch > last.epoch
    }
    how = max(cursors, key=lambda cursor: (cursor.epoch, cursor.row))

    def total(epochs: Iterable[int]) -> int | None:
        return next((cursor.total for cursor in cursors if cursor.epoch in epochs and cursor.total is not None), None)

    return replaced(
        last,
        ahead=_ahead(last.row, this, how, total([last.epoch]), last.ahead),
        later=_ahead(0, following, how, total(range(last.epoch + 1, how.epoch + 1)), last.later),
    )


def next_epoch(cursor: Cursor, total: int | None) -> Cursor:
    return Cursor(
        epoch=cursor.epoch + 1,
        total=total,
        fingerprint=cursor.fingerprint,
        chunk=cursor.chunk,
        world=cursor.world,
        ahead=cursor.later,
    )


def replaced(cursor: Cursor, **changes: object) -> Cursor:
    changed: Cursor = msgspec.structs.replace(cursor, **changes)
    return changed


def furthest(ahead: Ahead | None) -> int:
    """The row from which on nothing is used."""
    return 0 if ahead is None else max(furthest(ahead.before), *(row for row, _ in ahead.leads))


def _ahead(row: int, rows: dict[int, int], how: Cursor, total: int | None, before: Ahead | None) -> Ahead | None:
    """`rows` says how far each worker is."""
    if how.world == 1 or not how.chunk:
        return before  # each worker had all the rows
    places = sorted({reached for reached in rows.values() if reached > row})
    # Beyond those that are told apart we take a worker for less far than it was: it is given some rows again.
    places = places[:: -(-len(places) // MAX_LEADS) or 1]
    leads = []
    for place, beyond in zip(places, [*places[1:], None], strict=True):
        ranks = sum(
            1 << rank for rank, reached in rows.items() if reached >= place and (not beyond or reached < beyond)
        )
        leads.append((place, f"{ranks:x}"))
    if not leads:
        return before
    return Ahead(row, tuple(leads), how.chunk, how.world, total, before)


def _used(ahead: Ahead | None, epoch: int, mode: Mode) -> list[Range]:
    """The rows that had been used, from `ahead.row` on."""
    if ahead is None:
        return []
    earlier = _used(ahead.before, epoch, mode)
    omitted = _omitted(ahead.row, ahead.total, ahead.world, epoch, mode, earlier)
    span = (ahead.row, max(row for row, _ in ahead.leads))
    kept = ranges.without(span, earlier + omitted)
    return ranges.joined([*earlier, *_used_parts(kept, ahead, mode)])


def _used_parts(kept: list[Range], ahead: Ahead, mode: Mode) -> Iterator[Range]:
    reached = [0] * ahead.world
    for row, ranks in ahead.leads:
        for rank in range(ahead.world):
            if int(ranks, 16) >> rank & 1:
                reached[rank] = row
    rows, num_left = ranges.Walk(kept), ranges.size(kept)
    while num_left:
        num = min(ahead.chunk, num_left)
        num_left -= num
        if num < ahead.chunk and mode == "equal":
            num -= num % ahead.world
        chunk = rows.take(num)
        for rank, row in enumerate(reached):
            if chunk and row >= chunk[-1][1]:
                begin, stop = part(num, rank, ahead.world)
                walk = ranges.Walk(chunk)
                walk.take(begin)
                yield from walk.take(stop - begin)


def _omitted(row: int, total: int | None, parts: int, epoch: int, mode: Mode, used: list[Range]) -> list[Range]:
    """What is left out from a row on, so that the rest can be divided equally.

    Where the total is not known, as in a first epoch with a filter, it is the last rows, which is seen at the end.
    """
    if mode != "equal" or not total:
        return []
    rest = ranges.without((row, total), used)
    return ranges.head(ranges.within(left_out(total, parts, epoch), rest), ranges.size(rest) % parts)
