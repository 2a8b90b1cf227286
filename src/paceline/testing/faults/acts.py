"""What a fault does to the process it strikes: killed, hung, preempted, out of memory."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from paceline.testing.faults.values import Hang, Kill, OutOfMemory, Preempt

_ROOM = 1 << 30
"""Memory that may be taken for the sake of a test; a larger room is shared with too many others."""


def strike_here(fault: Kill | Hang | Preempt | OutOfMemory, driver: int) -> None:
    """Let a fault strike this worker, now or after its delay. Returns only where the fault leaves it running."""
    if fault.at.delay_s and not isinstance(fault, Hang):  # A hang has to be that of the thread that came here.
        _later(fault.at.delay_s, lambda: _strike(fault, driver))
    else:
        _strike(fault, driver)


def preempted(deadline_s: float) -> threading.Timer:
    """Send this process what a cluster sends before it takes a machine away, and later what it sends then."""
    timer = _later(deadline_s, lambda: os.kill(os.getpid(), signal.SIGKILL))
    os.kill(os.getpid(), signal.SIGTERM)
    return timer


def _strike(fault: Kill | Hang | Preempt | OutOfMemory, driver: int) -> None:
    match fault:
        case Kill(with_driver=with_driver):
            if with_driver:
                os.kill(driver, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        case Hang(how="stopped"):
            os.kill(os.getpid(), signal.SIGSTOP)
        case Hang(how="gil"):
            # Called through PyDLL, C code keeps the interpreter's lock: no other thread runs.
            ctypes.PyDLL(None).pause()
        case Hang():
            while True:
                time.sleep(3600)
        case Preempt(deadline_s=deadline_s):
            preempted(deadline_s)
        case OutOfMemory():
            _exhaust()


def _exhaust() -> NoReturn:
    room = _room_in_group()
    if room is not None and room <= _ROOM:
        Path("/proc/self/oom_score_adj").write_text("1000")  # Us, and nobody else of the group.
        held = []
        while True:
            held.append(b"\1" * (16 << 20))
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("a killed process goes on")


def _room_in_group() -> int | None:
    """How much memory the control group of this process has left; None where it has no limit of its own."""
    rooms = []
    try:
        group = Path("/proc/self/cgroup").read_text().strip().rpartition("::")[2].lstrip("/")
        for directory in (Path("/sys/fs/cgroup") / group, Path("/sys/fs/cgroup")):
            limit = (directory / "memory.max").read_text().strip()
            if limit != "max":
                rooms.append(int(limit) - int((directory / "memory.current").read_text()))
    except (OSError, ValueError):
        pass  # No control groups of the second kind here: there is no limit that we could see.
    return min(rooms, default=None)


def _later(delay_s: float, act: Callable[[], None]) -> threading.Timer:
    timer = threading.Timer(delay_s, act)
    timer.daemon = True
    timer.start()
    return timer
