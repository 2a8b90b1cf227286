"""The position in a dataset, and how to merge the positions of several workers.

A position is a few integers, saved in a checkpoint's record. `paceline.data.order.sharding` maps them to rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0)]

MAX_LEADS = 8
"""At most this many different leads are distinguished, which keeps a cursor small."""


class ConsumedAhead(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Rows that some workers consumed beyond the position of the slowest worker."""

    row: Count
    leads: tuple[tuple[Count, Annotated[str, msgspec.Meta(pattern="^[0-9a-f]+$")]], ...]
    """The row that workers have reached, and which workers: the bits of a hexadecimal number."""
    chunk: Count
    world: Count
    """The number of workers; `chunk` is the number of rows of a global batch."""
    total: Count | None = None
    """The rows of the epoch, as the workers knew it."""
    window: Count = 0
    seed: int = 0
    """The order of the epoch, as in `Cursor`."""
    before: ConsumedAhead | None = None
    """The same from an earlier time: what was already consumed when these workers began."""


class Cursor(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The position in a dataset. Small, plain, and independent of the number of workers."""

    epoch: Count = 0
    row: Count = 0
    """How many rows of the epoch, in its order, are done."""
    unit: Count = 0
    """Where to continue reading: the index of a unit in the epoch's order,"""
    offset: Count = 0
    """how many of its output rows to skip,"""
    at: Count = 0
    """and which row of the epoch that is."""
    total: Count | None = None
    """The rows of the epoch, if known when it began."""
    fingerprint: str = ""
    """Identifies the dataset: a cursor is valid for the same one only."""
    chunk: Count = 0
    world: Count = 1
    """How the rows so far were split into batches: rows per global batch, and number of workers."""
    window: Count = 0
    seed: int = 0
    """Rows are shuffled within windows of this size; an epoch keeps the order that it began with."""
    ahead: ConsumedAhead | None = None
    """What is consumed beyond `row` in this epoch,"""
    later: ConsumedAhead | None = None
    """and in the next one."""


Cursors = tuple[tuple[str, Cursor], ...]
"""By dataset name."""


def merge_cursors(cursors: Sequence[Cursor]) -> Cursor:
    """Merge the cursors of all workers, given in rank order, into one.

    Workers in step share one position. Otherwise the position is that of the slowest worker, and the cursor notes what
    the others have consumed beyond it.
    """
    slowest = min(cursors, key=lambda cursor: (cursor.epoch, cursor.row))
    # A worker that is in the next epoch has finished this one.
    this = {
        rank: cursor.row if cursor.epoch == slowest.epoch else max(cursor.total or 0, slowest.row)
        for rank, cursor in enumerate(cursors)
    }
    following = {
        rank: cursor.row if cursor.epoch == slowest.epoch + 1 else cursor.total or 0
        for rank, cursor in enumerate(cursors)
        if cursor.epoch > slowest.epoch
    }
    latest = max(cursors, key=lambda cursor: (cursor.epoch, cursor.row))
    if latest.world == 1:
        return cursors[0]  # Each worker reads all the rows, independently of the others.
    if not latest.chunk:
        return slowest
    # A worker that has not begun knows neither the total nor the order that the others began with.
    begun = [cursor for cursor in cursors if cursor.epoch == slowest.epoch and cursor.total is not None]
    total = begun[0].total if begun else None
    order = slowest if slowest.row else slowest.ahead or latest
    ahead = _build_ahead(slowest.row, this, order, latest, total, slowest.ahead)
    later = _build_ahead(0, following, slowest.later or latest, latest, latest.total, slowest.later)
    return replace_cursor(slowest, ahead=ahead, later=later)


def merge_rank_cursors(ranks: Iterable[tuple[int, Cursors]]) -> Cursors:
    """Merge the cursors that each rank reported with a checkpoint."""
    by_name: dict[str, list[Cursor]] = {}
    for _, cursors in sorted(ranks, key=lambda entry: entry[0]):
        for name, cursor in cursors:
            by_name.setdefault(name, []).append(cursor)
    return tuple((name, merge_cursors(group)) for name, group in sorted(by_name.items()))


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


def count_dataset_epochs(positions: Cursors) -> float | None:
    """Return how many epochs of the training dataset are used, if its length is known: 1.5 in the second epoch."""
    by_name = dict(positions)
    cursor = by_name.get("train", next(iter(by_name.values())) if len(by_name) == 1 else None)
    if cursor is None or (cursor.row and not cursor.total):
        return None
    return cursor.epoch + (min(1.0, cursor.row / cursor.total) if cursor.total else 0.0)


def replace_cursor(cursor: Cursor, **changes: object) -> Cursor:
    changed: Cursor = msgspec.structs.replace(cursor, **changes)
    return changed


def _build_ahead(
    row: int,
    rows: dict[int, int],
    order: Cursor | ConsumedAhead,
    latest: Cursor,
    total: int | None,
    before: ConsumedAhead | None,
) -> ConsumedAhead | None:
    """`rows` is how far each worker is; `order` and `latest` give the epoch's order and its split into batches."""
    marks = sorted({reached for reached in rows.values() if reached > row})
    # With more leads than that, round a worker's position down: it gets some rows again.
    marks = marks[:: -(-len(marks) // MAX_LEADS) or 1]
    leads = dict.fromkeys(marks, 0)
    for rank, reached in rows.items():
        if reached > row:
            leads[max(mark for mark in marks if mark <= reached)] |= 1 << rank
    if not leads:
        return before
    hex_leads = tuple((mark, f"{ranks:x}") for mark, ranks in leads.items())
    return ConsumedAhead(row, hex_leads, latest.chunk, latest.world, total, order.window, order.seed, before)
