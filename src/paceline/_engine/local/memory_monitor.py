"""Memory samples of workers: the evidence that the kernel killed one because memory ran out."""

import time
from collections import deque
from collections.abc import Callable, Iterable

from paceline._core import system

_SAMPLE_INTERVAL_S = 0.5
_MAX_SAMPLES = 120


class MemoryMonitor:
    """Samples the memory of processes at intervals, and counts the kernel's OOM kills since it was created."""

    def __init__(self) -> None:
        self._num_kills = system.num_oom_kills()
        self._samples: dict[int, deque[tuple[float, int]]] = {}
        self._last = 0.0

    def sample(self, ranks: Iterable[int], pid_of: Callable[[int], int]) -> None:
        """Sample each rank's process, unless the last sample is recent."""
        now = time.monotonic()
        if now - self._last < _SAMPLE_INTERVAL_S:
            return
        self._last = now
        for rank in ranks:
            pid = pid_of(rank)
            if pid and (resident := system.resident_bytes(pid)):
                self._samples.setdefault(rank, deque(maxlen=_MAX_SAMPLES)).append((now, resident))

    def clear(self) -> None:
        self._samples.clear()

    def explain_oom_kill(self, rank: int) -> str | None:
        """Return a message if the kernel killed this process because memory ran out, else None."""
        kills = system.num_oom_kills()
        if kills <= self._num_kills:
            return None
        self._num_kills = kills
        return f"out of memory: killed by the kernel{_format_growth(self._samples.get(rank))}"


def _format_growth(samples: deque[tuple[float, int]] | None) -> str:
    if not samples:
        return ""
    (began, first), (ended, last) = samples[0], samples[-1]
    text = f"; it held {_format_gib(last)}"
    if last > first and ended - began >= 1:
        text += f", {_format_gib(last - first)} more than {ended - began:.0f} s before"
    return text


def _format_gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB"
