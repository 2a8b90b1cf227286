"""Threads apart from the server's own: the one that reads runs, and daemon threads for other slow work.

Only the `ListingThread` uses a listing and its readers, so nothing needs a lock. It refreshes the listing when a query
arrives and the data is old. How old it may be follows from the cost of reading, which never takes more than a small
part of one core.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from paceline._view.listing import Listing

T = TypeVar("T")

MIN_PAUSE_S = 0.5
MAX_PAUSE_S = 5.0
READING_CPU_SHARE = 0.05
"""Share of one core for reading new data."""


def compute_pause_s(cost_s: float, share: float) -> float:
    """Return how long to wait before repeating work that takes this much CPU time."""
    return min(max(cost_s / share, MIN_PAUSE_S), MAX_PAUSE_S)


class ListingThread:
    def __init__(self, open_listing: Callable[[], Listing]) -> None:
        self._open_listing = open_listing
        self._listing: Listing | None = None
        self._thread = DaemonThreads("paceline-reading")
        self._stale_at = 0.0

    async def query(self, function: Callable[[Listing], T]) -> T:
        """Call a function with an up-to-date listing and return its result."""
        return await self._thread.run_in_thread(lambda: self._run_query(function))

    def stale_in_s(self) -> float:
        return max(self._stale_at - time.monotonic(), 0.0)

    def close(self) -> None:
        self._thread.close()

    def _run_query(self, function: Callable[[Listing], T]) -> T:
        if self._listing is None:
            self._listing = self._open_listing()
        if time.monotonic() >= self._stale_at:
            began = time.thread_time()
            self._listing.refresh()
            self._stale_at = time.monotonic() + compute_pause_s(time.thread_time() - began, READING_CPU_SHARE)
        return function(self._listing)


class DaemonThreads:
    """Threads that never keep the process from exiting.

    Those of `concurrent.futures` do: a store that does not answer can block one for minutes after Ctrl-C.
    """

    def __init__(self, name: str, num_threads: int = 1) -> None:
        self._name = name
        self._num_threads = num_threads
        self._is_started = False
        self._work: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()

    async def run_in_thread(self, function: Callable[[], T]) -> T:
        """Call a function in a thread and await its result. With one thread, calls run in order."""
        if not self._is_started:
            self._is_started = True
            for number in range(self._num_threads):
                threading.Thread(target=self._run, name=f"{self._name}-{number}", daemon=True).start()
        future: Future[T] = Future()
        self._work.put((future, function))
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Start no more calls; running ones continue."""
        if self._is_started:
            for _ in range(self._num_threads):
                self._work.put(None)

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            future, function = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = function()
            except BaseException as error:  # noqa: BLE001
                future.set_exception(error)
            else:
                future.set_result(result)
            del item, future, function  # Or the last result would be kept alive until the next call.
