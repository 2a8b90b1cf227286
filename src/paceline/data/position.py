"""Which rows go to which worker, and where an epoch stands: the arithmetic of exactly-once.

The rows of an epoch have one order, whatever the number of workers. It is cut into chunks of one batch for every worker
together, and of each chunk every worker takes its part. So what all workers have used after so many batches is a
beginning of the order, and a few integers say where the rest begins: see `Cursor`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import msgspec
import numpy as np

from paceline.data.block import Block
from paceline.data.order import hashed

Mode = Literal["equal", "exact", "all"]
"""`equal`: as many rows for each worker, the few that are too many are left out. `exact`: every row, on one worker.
`all`: every row on every worker."""


class Cursor(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where the reading of a dataset stands. Small, plain, and free of the number of workers."""

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

    def part(self, num_rows: int) -> tuple[int, int]:
        """Where this worker's part of a chunk begins and ends."""
        if self.mode == "all":
            return 0, num_rows
        return self.rank * num_rows // self.world, (self.rank + 1) * num_rows // self.world


def left_out(total: int | None, parts: int, epoch: int, mode: Mode) -> list[tuple[int, int]]:
    """The rows that an epoch leaves out so that all parts are equal, as ranges: other ones in every epoch.

    Where the total is not known, as in a first epoch with a filter, it is the last ones: those of epoch 0.
    """
    if mode != "equal" or not total or total % parts == 0:
        return []
    num = total % parts
    start = (total - num * (epoch + 1)) % total
    return [(start, start + num)] if start + num <= total else [(0, start + num - total), (start, total)]


@dataclass(frozen=True)
class Cut:
    """One batch of one worker."""

    block: Block
    cursor: Cursor
    """Where the epoch stands once all workers have used their batches of this number."""
    partial: bool
    """The last one of the epoch, with fewer rows than the others."""


