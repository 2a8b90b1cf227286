"""Time, as a value that can be replaced in tests."""

import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Seconds on a clock that only moves forward; for deadlines and durations."""
        ...

    def wall(self) -> float:
        """Seconds since 1970; for people to read, never to compare."""
        ...


class SystemClock:
    def now(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()
