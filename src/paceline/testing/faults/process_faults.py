"""What a fault does to its process: kill, hang, preempt, exhaust memory."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from paceline.testing.faults.values import HangFault, KillFault, OutOfMemoryFault, PreemptFault

_MAX_MEMORY_TAKEN = 1 << 30
"""The most memory a test may take; a control group with more left is shared with too many others."""


def strike_this_process(fault: KillFault | HangFault | PreemptFault | OutOfMemoryFault, driver: int) -> None:
    """Apply a fault to this worker, now or after its delay. Returns only if the fault leaves it running."""
    if fault.at.delay_s and not isinstance(fault, HangFault):  # The thread that came here must be the one that hangs.
        start_timer(fault.at.delay_s, lambda: _strike(fault, driver))
    else:
        _strike(fault, driver)


def preempt_this_process(deadline_s: float) -> threading.Timer:
    """Send this process SIGTERM, as a cluster does before it takes a machine away, and SIGKILL at the deadline."""
    timer = start_timer(deadline_s, lambda: os.kill(os.getpid(), signal.SIGKILL))
    os.kill(os.getpid(), signal.SIGTERM)
    return timer


def _strike(fault: KillFault | HangFault | PreemptFault | OutOfMemoryFault, driver: int) -> None:
    match fault:
        case KillFault(with_driver=with_driver):
            if with_driver:
                os.kill(driver, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        case HangFault(how="stopped"):
            os.kill(os.getpid(), signal.SIGSTOP)
        case HangFault(how="gil"):
            # Called through PyDLL, C code keeps the interpreter's lock: no other thread runs.
            ctypes.PyDLL(None).pause()
        case HangFault():
            while True:
                time.sleep(3600)
        case PreemptFault(deadline_s=deadline_s):
            preempt_this_process(deadline_s)
        case OutOfMemoryFault():
            _exhaust_memory()


def _exhaust_memory() -> NoReturn:
    room = _cgroup_memory_left()
    if room is not None and room <= _MAX_MEMORY_TAKEN:
        Path("/proc/self/oom_score_adj").write_text("1000")  # Kill this process, and no other of the group.
        held = []
        while True:
            held.append(b"\1" * (16 << 20))
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("a killed process is still running")


def _cgroup_memory_left() -> int | None:
    """Return how much memory the control group of this process has left; None if it has no limit."""
    rooms = []
    try:
        group = Path("/proc/self/cgroup").read_text().strip().rpartition("::")[2].lstrip("/")
        for directory in (Path("/sys/fs/cgroup") / group, Path("/sys/fs/cgroup")):
            limit = (directory / "memory.max").read_text().strip()
            if limit != "max":
                rooms.append(int(limit) - int((directory / "memory.current").read_text()))
    except (OSError, ValueError):
        pass  # No cgroup v2 here: there is no limit that we can see.
    return min(rooms, default=None)


def start_timer(delay_s: float, act: Callable[[], None]) -> threading.Timer:
    timer = threading.Timer(delay_s, act)
    timer.daemon = True
    timer.start()
    return timer
