"""Threads for slow work, apart from the server's own. They never keep the process from exiting.

Those of `concurrent.futures` do: the interpreter waits for them at exit, and a store that does not answer can block one
for minutes after Ctrl-C.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class DaemonThreads:
    def __init__(self, name: str, num_threads: int = 1) -> None:
        self._name = name
        self._num_threads = num_threads
        self._is_started = False
        self._work: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()

    async def run_in_thread(self, what: Callable[[], T]) -> T:
        """Call a function in a thread and await its result. With one thread, calls run in order."""
        if not self._is_started:
            self._is_started = True
            for number in range(self._num_threads):
                threading.Thread(target=self._run, name=f"{self._name}-{number}", daemon=True).start()
        future: Future[T] = Future()
        self._work.put((future, what))
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Start no more calls; running ones continue."""
        if self._is_started:
            for _ in range(self._num_threads):
                self._work.put(None)

    def _run(self) -> None:
        while (some := self._work.get()) is not None:
            future, what = some
            if not future.set_running_or_notify_cancel():
                continue
            try:
                found = what()
            except BaseException as error:  # noqa: BLE001 - whoever asked is told, whatever it is
                future.set_exception(error)
            else:
                future.set_result(found)
            del some, future, what  # Or the last result would be kept alive until the next call.
