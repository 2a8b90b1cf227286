"""Where the reading of a dataset stands: a few integers that go into a checkpoint's record, and how those of several
workers become one. What they mean for the rows is the business of `paceline.data.position`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec


class Cursor(msgspec.Struct, frozen=True, omit_defaults=True):
    """Small, plain, and free of the number of workers."""

    epoch: int = 0
    row: int = 0
    """How many rows of the epoch's order are done."""
    unit: int = 0
    """From where on to read: the place of a unit in the epoch's order,"""
    offset: int = 0
    """how many of the rows that come of it to pass over,"""
    at: int = 0
    """and which row of the epoch that is."""
    total: int | None = None
    """The rows of an epoch, once they have been counted."""
    fingerprint: str = ""
    """Of the dataset: a cursor is good for the same one only."""
    chunk: int = 0
    world: int = 1
    leads: tuple[tuple[int, int], ...] = ()
    """Workers (of `world`, in chunks of `chunk` rows) that were further than `row`, and how far."""


Cursors = tuple[tuple[str, Cursor], ...]
"""By the name of the dataset."""


def merged(cursors: Sequence[Cursor]) -> Cursor:
    """Where all workers together stand, from where each does, in the order of their ranks.

    In step they stand at one place. If not, it is that of the last, and the others' leads are noted. Workers that each
    read all of a dataset have nothing in common: what the first of them has read counts.
    """
    if all(cursor.world == 1 for cursor in cursors):
        return cursors[0]
    last = min(cursors, key=lambda cursor: (cursor.epoch, cursor.row))
    total = next((cursor.total for cursor in cursors if cursor.total is not None), None)
    leads = tuple(
        # Of a worker that is in the next epoch already, all of this one is done.
        (rank, cursor.row if cursor.epoch == last.epoch else max(total or 0, last.row))
        for rank, cursor in enumerate(cursors)
        if (cursor.epoch, cursor.row) > (last.epoch, last.row)
    )
    joined: Cursor = msgspec.structs.replace(last, total=total, leads=leads)
    return joined


def together(ranks: Iterable[tuple[int, Cursors]]) -> Cursors:
    """The cursors of a checkpoint, from those that each rank reported with it."""
    by_name: dict[str, list[Cursor]] = {}
    for _, cursors in sorted(ranks, key=lambda entry: entry[0]):
        for name, cursor in cursors:
            by_name.setdefault(name, []).append(cursor)
    return tuple((name, merged(found)) for name, found in sorted(by_name.items()))
