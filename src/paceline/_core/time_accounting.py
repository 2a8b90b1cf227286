"""Accounts for the time of a worker's thread: setup, waiting for data, reporting, saving, or the user's own code.

The thread is always in exactly one of these, so they sum to the elapsed time, however waits are nested: each moment
belongs to the innermost. Other threads may read the clock but never switch it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from threading import get_ident
from typing import TypeVar

T = TypeVar("T")

SETUP, USER_CODE, DATA, REPORT, CHECKPOINT = range(5)
"""SETUP is outside the user's function: before it, between two tasks, after it. The last three are waits within it."""
_NUM_KINDS = 5


class TimeAccounting:
    """The clock of one thread, the one that creates it."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._thread = get_ident()
        self._began = began = now()
        self._ended: float | None = None
        self._sums = [0.0] * _NUM_KINDS
        """The total of each kind; for the current kind, its total when the thread switched to it."""
        self._at = (SETUP, began, 0.0)
        """The current kind, since when, and its total before that."""

    def switch_to(self, kind: int) -> int:
        """Switch the thread to a kind; return the previous one, to switch back. Does nothing on other threads."""
        if get_ident() != self._thread:
            return kind
        now = self._now()
        previous, since, before = self._at
        sums = self._sums
        sums[previous] = before + (now - since)
        # After the sum, and as one value: a concurrent reader counts nothing twice.
        self._at = (kind, now, sums[kind])
        return previous

    @contextmanager
    def at(self, kind: int) -> Iterator[None]:
        previous = self.switch_to(kind)
        try:
            yield
        finally:
            self.switch_to(previous)

    def stop(self) -> None:
        """Stop the clock: the thread has done its work, and later waits do not count."""
        if self._ended is None:
            self.switch_to(SETUP)
            self._ended = self._at[1]
            self._thread = 0  # no thread's

    def read(self) -> tuple[float, tuple[float, ...]]:
        """Return the time since creation, and that of each kind. Thread-safe."""
        while True:
            at = self._at
            sums = self._sums.copy()
            now = self._ended if self._ended is not None else self._now()
            if self._at is at:  # else the thread has switched meanwhile
                kind, since, before = at
                sums[kind] = before + max(0.0, now - since)
                return max(now, since) - self._began, tuple(sums)


_clocks: dict[int, list[TimeAccounting]] = {}
"""The clocks of each worker thread: a worker may itself have a run in its own thread."""


def attach_clock(clock: TimeAccounting) -> None:
    """Count what this thread waits for on a clock."""
    _clocks.setdefault(get_ident(), []).append(clock)


def detach_clock(clock: TimeAccounting) -> None:
    """Undo `attach_clock`. Clocks that were attached later are already detached."""
    of_thread = _clocks.get(get_ident(), [])
    if clock in of_thread:
        of_thread.remove(clock)
    if not of_thread:
        _clocks.pop(get_ident(), None)


@contextmanager
def account_time(kind: int) -> Iterator[None]:
    """Count the time in the block as this kind, if this thread is a worker's."""
    clocks = _clocks.get(get_ident())
    with clocks[-1].at(kind) if clocks else nullcontext():
        yield


def account_data_wait(items: Iterator[T]) -> Iterator[T]:
    """Yield the same items; if this thread is a worker's, the time until each arrives counts as waiting for data."""
    while True:
        clocks = _clocks.get(get_ident())
        clock = clocks[-1] if clocks else None
        previous = clock.switch_to(DATA) if clock is not None else DATA
        try:
            item = next(items)
        except StopIteration:
            return
        finally:
            if clock is not None:
                clock.switch_to(previous)
        yield item
        del item  # Or it would stay in memory while the next one is made.
