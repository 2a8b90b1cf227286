"""Prepares batches in a thread, ahead of the consumer."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class _PrefetchEnd:
    """The last item in the queue: all items were produced, or producing one failed."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


def prefetch_items(items: Iterator[T], depth: int, name: str) -> Iterator[T]:
    """Yield the same items, with up to `depth` of them produced ahead in a thread. Closing it ends the thread.

    An error while producing an item is raised where the item would have come.
    """
    ready: _PrefetchQueue[T] = _PrefetchQueue(depth)
    thread = threading.Thread(target=_fill_queue, args=(items, ready), name=name, daemon=True)
    thread.start()
    try:
        while True:
            item = ready.take()
            if isinstance(item, _PrefetchEnd):
                if item.error is not None:
                    raise item.error
                return
            yield item
    finally:
        ready.leave()
        # The garbage collector may close this generator from any thread, including the producer, which then ends by
        # itself.
        if thread is not threading.current_thread():
            thread.join()


class _PrefetchQueue(Generic[T]):
    def __init__(self, depth: int) -> None:
        self._ready: queue.SimpleQueue[T | _PrefetchEnd] = queue.SimpleQueue()
        # The producer waits for room before it starts an item, so at most `depth` items are ready or in progress.
        self._room = threading.Semaphore(depth)
        self._has_left = False

    def wait_for_room(self) -> bool:
        """Return False once the consumer has left."""
        self._room.acquire()
        return not self._has_left

    def put(self, item: T | _PrefetchEnd) -> None:
        self._ready.put(item)

    def take(self) -> T | _PrefetchEnd:
        item = self._ready.get()
        self._room.release()
        return item

    def leave(self) -> None:
        self._has_left = True
        self._room.release()


def _fill_queue(items: Iterator[Any], ready: _PrefetchQueue[Any]) -> None:
    error: BaseException | None = None
    try:
        while ready.wait_for_room():
            try:
                item = next(items)
            except StopIteration:
                break
            ready.put(item)
            del item  # or the thread would keep a batch alive while it waits
    except BaseException as raised:  # noqa: BLE001
        error = raised
    ready.put(_PrefetchEnd(error))
