"""Prepares batches in a thread, ahead of the consumer."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import TypeVar

T = TypeVar("T")


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
