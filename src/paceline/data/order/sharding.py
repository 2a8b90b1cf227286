"""Which rows go to which worker, and the position in an epoch: the arithmetic of exactly-once.

The rows of an epoch have one order, regardless of the number of workers. It is cut into chunks, each one batch of all
workers together, and every worker takes its part of each chunk. What all workers have used after a number of batches is
therefore a prefix of the order, and a few integers say where the rest begins: see `Cursor`. `batch_cutter.py` does the
cutting.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from paceline._core.cursor import ConsumedAhead
from paceline._core.cursor import Cursor as Cursor
from paceline._core.cursor import merge_cursors as merge_cursors
from paceline._core.cursor import next_epoch as next_epoch
from paceline._core.cursor import replace_cursor as replace_cursor
from paceline.data.block import Block

Range = tuple[int, int]
"""The first row, and the one after the last. A set of rows is a list of these, sorted."""

Mode = Literal["equal", "exact", "all"]
"""How rows are divided among workers.

`equal`: the same number of rows for each worker; surplus rows are dropped. `exact`: every row on exactly one worker.
`all`: every row on every worker.
"""


class RowDelivery(msgspec.Struct, frozen=True):
    """Some rows of the epoch order, and where they come from."""

    unit: int
    offset: int
    block: Block


@dataclass(frozen=True)
class WorkerShard:
    rank: int = 0
    world: int = 1
    mode: Mode = "all"

    @property
    def num_parts(self) -> int:
        """Number of workers that divide a chunk."""
        return 1 if self.mode == "all" else self.world

    def part_range(self, num_rows: int) -> Range:
        return (0, num_rows) if self.mode == "all" else part_range(num_rows, self.rank, self.world)


def part_range(num_rows: int, rank: int, world: int) -> Range:
    return rank * num_rows // world, (rank + 1) * num_rows // world


def left_out_rows(total: int, parts: int, epoch: int) -> list[Range]:
    """Return the rows that an epoch drops to make all parts equal: different ones in every epoch."""
    if not total:
        return []
    num = total % parts
    start = (total - num * (epoch + 1)) % total
    return join_ranges([(start, min(start + num, total)), (0, start + num - total)])


def excluded_rows(start: Cursor, split: WorkerShard) -> list[Range]:
    """Return the rows after the start that must not be handed out: used by a worker that was ahead, or dropped."""
    used = _used_rows(start.ahead, start.epoch, split.mode)
    omitted = _omitted_rows(start.row, start.total, split.num_parts, start.epoch, split.mode, used)
    return join_ranges((max(begin, start.row), stop) for begin, stop in used + omitted)


def with_order(start: Cursor, window: int, seed: int) -> Cursor:
    """Set the window and seed of a cursor, unless its epoch has started with others."""
    if start.row:
        return start
    if start.ahead is not None:
        window, seed = start.ahead.window, start.ahead.seed
    return replace_cursor(start, window=window, seed=seed)


def furthest_used(ahead: ConsumedAhead | None) -> int:
    return 0 if ahead is None else max(furthest_used(ahead.before), *(row for row, _ in ahead.leads))


def _used_rows(ahead: ConsumedAhead | None, epoch: int, mode: Mode) -> list[Range]:
    """Return the rows that were used, from `ahead.row` on."""
    if ahead is None:
        return []
    earlier = _used_rows(ahead.before, epoch, mode)
    omitted = _omitted_rows(ahead.row, ahead.total, ahead.world, epoch, mode, earlier)
    span = (ahead.row, max(row for row, _ in ahead.leads))
    remaining = subtract_ranges(span, earlier + omitted)
    return join_ranges([*earlier, *_used_parts(remaining, ahead, mode)])


def _used_parts(remaining: list[Range], ahead: ConsumedAhead, mode: Mode) -> Iterator[Range]:
    reached = [0] * ahead.world
    for row, ranks in ahead.leads:
        for rank in range(ahead.world):
            if int(ranks, 16) >> rank & 1:
                reached[rank] = row
    rows, num_left = RangeCursor(remaining), num_rows_in(remaining)
    while num_left:
        num = min(ahead.chunk, num_left)
        num_left -= num
        if num < ahead.chunk and mode == "equal":
            num -= num % ahead.world
        chunk = rows.take(num)
        for rank, row in enumerate(reached):
            if chunk and row >= chunk[-1][1]:
                begin, stop = part_range(num, rank, ahead.world)
                walk = RangeCursor(chunk)
                walk.take(begin)
                yield from walk.take(stop - begin)


def _omitted_rows(row: int, total: int | None, parts: int, epoch: int, mode: Mode, used: list[Range]) -> list[Range]:
    """Return what is dropped after a row so that the rest divides equally.

    If the total is unknown, as in a first epoch with a filter, the last rows are dropped, which is decided at the end.
    """
    if mode != "equal" or not total:
        return []
    rest = subtract_ranges((row, total), used)
    return take_head(intersect_ranges(left_out_rows(total, parts, epoch), rest), num_rows_in(rest) % parts)


def join_ranges(ranges: Iterable[Range]) -> list[Range]:
    """Sort ranges and merge those that touch."""
    joined: list[Range] = []
    for begin, stop in sorted(ranges):
        if begin >= stop:
            continue
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        else:
            joined.append((begin, stop))
    return joined


def subtract_ranges(span: Range, excluded: Iterable[Range]) -> list[Range]:
    rest, first = [], span[0]
    for begin, stop in join_ranges(excluded):
        if begin > first:
            rest.append((first, min(begin, span[1])))
        first = max(first, stop)
    rest.append((first, span[1]))
    return [(begin, stop) for begin, stop in rest if begin < stop]


def intersect_ranges(ranges: Sequence[Range], other_ranges: Sequence[Range]) -> list[Range]:
    return join_ranges((max(a, c), min(b, d)) for a, b in ranges for c, d in other_ranges)


def num_rows_in(ranges: Iterable[Range]) -> int:
    return sum(stop - begin for begin, stop in ranges)


def take_head(ranges: Iterable[Range], num: int) -> list[Range]:
    """Return the first `num` rows, or all if there are fewer."""
    return RangeCursor(ranges).take(num)


class RangeCursor:
    def __init__(self, ranges: Iterable[Range]) -> None:
        self._rest = list(reversed(list(ranges)))

    @property
    def remaining(self) -> list[Range]:
        return list(reversed(self._rest))

    def take(self, num: int) -> list[Range]:
        head = []
        while num > 0 and self._rest:
            begin, stop = self._rest.pop()
            if stop - begin > num:
                self._rest.append((begin + num, stop))
                stop = begin + num
            head.append((begin, stop))
            num -= stop - begin
        return head
