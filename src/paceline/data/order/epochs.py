"""The epochs of one worker: each iteration is the next epoch, and the position is known after every batch.

A batch counts as used once it is handed out; prefetched batches do not.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from paceline._core.time_accounting import DATA, account_data_wait, account_time
from paceline.data.block import Block
from paceline.data.order.batch_cutter import BatchCutter, WorkerBatch
from paceline.data.order.feeds import Feeds, open_shard
from paceline.data.order.row_ownership import Delivery, EpochDivision
from paceline.data.order.sharding import Cursor, WorkerShard, next_epoch, replace_cursor, with_order

Batch = Any
T = TypeVar("T")

ROWS_AT_A_TIME = 4096
"""Number of rows converted to Python objects at once."""


@dataclass(frozen=True)
class BatchingOptions:
    """How rows are cut into batches: see `BatchCutter` and `Cursor.window`."""

    chunk_rows: int | None = None
    window_rows: int = 0
    seed: int = 0
    drop_last: bool = False


@dataclass(frozen=True)
class BatchAssembly:
    """How a batch is built and delivered."""

    make: Callable[[Block], Batch]
    transfer: Callable[[Iterator[Batch]], Iterator[Batch]] | None = None
    """Moves batches to their device, in order, in the consuming thread."""
    num_prefetched: int = 0
    """Number of batches prepared ahead in a thread; 0 prepares each on demand."""
    make_from_parts: Callable[[Sequence[Block]], Batch] | None = None
    """Like `make`, for rows in several blocks: they are copied once, directly to their destination."""

    def assemble(self, cut: WorkerBatch) -> Batch:
        return self.make(cut.block) if self.make_from_parts is None else self.make_from_parts(cut.parts)


class EpochIterator:
    def __init__(self, feeds: Feeds, split: WorkerShard, name: str) -> None:
        self._feeds = feeds
        self._split = split
        self._name = name
        self._iteration = _Iteration(Cursor(), is_begun=False)
        self.on_dropped: Callable[[int, int], object] | None = None
        """Called once if the first epoch drops rows to make all shards equal: with their number, and that of all."""

    @cached_property
    def fingerprint(self) -> str:
        return self._feeds.fingerprint()

    @property
    def window(self) -> int:
        """The shuffle window, in rows, of the epoch that was started last."""
        return self._iteration.cursor.window

    def cursor(self) -> Cursor:
        return replace_cursor(self._iteration.current_cursor(), fingerprint=self.fingerprint)

    def next_cursor(self) -> Cursor:
        """Return where this worker continues: with the next epoch if the iteration was left early."""
        cursor = self.cursor()
        return next_epoch(cursor, cursor.total) if self._iteration.was_left_early else cursor

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the position only: another process continues with the rest of the epoch."""
        return {**self.__dict__, "_iteration": _Iteration(self.next_cursor(), is_begun=False)}

    def go_to(self, cursor: Cursor) -> None:
        """Let the next iteration yield the rest of the cursor's epoch. An iteration in progress no longer counts."""
        self._iteration = _Iteration(cursor, is_begun=False)

    def batches(self, cutting: BatchingOptions, form: BatchAssembly) -> Iterable[Batch]:
        return _ReusableIterable(lambda: self._batches(cutting, form))

    def rows(self) -> Iterable[dict[str, Any]]:
        return _ReusableIterable(self._rows)

    def _batches(self, cutting: BatchingOptions, form: BatchAssembly) -> Iterator[Batch]:
        with self._next_epoch(cutting) as (iteration, cutter, deliveries):
            cuts = (cut for cut in cutter.cut(deliveries) if not (cutting.drop_last and cut.is_partial))
            with closing(_assemble_batches(cuts, form, f"batches of {self._name or 'a dataset'}")) as batches:
                for iteration.cursor, batch in account_data_wait(batches):
                    yield batch
            self._finish_epoch(iteration, cutter.total)

    def _rows(self) -> Iterator[dict[str, Any]]:
        with self._next_epoch(BatchingOptions()) as (iteration, cutter, deliveries):
            for cut in account_data_wait(cutter.cut(deliveries)):
                if cut.is_partial:
                    iteration.cursor = cut.cursor
                    yield from cut.block.rows()  # one row, or none on some workers
                    continue
                iteration.cutter, iteration.num_used = cutter, 0
                for first in range(0, cut.block.num_rows, ROWS_AT_A_TIME):
                    rows = cut.block.slice(first, first + ROWS_AT_A_TIME).rows()
                    for iteration.num_used, row in enumerate(rows, first + 1):
                        yield row
                iteration.settle()
            self._finish_epoch(iteration, cutter.total)

    def _finish_epoch(self, iteration: _Iteration, total: int | None) -> None:
        self._notify_dropped(iteration.cursor.epoch, total)
        iteration.finish_epoch(total)

    def _notify_dropped(self, epoch: int, total: int | None) -> None:
        num_dropped = total % self._split.world if total is not None and self._split.mode == "equal" else 0
        if epoch == 0 and num_dropped and self.on_dropped is not None:
            assert total is not None
            self.on_dropped(num_dropped, total)
            self.on_dropped = None

    @contextmanager
    def _next_epoch(self, cutting: BatchingOptions) -> Iterator[tuple[_Iteration, BatchCutter, Iterator[Delivery]]]:
        """Start the next epoch, and leave the one that an earlier iteration is in."""
        with account_time(DATA):
            iteration, cutter, deliveries = self._begin_iteration(cutting)
        try:
            yield iteration, cutter, deliveries
        finally:
            iteration.settle()
            iteration.was_left_early = iteration.is_begun
            _close(deliveries)

    def _begin_iteration(self, cutting: BatchingOptions) -> tuple[_Iteration, BatchCutter, Iterator[Delivery]]:
        start = self._iteration.current_cursor()
        if self._iteration.is_begun:
            start = next_epoch(start, start.total)
        total = start.total
        if total is None and start.row == 0:
            total = self._feeds.num_rows()
        if start.row == 0:
            self._notify_dropped(start.epoch, total)
        parts = self._split.num_parts
        chunk = cutting.chunk_rows or parts
        start = with_order(start, cutting.window_rows, cutting.seed)
        start = replace_cursor(start, total=total, chunk=chunk, world=parts, fingerprint=self.fingerprint)
        self._iteration = iteration = _Iteration(start, is_begun=True)
        cutter = BatchCutter(self._split, cutting.chunk_rows, start)
        division = EpochDivision(start, self._split.mode, self._split.world, cutting.chunk_rows)
        return iteration, cutter, open_shard(self._feeds, division, self._split.rank)


