"""Where the reading of a dataset stands: a few integers that go into a checkpoint's record, and how those of several
workers become one. What they mean for the rows is the business of `paceline.data.position`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

import msgspec

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
    window: Count = 0
    seed: int = 0
    """The order of the epoch, as in `Cursor`."""
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
    """Rows change places within windows of so many: an epoch keeps the order that it began with."""
    ahead: Ahead | None = None
    """What is used beyond `row`, of this epoch,"""
    later: Ahead | None = None
    """and of the next one."""


Cursors = tuple[tuple[str, Cursor], ...]
"""By the name of the dataset."""


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
    if how.world == 1:
        return cursors[0]  # Each has all the rows, and nothing in common with the others.
    if not how.chunk:
        return last
    # One that has not begun does not know the total, nor the order that the others began with.
    known = [cursor for cursor in cursors if cursor.epoch == last.epoch and cursor.total is not None]
    total = known[0].total if known else None
    order = last if last.row else last.ahead or how
    ahead = _ahead(last.row, this, order, how, total, last.ahead)
    later = _ahead(0, following, last.later or how, how, how.total, last.later)
    return replaced(last, ahead=ahead, later=later)


def together(ranks: Iterable[tuple[int, Cursors]]) -> Cursors:
    """The cursors of a checkpoint, from those that each rank reported with it."""
    by_name: dict[str, list[Cursor]] = {}
    for _, cursors in sorted(ranks, key=lambda entry: entry[0]):
        for name, cursor in cursors:
            by_name.setdefault(name, []).append(cursor)
    return tuple((name, merged(found)) for name, found in sorted(by_name.items()))


def next_epoch(cursor: Cursor, total: int | None) -> Cursor:
    return Cursor(
        epoch=cursor.epoch + 1,
        total=total,
        fingerprint=cursor.fingerprint,
        chunk=cursor.chunk,
        world=cursor.world,
        window=cursor.window,
        seed=cursor.seed,
        ahead=cursor.later,
    )


def replaced(cursor: Cursor, **changes: object) -> Cursor:
    changed: Cursor = msgspec.structs.replace(cursor, **changes)
    return changed


def _ahead(
    row: int, rows: dict[int, int], order: Cursor | Ahead, how: Cursor, total: int | None, before: Ahead | None
) -> Ahead | None:
    """`rows` says how far each worker is; `order` and `how`, what the epoch's order is and how it was cut."""
    places = sorted({reached for reached in rows.values() if reached > row})
    # Beyond those that are told apart we take a worker for less far than it was: it is given some rows again.
    places = places[:: -(-len(places) // MAX_LEADS) or 1]
    leads = dict.fromkeys(places, 0)
    for rank, reached in rows.items():
        if reached > row:
            leads[max(place for place in places if place <= reached)] |= 1 << rank
    if not leads:
        return before
    shown = tuple((place, f"{ranks:x}") for place, ranks in leads.items())
    return Ahead(row, shown, how.chunk, how.world, total, order.window, order.seed, before)
