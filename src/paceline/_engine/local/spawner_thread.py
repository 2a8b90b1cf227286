"""A thread that starts processes and lives as long as this process.

The system sends the parent-death signal when the thread that started a process ends, not the whole parent. If a
short-lived thread of one run started a spare interpreter, its end would kill the interpreter while another run uses it.
"""

import os
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_spawner_queue: queue.SimpleQueue[tuple[Callable[[], Any], queue.SimpleQueue[Any]]] | None = None
_owner = 0
_lock = threading.Lock()  # protects the two above


def run_on_spawner_thread(start: Callable[[], T]) -> T:
    """Call a function on a thread that outlives the caller; return its result or raise its error."""
    if threading.current_thread() is threading.main_thread():
        return start()
    answer: queue.SimpleQueue[Any] = queue.SimpleQueue()
    _get_spawner_queue().put((start, answer))
    succeeded, value = answer.get()
    if not succeeded:
        raise value
    result: T = value
    return result


def _get_spawner_queue() -> "queue.SimpleQueue[tuple[Callable[[], Any], queue.SimpleQueue[Any]]]":
    global _spawner_queue, _owner
    with _lock:
        if _spawner_queue is None or _owner != os.getpid():  # After a fork the queue exists, the thread does not.
            _spawner_queue, _owner = queue.SimpleQueue(), os.getpid()
            threading.Thread(target=_run_spawner, args=(_spawner_queue,), name="paceline-starter", daemon=True).start()
        return _spawner_queue


def _run_spawner(orders: "queue.SimpleQueue[tuple[Callable[[], Any], queue.SimpleQueue[Any]]]") -> None:
    while True:
        start, answer = orders.get()
        try:
            answer.put((True, start()))
        except BaseException as error:  # noqa: BLE001  raised in the thread that asked
            answer.put((False, error))
        # Otherwise the last started process would stay referenced until the next one.
        del start, answer
