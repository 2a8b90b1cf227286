"""Cuts the delivered rows of an epoch into the batches of one worker.

The result depends only on the deliveries and the starting cursor, so each worker cuts for itself and all of them agree.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np

from paceline.data.block import Block
from paceline.data.order.row_ownership import AnyBlock, Delivery, SparseBlock, concat_blocks
from paceline.data.order.sharding import Cursor, WorkerShard, excluded_rows, furthest_used
from paceline.data.order.shuffle import hash_indices


class WorkerBatch(msgspec.Struct, frozen=True):
    parts: tuple[Block, ...]
    """Its rows, as slices of the delivered blocks. Empty if this worker has no share of a last, small chunk."""
    cursor: Cursor
    """The position once all workers have used this batch."""
    is_partial: bool
    """True for the last batch of the epoch if it has fewer rows than the others."""

    @property
    def block(self) -> Block:
        """Return the rows as one block, without a copy if they come from one block."""
        return self.parts[0] if len(self.parts) == 1 else Block.concat(self.parts)


class BatchCutter:
    """Cuts batches for one worker.

    `chunk_rows` is the number of rows in one batch of all workers together, a multiple of their number. If it is None,
    each delivered block is a batch, and its rows are dealt to the workers in turn.
    """

    def __init__(self, split: WorkerShard, chunk_rows: int | None, start: Cursor) -> None:
        self._split = split
        self._chunk_rows = chunk_rows
        self._part_range = split.part_range(chunk_rows or 0)
        self._start = start
        self._excluded = deque(excluded_rows(start, split))
        self._furthest = furthest_used(start.ahead)
        # Rows not handed out yet: block, begin, end.
        self._pending: deque[tuple[AnyBlock, int, int]] = deque()
        self._num_pending = 0
        self._used = 0  # number of kept rows that were cut
        self._marks: deque[tuple[int, int]] = deque()  # number of kept rows, and the row of the epoch order after them
        self._sources: deque[tuple[int, int, int]] = deque()  # row of the epoch order, unit, offset
        self._delivered = start.at

    total: int | None = None
    """Number of rows in the epoch; known once everything is cut."""

    def cut(self, deliveries: Iterable[Delivery]) -> Iterator[WorkerBatch]:
        """Yield the batches from the start. Deliveries must contain at least this worker's rows."""
        num_kept = 0
        parts = self._split.num_parts
        for first, block in self._blocks_from_start(deliveries):
            for begin, stop in self._without_excluded(first, first + block.num_rows):
                self._pending.append((block, begin - first, stop - first))
                self._num_pending += stop - begin
                num_kept += stop - begin
                self._marks.append((num_kept, stop))
            size = self._chunk_rows or self._num_pending - self._num_pending % parts
            while 0 < size <= self._num_pending:
                rows, row = self._next_rows(size), self._row_after(size)
                yield WorkerBatch(rows, self._cursor(row), is_partial=False)
                self._mark_used(size, row)
        self.total = self._delivered
        size = self._num_pending
        if self._split.mode == "equal":
            size -= size % parts
        if size:
            yield WorkerBatch(
                _require_whole(self._take_held(size, *self._split.part_range(size))),
                self._cursor(self.total),
                is_partial=True,
            )

    def cursor_within(self, num_rows: int) -> Cursor:
        """Return the position once each worker has used `num_rows` rows of the current batch.

        Valid only if rows are dealt in turn, and not for the last batch.
        """
        return self._cursor(self._row_after(num_rows * self._split.num_parts))

    def _next_rows(self, size: int) -> tuple[Block, ...]:
        if self._chunk_rows is not None:
            begin, stop = self._part_range
            block, low, high = self._pending[0]
            if high - low > size and isinstance(block, Block):
                # Nearly all batches: within one block, which has rows left.
                self._pending[0] = (block, low + size, high)
                self._num_pending -= size
                return (block.slice(low + begin, low + stop),)
            return _require_whole(self._take_held(size, begin, stop))
        rows = self._take_held(size, 0, size)
        parts = self._split.num_parts
        return _require_whole(
            rows if parts == 1 else (concat_blocks(rows).take(np.arange(self._split.rank, size, parts)),)
        )

    def _take_held(self, size: int, begin: int, stop: int) -> tuple[AnyBlock, ...]:
        """Remove `size` pending rows, and return those from `begin` to `stop`."""
        parts, passed = [], 0
        while passed < size:
            block, low, high = self._pending[0]
            num = min(high - low, size - passed)
            first, last = max(begin - passed, 0), min(stop - passed, num)
            if first < last:
                parts.append(block.slice(low + first, low + last))
            passed += num
            if low + num == high:
                self._pending.popleft()
            else:
                self._pending[0] = (block, low + num, high)
        self._num_pending -= size
        return tuple(parts)

    # Position

    def _row_after(self, num: int) -> int:
        """Return the row of the epoch order after the next `num` kept rows."""
        used = self._used + num
        for num_kept, row in self._marks:
            if num_kept >= used:
                return row - (num_kept - used)
        raise AssertionError("more rows were used than delivered")

    def _mark_used(self, num: int, row: int) -> None:
        """`row` is the row of the epoch order after these `num` kept rows."""
        self._used += num
        while self._marks[0][0] < self._used:
            self._marks.popleft()
        at = self._read_from(row)
        while len(self._sources) > 1 and self._sources[1][0] <= at:
            self._sources.popleft()

    def _read_from(self, row: int) -> int:
        """Return the row to resume reading from. A window that is not used up has to be rebuilt from its first row."""
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
            chunk=self._chunk_rows or self._split.num_parts,
            world=self._split.num_parts,
            window=start.window,
            seed=start.seed,
            ahead=start.ahead if self._furthest > row else None,
            later=start.later,
        )

    # Kept rows, in order

    def _without_excluded(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        while self._excluded and first < last:
            begin, stop = self._excluded[0]
            if begin >= last:
                break
            if first < begin:
                yield first, begin
            first = max(first, min(stop, last))
            if stop > last:
                return
            self._excluded.popleft()
        if first < last:
            yield first, last

    def _blocks_from_start(self, deliveries: Iterable[Delivery]) -> Iterator[tuple[int, AnyBlock]]:
        """Yield blocks from the start, each with the row of the epoch order that it begins with."""
        skip = self._start.row
        for first, block in self._shuffle_windows(deliveries):
            if first + block.num_rows > skip:
                cut = max(skip - first, 0)
                yield first + cut, block.slice(cut)

    def _shuffle_windows(self, deliveries: Iterable[Delivery]) -> Iterator[tuple[int, AnyBlock]]:
        size = self._start.window
        if not size:
            yield from self._record_sources(deliveries)
            return
        pending: list[AnyBlock] = []
        begin = self._start.at
        for first, block in self._record_sources(deliveries):
            while block.num_rows:
                room = begin + size - first
                pending.append(block.slice(0, room))
                if block.num_rows < room:
                    break
                yield begin, self._shuffle_window(begin, pending)
                block = block.slice(room)
                begin = first = first + room
                pending.clear()
        if pending:
            yield begin, self._shuffle_window(begin, pending)

    def _record_sources(self, deliveries: Iterable[Delivery]) -> Iterator[tuple[int, AnyBlock]]:
        for delivery in deliveries:
            if delivery.block.num_rows:
                first = self._delivered
                self._sources.append((first, delivery.unit, delivery.offset))
                self._delivered += delivery.block.num_rows
                block = delivery.block  # the block behind a sparse one is sliceable already
                yield first, block if isinstance(block, SparseBlock) else block.with_numpy_numbers()

    def _shuffle_window(self, begin: int, pending: Sequence[AnyBlock]) -> AnyBlock:
        window = concat_blocks(pending)
        keys = hash_indices(np.arange(begin, begin + window.num_rows), self._start.seed, self._start.epoch)
        return window.take(np.argsort(keys, kind="stable"))


def _require_whole(parts: Sequence[AnyBlock]) -> tuple[Block, ...]:
    for part in parts:
        if isinstance(part, SparseBlock):
            raise AssertionError(f"rows of this worker are missing: {part}")
    return tuple(part for part in parts if isinstance(part, Block))
