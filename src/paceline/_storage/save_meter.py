"""Measures where the time of a save goes: writing, hashing, syncing and uploading.

Whoever writes files of a checkpoint says what it is doing, as `time_accounting` has it for a worker's thread, and pays
next to nothing if nobody measures. Hashing runs beside writing, so the parts may add up to more than the time elapsed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from paceline._core.checkpoint_records import SaveTimes

SavePart = Literal["copy", "write", "hash", "sync", "upload"]


class SaveMeter:
    """The parts of one rank's save so far. Used by the thread that stages it."""

    def __init__(self) -> None:
        self._seconds: dict[SavePart, float] = {}
        self._num_bytes = 0

    def add(self, part: SavePart, seconds: float, num_bytes: int = 0) -> None:
        """Add time, and bytes that were written to the disk in it."""
        self._seconds[part] = self._seconds.get(part, 0.0) + seconds
        self._num_bytes += num_bytes

    @contextmanager
    def at(self, part: SavePart) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.add(part, time.perf_counter() - began)

    def read(self) -> SaveTimes:
        seconds = {f"{part}_s": round(of, 6) for part, of in self._seconds.items()}
        return SaveTimes(**seconds, num_bytes=self._num_bytes)


_meters = threading.local()


@contextmanager
def attach_meter(meter: SaveMeter) -> Iterator[None]:
    """Measure what this thread stages in the block."""
    _meters.current = meter
    try:
        yield
    finally:
        del _meters.current


def add_to_save(part: SavePart, seconds: float, num_bytes: int = 0) -> None:
    meter: SaveMeter | None = getattr(_meters, "current", None)
    if meter is not None:
        meter.add(part, seconds, num_bytes)


@contextmanager
def measure_save(part: SavePart, num_bytes: int = 0) -> Iterator[None]:
    """Count the time in the block, and the bytes that it writes, if this thread is measured."""
    began = time.perf_counter()
    try:
        yield
    finally:
        add_to_save(part, time.perf_counter() - began, num_bytes)


class BusyTime:
    """The time in which at least one of several threads is in its `with` block."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # of what follows
        self._num_busy = 0
        self._since = 0.0
        self.seconds = 0.0

    def __enter__(self) -> None:
        with self._lock:
            if self._num_busy == 0:
                self._since = time.perf_counter()
            self._num_busy += 1

    def __exit__(self, *_: Any) -> None:
        with self._lock:
            self._num_busy -= 1
            if self._num_busy == 0:
                self.seconds += time.perf_counter() - self._since
