"""Which rows go to which worker, and the position in an epoch: the arithmetic of exactly-once.

The rows of an epoch have one order, regardless of the number of workers. It is cut into chunks, each one batch of all
workers together, and every worker takes its part of each chunk. What all workers have used after a number of batches is
therefore a prefix of the order, and a few integers say where the rest begins: see `Cursor`. `batch_cutter.py` does the
cutting.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import msgspec

from paceline._core.cursor import ConsumedAhead
from paceline._core.cursor import Cursor as Cursor
from paceline._core.cursor import merge_cursors as merge_cursors
from paceline._core.cursor import next_epoch as next_epoch
from paceline._core.cursor import replace_cursor as replace_cursor
from paceline.data.block import Block
from paceline.data.order import row_ranges
from paceline.data.order.row_ranges import Range

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
    """One worker's share of the rows."""

    rank: int = 0
    world: int = 1
    mode: Mode = "all"

    @property
    def num_parts(self) -> int:
        """Number of workers that divide a chunk."""
        return 1 if self.mode == "all" else self.world

    def part_range(self, num_rows: int) -> Range:
        """Return the begin and end of this worker's part of a chunk."""
        return (0, num_rows) if self.mode == "all" else part_range(num_rows, self.rank, self.world)


def part_range(num_rows: int, rank: int, world: int) -> Range:
    return rank * num_rows // world, (rank + 1) * num_rows // world


def left_out_rows(total: int, parts: int, epoch: int) -> list[Range]:
    """Return the rows that an epoch drops to make all parts equal: different ones in every epoch."""
    if not total:
        return []
    num = total % parts
    start = (total - num * (epoch + 1)) % total
    return row_ranges.join_ranges([(start, min(start + num, total)), (0, start + num - total)])


def excluded_rows(start: Cursor, split: WorkerShard) -> list[Range]:
    """Return the rows after the start that must not be handed out: used by a worker that was ahead, or dropped."""
    used = _used_rows(start.ahead, start.epoch, split.mode)
    omitted = _omitted_rows(start.row, start.total, split.num_parts, start.epoch, split.mode, used)
    return row_ranges.join_ranges((max(begin, start.row), stop) for begin, stop in used + omitted)


def with_order(start: Cursor, window: int, seed: int) -> Cursor:
    """Set the window and seed of a cursor, unless its epoch has started with others."""
    if start.row:
        return start
    if start.ahead is not None:
        window, seed = start.ahead.window, start.ahead.seed
    return replace_cursor(start, window=window, seed=seed)


def furthest_used(ahead: ConsumedAhead | None) -> int:
    """Return the first row after all used ones."""
    return 0 if ahead is None else max(furthest_used(ahead.before), *(row for row, _ in ahead.leads))


def _used_rows(ahead: ConsumedAhead | None, epoch: int, mode: Mode) -> list[Range]:
    """Return the rows that were used, from `ahead.row` on."""
    if ahead is None:
        return []
    earlier = _used_rows(ahead.before, epoch, mode)
    omitted = _omitted_rows(ahead.row, ahead.total, ahead.world, epoch, mode, earlier)
    span = (ahead.row, max(row for row, _ in ahead.leads))
    remaining = row_ranges.subtract_ranges(span, earlier + omitted)
    return row_ranges.join_ranges([*earlier, *_used_parts(remaining, ahead, mode)])


def _used_parts(remaining: list[Range], ahead: ConsumedAhead, mode: Mode) -> Iterator[Range]:
    reached = [0] * ahead.world
    for row, ranks in ahead.leads:
        for rank in range(ahead.world):
            if int(ranks, 16) >> rank & 1:
                reached[rank] = row
    rows, num_left = row_ranges.RangeCursor(remaining), row_ranges.num_rows_in(remaining)
    while num_left:
        num = min(ahead.chunk, num_left)
        num_left -= num
        if num < ahead.chunk and mode == "equal":
            num -= num % ahead.world
        chunk = rows.take(num)
        for rank, row in enumerate(reached):
            if chunk and row >= chunk[-1][1]:
                begin, stop = part_range(num, rank, ahead.world)
                walk = row_ranges.RangeCursor(chunk)
                walk.take(begin)
                yield from walk.take(stop - begin)


def _omitted_rows(row: int, total: int | None, parts: int, epoch: int, mode: Mode, used: list[Range]) -> list[Range]:
    """Return what is dropped after a row so that the rest divides equally.

    If the total is unknown, as in a first epoch with a filter, the last rows are dropped, which is decided at the end.
    """
    if mode != "equal" or not total:
        return []
    rest = row_ranges.subtract_ranges((row, total), used)
    return row_ranges.take_head(
        row_ranges.intersect_ranges(left_out_rows(total, parts, epoch), rest), row_ranges.num_rows_in(rest) % parts
    )
