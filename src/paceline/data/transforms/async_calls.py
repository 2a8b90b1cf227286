"""Calls of async functions: one event loop per process, several calls in flight, results in the order of the inputs.

The loop runs only while a result is waited for, in the thread that waits. It stays the same for all units, because what
a user's class holds, such as a connection, belongs to the loop that it was created in.
"""

from __future__ import annotations

import asyncio
import atexit
import inspect
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")

DEFAULT_CALLS_IN_FLIGHT = 16

_loop: tuple[int, asyncio.AbstractEventLoop] | None = None
"""With the pid of its process: a forked process must not use the loop of its parent."""


def is_async(fn: Any) -> bool:
    """Whether a function, or the `__call__` of an object or a class, is async or an async generator."""
    return any(
        inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each)
        for each in (fn, getattr(fn, "__call__", None))  # noqa: B004
    )


def run_async(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in the event loop of this process."""
    loop = _get_loop()
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return loop.run_until_complete(coroutine)
    # A thread can run only one loop, and in a notebook one is running.
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(loop.run_until_complete, coroutine).result()


async def call_async(fn: Callable[[Any], Any], rows: Any) -> Any:
    """Await the result for some rows; a list of what an async generator yields."""
    result = fn(rows)
    if isinstance(result, AsyncIterator):
        return [item async for item in result]
    return await result


def call_ahead(
    fn: Callable[[T], Any], inputs: Iterable[T], num_in_flight: int
) -> Iterator[tuple[T, Callable[[], Any]]]:
    """Yield each input, in order, with a function that returns or raises the outcome of its call.

    Up to `num_in_flight` calls run at the same time.
    """
    loop = _get_loop()
    pending: deque[tuple[T, asyncio.Task[Any]]] = deque()
    remaining = iter(inputs)
    try:
        while True:
            for each in remaining:
                pending.append((each, loop.create_task(call_async(fn, each))))
                if len(pending) >= num_in_flight:
                    break
            if not pending:
                return
            run_async(_wait(pending[0][1]))
            finished, task = pending.popleft()
            yield finished, task.result
    finally:
        for _, task in pending:
            task.cancel()
        if pending:
            run_async(_wait(*(task for _, task in pending)))


async def _wait(*tasks: asyncio.Task[Any]) -> None:
    await asyncio.wait(tasks)


def _get_loop() -> asyncio.AbstractEventLoop:
    global _loop
    if _loop is None or _loop[0] != os.getpid():
        _loop = os.getpid(), asyncio.new_event_loop()
        atexit.register(_loop[1].close)
    return _loop[1]