@dataclass
class _Iteration:
    """The position of one pass over the rows."""

    cursor: Cursor
    is_begun: bool
    """The iteration is in the cursor's epoch, or was left there."""
    was_left_early: bool = False
    cutter: BatchCutter | None = None
    """The cutter of the rows that are handed out one by one."""
    num_used: int = 0
    """Number of those rows that were handed out."""

    def current_cursor(self) -> Cursor:
        return self.cursor if self.cutter is None else self.cutter.cursor_within(self.num_used)

    def settle(self) -> None:
        """Fix the position, and release the cutter and its memory."""
        self.cursor, self.cutter = self.current_cursor(), None

    def finish_epoch(self, total: int | None) -> None:
        self.cursor, self.is_begun = next_epoch(self.cursor, total), False


@dataclass(frozen=True)
class _ReusableIterable:
    """An iterable that starts a new iterator each time."""

    begin: Callable[[], Iterator[Any]]

    def __iter__(self) -> Iterator[Any]:
        return self.begin()


def _assemble_batches(cuts: Iterator[WorkerBatch], form: BatchAssembly, name: str) -> Generator[tuple[Cursor, Batch]]:
    """Yield batches, each with the position after it."""
    # A worker may have no share of a last, small chunk.
    batches: Iterator[tuple[Cursor, Batch]] = ((cut.cursor, form.assemble(cut)) for cut in cuts if cut.parts)
    with ExitStack() as closes:
        closes.callback(_close, batches)
        if form.num_prefetched:
            batches = prefetch_items(batches, form.num_prefetched, name)
            closes.callback(_close, batches)
        if form.transfer is None:
            yield from batches
            return
        cursors: deque[Cursor] = deque()

        def without_cursors() -> Iterator[Batch]:
            for cursor, batch in batches:
                cursors.append(cursor)
                yield batch

        for batch in form.transfer(without_cursors()):
            yield cursors.popleft(), batch


def _close(iterator: Iterator[Any]) -> None:
    close = getattr(iterator, "close", None)
    if close is not None:
        close()


class _PrefetchEnd:
    """The last item in the queue: all items were produced, or producing one failed."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


def prefetch_items(items: Iterator[T], depth: int, name: str) -> Iterator[T]:
    """Yield the same items, with up to `depth` of them produced ahead in a thread. Closing it ends the thread.

    An error while producing an item is raised where the item would have come.
    """
    ready: queue.SimpleQueue[T | _PrefetchEnd] = queue.SimpleQueue()
    # The producer waits for room before it starts an item, so at most `depth` items are ready or in progress.
    room = threading.Semaphore(depth)
    has_left = threading.Event()

    def produce() -> None:
        error: BaseException | None = None
        try:
            while room.acquire() and not has_left.is_set():
                try:
                    item = next(items)
                except StopIteration:
                    break
                ready.put(item)
                del item  # or the thread would keep a batch alive while it waits
        except BaseException as raised:  # noqa: BLE001
            error = raised
        ready.put(_PrefetchEnd(error))

    thread = threading.Thread(target=produce, name=name, daemon=True)
    thread.start()
    try:
        while not isinstance(item := ready.get(), _PrefetchEnd):
            room.release()
            yield item
        if item.error is not None:
            raise item.error
    finally:
        has_left.set()
        room.release()
        # The garbage collector may close this generator from any thread, including the producer, which then ends by
        # itself.
        if thread is not threading.current_thread():
            thread.join()