class Cutter:
    """Cuts what is delivered of an epoch into the batches of one worker.

    `chunk_rows` are the rows of a batch on all workers together; None: each delivered block is a chunk.
    `window_rows`: rows change places within windows of so many, by the hash of their index.
    """

    def __init__(
        self,
        split: Split,
        chunk_rows: int | None,
        start: Cursor,
        *,
        window_rows: int | None = None,
        seed: int = 0,
    ) -> None:
        self._split = split
        self._chunk_rows = chunk_rows
        self._start = start
        self._window_rows = window_rows
        self._seed = seed
        self._gone = deque(_gone(start, split))
        self._sources: deque[tuple[int, int, int]] = deque()  # row of the order, unit, offset
        self._delivered = start.at

    def cut(self, deliveries: Iterable[Delivered]) -> Iterator[Cut]:
        """The batches, from the start on."""
        held: deque[Block] = deque()
        num_held = 0
        end = self._start.row  # of what is held or was cut, in rows of the order
        marks: deque[tuple[int, int]] = deque()  # kept rows so far, row of the order after them
        kept = used = 0
        for first, block in self._ordered(deliveries):
            for begin, stop in self._kept(first, first + block.num_rows):
                held.append(block.slice(begin - first, stop - first))
                num_held += stop - begin
                kept += stop - begin
                marks.append((kept, stop))
            end = first + block.num_rows
            while num_held and (self._chunk_rows is None or num_held >= self._chunk_rows):
                size = self._chunk_rows or num_held
                used += size
                yield self._cut(held, size, self._row_after(marks, used), partial=False)
                num_held -= size
        total = max(end, self._delivered)
        if num_held and self._split.mode == "equal":
            num_held -= num_held % self._split.parts
        if num_held:
            yield self._cut(held, num_held, total, partial=True, total=total)
        self.total = total

    total: int | None = None
    """The rows of the epoch; known once all was cut."""

    def _cut(self, held: deque[Block], size: int, row: int, *, partial: bool, total: int | None = None) -> Cut:
        begin, stop = self._split.part(size)
        parts, passed = [], 0
        while passed < size:
            block = held.popleft()
            if block.num_rows > size - passed:
                held.appendleft(block.slice(size - passed))
                block = block.slice(0, size - passed)
            low, high = max(begin - passed, 0), min(stop - passed, block.num_rows)
            if low < high:
                parts.append(block.slice(low, high))
            passed += block.num_rows
        return Cut(Block.concat(parts), self._cursor(row, total), partial)

    def _cursor(self, row: int, total: int | None) -> Cursor:
        window = self._window_rows
        at = row - row % window if window else row
        while len(self._sources) > 1 and self._sources[1][0] <= at:
            self._sources.popleft()
        # Nothing may have been delivered yet of where the next window begins: then it is where the last one ends.
        first, unit, offset = self._sources[0]
        passed = min(at, self._delivered) - first
        return replace_cursor(
            self._start,
            row=row,
            unit=unit,
            offset=offset + passed,
            at=first + passed,
            total=total if total is not None else self._start.total,
            chunk=self._chunk_rows or 0,
            world=self._split.parts,
            leads=(),
        )

    def _row_after(self, marks: deque[tuple[int, int]], used: int) -> int:
        while marks[0][0] < used:
            marks.popleft()
        kept, row = marks[0]
        return row - (kept - used)

    def _kept(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Of a range of rows, those that are not gone."""
        while self._gone and first < last:
            begin, stop = self._gone[0]
            if begin >= last:
                break
            if first < begin:
                yield first, begin
            first = max(first, min(stop, last))
            if stop > last:
                return
            self._gone.popleft()
        if first < last:
            yield first, last

    def _ordered(self, deliveries: Iterable[Delivered]) -> Iterator[tuple[int, Block]]:
        """Blocks with the row of the order that each begins with, from the start on."""
        skip = self._start.row
        rows = self._windowed(deliveries) if self._window_rows else self._noted(deliveries)
        for first, block in rows:
            last = first + block.num_rows
            if last > skip:
                cut = max(skip - first, 0)
                yield first + cut, block.slice(cut)

    def _noted(self, deliveries: Iterable[Delivered]) -> Iterator[tuple[int, Block]]:
        for delivery in deliveries:
            if delivery.block.num_rows:
                first = self._delivered
                self._sources.append((first, delivery.unit, delivery.offset))
                self._delivered += delivery.block.num_rows
                yield first, delivery.block

    def _windowed(self, deliveries: Iterable[Delivered]) -> Iterator[tuple[int, Block]]:
        size = self._window_rows
        assert size is not None
        held: list[Block] = []
        begin = self._start.at
        for first, block in self._noted(deliveries):
            while block.num_rows:
                room = begin + size - begin % size - first
                held.append(block.slice(0, room))
                if block.num_rows < room:
                    break
                yield begin, self._shuffled(begin, held)
                begin = first = first + room
                block = block.slice(room)
                held.clear()
        if held:
            yield begin, self._shuffled(begin, held)

    def _shuffled(self, begin: int, held: Sequence[Block]) -> Block:
        window = Block.concat(held)
        keys = hashed(np.arange(begin, begin + window.num_rows), self._seed, self._start.epoch)
        return window.take(np.argsort(keys, kind="stable"))


def merged(cursors: Sequence[Cursor]) -> Cursor:
    """Where all workers together stand, from where each does, in the order of their ranks.

    In step they stand at one place. If not, it is that of the last, and the others' leads are noted.
    """
    last = min(cursors, key=lambda cursor: (cursor.epoch, cursor.row))
    total = next((cursor.total for cursor in cursors if cursor.total is not None), None)
    leads = tuple(
        # Of a worker that is in the next epoch already, all of this one is done.
        (rank, cursor.row if cursor.epoch == last.epoch else max(total or 0, last.row))
        for rank, cursor in enumerate(cursors)
        if (cursor.epoch, cursor.row) > (last.epoch, last.row)
    )
    return replace_cursor(last, total=total, leads=leads)


def next_epoch(cursor: Cursor, total: int | None) -> Cursor:
    return Cursor(epoch=cursor.epoch + 1, total=total, fingerprint=cursor.fingerprint)


def replace_cursor(cursor: Cursor, **changes: object) -> Cursor:
    replaced: Cursor = msgspec.structs.replace(cursor, **changes)
    return replaced


def _gone(start: Cursor, split: Split) -> list[tuple[int, int]]:
    """The rows from the start on that are not to be given: left out, or used already by a worker that was ahead."""
    gone = left_out(start.total, split.parts, start.epoch, split.mode)
    gone += _used_ahead(start, split.mode)
    ranges: list[tuple[int, int]] = []
    for begin, stop in sorted(gone):
        begin = max(begin, start.row)
        if ranges and begin <= ranges[-1][1]:
            ranges[-1] = (ranges[-1][0], max(stop, ranges[-1][1]))
        elif begin < stop:
            ranges.append((begin, stop))
    return ranges


def _used_ahead(start: Cursor, mode: Mode) -> Iterator[tuple[int, int]]:
    """What the workers of the time of the cursor had used beyond it."""
    if not start.leads or not start.chunk:
        return
    furthest = max(row for _, row in start.leads)
    omitted = left_out(start.total, start.world, start.epoch, mode)
    kept = _without((start.row, furthest), omitted)
    position = 0  # among the kept rows
    num_kept = sum(stop - begin for begin, stop in kept)
    while position < num_kept:
        size = min(start.chunk, num_kept - position)
        if size < start.chunk and mode == "equal":
            size -= size % start.world
            if not size:
                return
        end_row = _rows_at(kept, position, position + size)[-1][1]
        for rank, row in start.leads:
            if row >= end_row:
                begin, stop = replace(_PART, rank=rank, world=start.world).part(size)
                yield from _rows_at(kept, position + begin, position + stop)
        position += size


_PART = Split(mode="equal")


def _without(span: tuple[int, int], omitted: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    ranges, first = [], span[0]
    for begin, stop in sorted(omitted):
        if begin > first:
            ranges.append((first, min(begin, span[1])))
        first = max(first, stop)
    ranges.append((first, span[1]))
    return [(begin, stop) for begin, stop in ranges if begin < stop]


def _rows_at(ranges: Sequence[tuple[int, int]], begin: int, stop: int) -> list[tuple[int, int]]:
    """Positions `begin` to `stop` among the rows of some ranges, as ranges of rows."""
    found, passed = [], 0
    for low, high in ranges:
        first, last = max(begin - passed, 0), min(stop - passed, high - low)
        if first < last:
            found.append((low + first, low + last))
        passed += high - low
    return found
