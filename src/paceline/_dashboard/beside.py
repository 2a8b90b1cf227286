"""Threads beside the server's own, for what takes time. They never keep the process from ending.

Those of `concurrent.futures` do: the interpreter waits for them at its end, and a store that does not answer can hold
one up for minutes after Ctrl-C.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class Beside:
    def __init__(self, name: str, num_threads: int = 1) -> None:
        self._name = name
        self._num_threads = num_threads
        self._begun = False
        self._work: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()

    async def do(self, what: Callable[[], T]) -> T:
        """Call it there, and wait for what it gives. In the order asked, where there is one thread."""
        if not self._begun:
            self._begun = True
            for number in range(self._num_threads):
                threading.Thread(target=self._run, name=f"{self._name}-{number}", daemon=True).start()
        future: Future[T] = Future()
        self._work.put((future, what))
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Nothing more is begun; what is under way goes on."""
        if self._begun:
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
            del some, future, what  # A last answer would be kept until the next is asked for.
