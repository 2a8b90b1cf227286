"""Which rows go to which worker, and where an epoch stands: the arithmetic of exactly-once.

The rows of an epoch have one order, whatever the number of workers. It is cut into chunks of one batch for every worker
together, and of each chunk every worker takes its part. So what all workers have used after so many batches is a
beginning of the order, and a few integers say where the rest begins: see `Cursor`. `cutting.py` does the cutting.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import msgspec

from paceline._core.cursor import Ahead, Cursor, merged, next_epoch, replaced
from paceline.data import ranges
from paceline.data.block import Block
from paceline.data.ranges import Range

__all__ = [
    "Ahead",
    "Cursor",
    "Delivered",
    "Mode",
    "Split",
    "gone",
    "left_out",
    "merged",
    "next_epoch",
    "order_of",
    "part",
    "replaced",
]

Mode = Literal["equal", "exact", "all"]
"""`equal`: as many rows for each worker, the few that are too many are left out. `exact`: every row, on one worker.
`all`: every row on every worker."""


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


def order_of(start: Cursor, window: int, seed: int) -> Cursor:
    """The cursor with the window and the seed that go on from it: those given, if its epoch is yet to be begun."""
    if start.row:
        return start
    if start.ahead is not None:
        window, seed = start.ahead.window, start.ahead.seed
    return replaced(start, window=window, seed=seed)


def furthest(ahead: Ahead | None) -> int:
    """The row from which on nothing is used."""
    return 0 if ahead is None else max(furthest(ahead.before), *(row for row, _ in ahead.leads))


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
