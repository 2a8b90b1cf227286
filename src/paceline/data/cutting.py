"""Cuts the rows of an epoch, as they are delivered, into the batches of one worker.

Everything here follows from what is delivered and the cursor it began with, so each worker cuts for itself and all of
them agree.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from paceline.data.block import Block, Column, as_numpy
from paceline.data.order import hashed
from paceline.data.position import Cursor, Delivered, Split, furthest, gone
from paceline.data.sparse import Partial, Sparse, concat


@dataclass(frozen=True, slots=True)
class Cut:
    """One batch of one worker."""

    parts: tuple[Block, ...]
    """Its rows, as they lie in what was delivered: none, where this worker has no part of a last, small chunk."""
    cursor: Cursor
    """Where the epoch stands once all workers have used their batches of this number."""
    partial: bool
    """The last one of the epoch, with fewer rows than the others."""

    @property
    def block(self) -> Block:
        """The rows in one: without a copy if they lay in one."""
        return self.parts[0] if len(self.parts) == 1 else Block.concat(self.parts)


class Cutter:
    """`chunk_rows` are the rows of a batch on all workers together, a multiple of their number.

    None: a batch is what was delivered at a time, and the workers have its rows in turn.
    """

    def __init__(self, split: Split, chunk_rows: int | None, start: Cursor) -> None:
        self._split = split
        self._chunk_rows = chunk_rows
        self._start = start
        self._gone = deque(gone(start, split))
        self._furthest = furthest(start.ahead)
        self._held: deque[tuple[Block | Sparse, int, int]] = deque()  # rows of a block that were not given yet
        self._num_held = 0
        self._used = 0  # kept rows that were cut
        self._marks: deque[tuple[int, int]] = deque()  # so many kept rows, and the row of the order after them
        self._sources: deque[tuple[int, int, int]] = deque()  # row of the order, unit, offset
        self._delivered = start.at

    total: int | None = None
    """The rows of the epoch; known once all was cut."""

    def cut(self, deliveries: Iterable[Delivered | Partial]) -> Iterator[Cut]:
        """The batches, from the start on. Of what is delivered, at least this worker's rows must be at hand."""
        kept = 0
        parts = self._split.parts
        for first, block in self._ordered(deliveries):
            for begin, stop in self._kept(first, first + block.num_rows):
                self._held.append((block, begin - first, stop - first))
                self._num_held += stop - begin
                kept += stop - begin
                self._marks.append((kept, stop))
            size = self._chunk_rows or self._num_held - self._num_held % parts
            while 0 < size <= self._num_held:
                rows = self._rows(size)
                yield Cut(rows, self._cursor(self._row_after(size)), partial=False)
                self._pass(size)
        self.total = self._delivered
        size = self._num_held
        if self._split.mode == "equal":
            size -= size % parts
        if size:
            yield Cut(_whole(self._taken(size, *self._split.part(size))), self._cursor(self.total), partial=True)

    def cursor_within(self, num_rows: int) -> Cursor:
        """Where the epoch stands once each worker has used so many rows of the batch at hand.

        Only with rows that the workers have in turn, and for other batches than the last.
        """
        return self._cursor(self._row_after(num_rows * self._split.parts))

    def _rows(self, size: int) -> tuple[Block, ...]:
        """This worker's rows of the next ones that are held."""
        if self._chunk_rows is not None:
            return _whole(self._taken(size, *self._split.part(size)))
        rows = self._taken(size, 0, size)
        parts = self._split.parts
        return _whole(rows if parts == 1 else (concat(rows).take(np.arange(self._split.rank, size, parts)),))

    def _taken(self, size: int, begin: int, stop: int) -> tuple[Block | Sparse, ...]:
        """Takes rows off what is held, and gives those from `begin` to `stop`."""
        found, passed = [], 0
        while passed < size:
            block, low, high = self._held[0]
            num = min(high - low, size - passed)
            first, last = max(begin - passed, 0), min(stop - passed, num)
            if first < last:
                found.append(block.slice(low + first, low + last))
            passed += num
            if low + num == high:
                self._held.popleft()
            else:
                self._held[0] = (block, low + num, high)
        self._num_held -= size
        return tuple(found)

    # Where it stands

    def _row_after(self, num: int) -> int:
        """The row of the order that follows the next so many kept rows."""
        used = self._used + num
        for kept, row in self._marks:
            if kept >= used:
                return row - (kept - used)
        raise AssertionError("more rows were used than delivered")

    def _pass(self, num: int) -> None:
        """So many kept rows are done with."""
        self._used += num
        row = self._row_after(0)
        while self._marks[0][0] < self._used:
            self._marks.popleft()
        at = self._read_from(row)
        while len(self._sources) > 1 and self._sources[1][0] <= at:
            self._sources.popleft()

    def _read_from(self, row: int) -> int:
        """The row from which on to read: a window that is not done with is made again."""
        return row - row % self._start.window if self._start.window else row

    def _cursor(self, row: int) -> Cursor:
        start = self._start
        at = self._read_from(row)
        for source in self._sources:
            if source[0] > at:
                break
            first, unit, offset = source
        return Cursor(
            epoch=start.epoch,
            row=row,
            unit=unit,
            offset=offset + at - first,
            at=at,
            total=start.total,
            fingerprint=start.fingerprint,
            chunk=self._chunk_rows or self._split.parts,
            world=self._split.parts,
            window=start.window,
            seed=start.seed,
            ahead=start.ahead if self._furthest > row else None,
            later=start.later,
        )

    # What is kept, in order

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

    def _ordered(self, deliveries: Iterable[Delivered | Partial]) -> Iterator[tuple[int, Block | Sparse]]:
        """Blocks with the row of the order that each begins with, from the start on."""
        skip = self._start.row
        for first, block in self._windowed(deliveries):
            if first + block.num_rows > skip:
                cut = max(skip - first, 0)
                yield first + cut, block.slice(cut)

    def _windowed(self, deliveries: Iterable[Delivered | Partial]) -> Iterator[tuple[int, Block | Sparse]]:
        size = self._start.window
        if not size:
            yield from self._noted(deliveries)
            return
        held: list[Block | Sparse] = []
        begin = self._start.at
        for first, block in self._noted(deliveries):
            while block.num_rows:
                room = begin + size - first
                held.append(block.slice(0, room))
                if block.num_rows < room:
                    break
                yield begin, self._shuffled(begin, held)
                block = block.slice(room)
                begin = first = first + room
                held.clear()
        if held:
            yield begin, self._shuffled(begin, held)

    def _noted(self, deliveries: Iterable[Delivered | Partial]) -> Iterator[tuple[int, Block | Sparse]]:
        for delivery in deliveries:
            if delivery.block.num_rows:
                first = self._delivered
                self._sources.append((first, delivery.unit, delivery.offset))
                self._delivered += delivery.block.num_rows
                block = delivery.block  # what a sparse one was taken from was made quick to cut before
                yield first, block if isinstance(block, Sparse) else quickly_cut(block)

    def _shuffled(self, begin: int, held: Sequence[Block | Sparse]) -> Block | Sparse:
        """A window: rows change places by the hash of their index."""
        window = concat(held)
        keys = hashed(np.arange(begin, begin + window.num_rows), self._start.seed, self._start.epoch)
        return window.take(np.argsort(keys, kind="stable"))


def _whole(parts: Sequence[Block | Sparse]) -> tuple[Block, ...]:
    for part in parts:
        if isinstance(part, Sparse):
            raise AssertionError(f"rows that this worker is given are not at hand: {part}")
    return tuple(part for part in parts if isinstance(part, Block))


def quickly_cut(block: Block) -> Block:
    """The same rows, with numbers as NumPy arrays: of those a slice costs a tenth of what it costs of Arrow data."""
    if all(isinstance(values, np.ndarray) for values in block.columns.values()):
        return block
    columns = {name: as_numpy(values) if _plain(values) else values for name, values in block.columns.items()}
    return Block._made(columns, block.num_rows)


def _plain(values: Column) -> bool:
    kind = None if isinstance(values, np.ndarray) else values.type
    return kind is not None and (pa.types.is_integer(kind) or pa.types.is_floating(kind)) and not values.null_count
