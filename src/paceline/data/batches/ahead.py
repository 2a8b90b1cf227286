"""Batches prepared in a thread, some of them ahead of the one who takes them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class _Ended:
    """The last thing in the queue: all was made, or making it failed."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


def ahead(items: Iterator[T], depth: int, name: str) -> Iterator[T]:
    """The same items, up to `depth` of them made before they are asked for. Closing it ends the thread.

    What goes wrong while an item is made is raised where the item was to come.
    """
    line: _Line[T] = _Line(depth)
    thread = threading.Thread(target=_make, args=(items, line), name=name, daemon=True)
    thread.start()
    try:
        while True:
            item = line.take()
            if isinstance(item, _Ended):
                if item.error is not None:
                    raise item.error
                return
            yield item
    finally:
        line.leave()
        # The garbage collector may close us from any thread, this one too: then it ends by itself.
        if thread is not threading.current_thread():
            thread.join()


class _Line(Generic[T]):
    def __init__(self, depth: int) -> None:
        self._ready: queue.SimpleQueue[T | _Ended] = queue.SimpleQueue()
        # Whoever makes an item has asked for room first, so no more than `depth` are ever ready or being made.
        self._room = threading.Semaphore(depth)
        self._left = False

    def wait_for_room(self) -> bool:
        """False once nobody takes any more."""
        self._room.acquire()
        return not self._left

    def put(self, item: T | _Ended) -> None:
        self._ready.put(item)

    def take(self) -> T | _Ended:
        item = self._ready.get()
        self._room.release()
        return item

    def leave(self) -> None:
        self._left = True
        self._room.release()


def _make(items: Iterator[Any], line: _Line[Any]) -> None:
    error: BaseException | None = None
    try:
        while line.wait_for_room():
            try:
                item = next(items)
            except StopIteration:
                break
            line.put(item)
            del item  # or the thread would keep the memory of a batch while it waits
    except BaseException as raised:  # noqa: BLE001  raised again where the batches are taken
        error = raised
    line.put(_Ended(error))
