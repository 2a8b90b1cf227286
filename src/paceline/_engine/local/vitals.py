"""What is known of a worker's memory when it dies: the evidence for an end by the kernel's hand."""

import time
from collections import deque
from collections.abc import Callable, Iterable

from paceline._core import system

_EVERY_S = 0.5
_SAMPLES = 120


class Vitals:
    """Samples the memory of processes now and then, and counts the kernel's kills since it was made."""

    def __init__(self) -> None:
        self._num_kills = system.num_oom_kills()
        self._samples: dict[int, deque[tuple[float, int]]] = {}
        self._last = 0.0

    def sample(self, ranks: Iterable[int], pid_of: Callable[[int], int]) -> None:
        """Look at each rank's process, unless that was done just now."""
        now = time.monotonic()
        if now - self._last < _EVERY_S:
            return
        self._last = now
        for rank in ranks:
            pid = pid_of(rank)
            if pid and (resident := system.resident_bytes(pid)):
                self._samples.setdefault(rank, deque(maxlen=_SAMPLES)).append((now, resident))

    def forget(self) -> None:
        self._samples.clear()

    def out_of_memory(self, rank: int) -> str | None:
        """What happened, if a process that was killed has been killed by the kernel for want of memory."""
        kills = system.num_oom_kills()
        if kills <= self._num_kills:
            return None
        self._num_kills = kills
        return f"out of memory: killed by the kernel{_course(self._samples.get(rank))}"


def _course(samples: deque[tuple[float, int]] | None) -> str:
    if not samples:
        return ""
    (began, first), (ended, last) = samples[0], samples[-1]
    text = f"; it held {_gib(last)}"
    if last > first and ended - began >= 1:
        text += f", {_gib(last - first)} more than {ended - began:.0f} s before"
    return text


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB"
