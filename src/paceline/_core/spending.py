"""Where the time of a worker's thread goes: getting ready, waiting for data, reporting, saving, or the user's own code.

The thread is always at exactly one of these, so they sum to the time that has passed, however waits are nested: each
moment belongs to the innermost. Other threads may read the clock and never move it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import TypeVar

T = TypeVar("T")

SETUP, OWN, DATA, REPORT, CHECKPOINT = range(5)
"""Around the user's function (before it, between two orders, after it); in the user's code; and what it waits for."""
_NUM_KINDS = 5


class Spending:
    """The clock of one thread, that which makes it."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._thread = get_ident()
        self._began = began = now()
        self._ended: float | None = None
        self._sums = [0.0] * _NUM_KINDS
        """Of a kind that the thread is not at, all its time. Of the other, what it was when the thread came to it."""
        self._at = (SETUP, began, 0.0)
        """What the thread is at, since when, and how much time that had before."""

    def turn(self, kind: int) -> int:
        """From now on the thread is at this; returns what it was at, to be turned back to. Others move nothing."""
        if get_ident() != self._thread:
            return kind
        now = self._now()
        was, since, before = self._at
        sums = self._sums
        sums[was] = before + (now - since)
        # After the sum, and as one value: whoever reads in between finds nothing counted twice.
        self._at = (kind, now, sums[kind])
        return was

    @contextmanager
    def at(self, kind: int) -> Iterator[None]:
        was = self.turn(kind)
        try:
            yield
        finally:
            self.turn(was)

    def stop(self) -> None:
        """The thread has done its work: what it waits for from now on is no part of it."""
        if self._ended is None:
            self.turn(SETUP)
            self._ended = self._at[1]
            self._thread = 0  # nobody's

    def read(self) -> tuple[float, tuple[float, ...]]:
        """The time since it was made, and of it that of each kind. From any thread."""
        while True:
            at = self._at
            sums = self._sums.copy()
            now = self._ended if self._ended is not None else self._now()
            if self._at is at:  # else the thread has turned meanwhile
                kind, since, before = at
                sums[kind] = before + max(0.0, now - since)
                return max(now, since) - self._began, tuple(sums)


_clocks: dict[int, list[Spending]] = {}
"""Of each thread that is a worker's, its clocks: a worker may itself have a run in its own thread."""


def enter(clock: Spending) -> None:
    """Have what this thread waits for counted on a clock."""
    _clocks.setdefault(get_ident(), []).append(clock)


def leave(clock: Spending) -> None:
    """No more. What was entered after it has left before it."""
    of_thread = _clocks.get(get_ident(), [])
    if clock in of_thread:
        of_thread.remove(clock)
    if not of_thread:
        _clocks.pop(get_ident(), None)


@contextmanager
def spent(kind: int) -> Iterator[None]:
    """If this thread is a worker's, what it does in the block is of this kind."""
    clocks = _clocks.get(get_ident())
    if not clocks:
        yield
        return
    with clocks[-1].at(kind):
        yield


def waited_for(items: Iterator[T]) -> Iterator[T]:
    """The same items; the time until each is there counts as waiting for data, if this thread is a worker's."""
    while True:
        clocks = _clocks.get(get_ident())
        if not clocks:
            try:
                item = next(items)
            except StopIteration:
                return
        else:
            clock = clocks[-1]
            was = clock.turn(DATA)
            try:
                item = next(items)
            except StopIteration:
                return
            finally:
                clock.turn(was)
        yield item
        del item  # Or its memory would be kept while the next one is made.
