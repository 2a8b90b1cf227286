"""The thread that starts processes, which lasts as long as this process.

The system tells a process of its parent's death when the very thread ends that started it. One of many threads, each
with a run of its own, would take along what it started and another one uses: an interpreter that had been waiting.
"""

import os
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_orders: queue.SimpleQueue[tuple[Callable[[], Any], queue.SimpleQueue[Any]]] | None = None
_owner = 0
_lock = threading.Lock()  # protects the two above


def from_lasting_thread(start: Callable[[], T]) -> T:
    """What a function returns or raises, called where the end of the calling thread is of no concern."""
    if threading.current_thread() is threading.main_thread():
        return start()
    answer: queue.SimpleQueue[Any] = queue.SimpleQueue()
    _thread_orders().put((start, answer))
    succeeded, value = answer.get()
    if not succeeded:
        raise value
    result: T = value
    return result


def _thread_orders() -> "queue.SimpleQueue[tuple[Callable[[], Any], queue.SimpleQueue[Any]]]":
    global _orders, _owner
    with _lock:
        if _orders is None or _owner != os.getpid():  # A fork has the queue, and not the thread.
            _orders, _owner = queue.SimpleQueue(), os.getpid()
            threading.Thread(target=_serve, args=(_orders,), name="paceline-starter", daemon=True).start()
        return _orders


def _serve(orders: "queue.SimpleQueue[tuple[Callable[[], Any], queue.SimpleQueue[Any]]]") -> None:
    while True:
        start, answer = orders.get()
        try:
            answer.put((True, start()))
        except BaseException as error:  # noqa: BLE001  raised in the thread that asked
            answer.put((False, error))
        # Or the process that was started last would be kept until the next.
        del start, answer
