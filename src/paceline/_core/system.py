"""What Linux offers beyond POSIX, each with a plain fallback: anonymous memory, exit watching, death signals, fork.

`PACELINE_PORTABLE=1` takes the fallbacks everywhere, which is how they are tested on Linux.
"""

import contextlib
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline._core import settings

in_worker = False
"""Whether this process was started by Paceline to be a worker, or the parent of workers."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def on_linux() -> bool:
    return sys.platform == "linux" and not settings.load().portable


def fork_is_safe() -> bool:
    """Whether a fresh single-threaded process may fork after importing frameworks.

    On macOS system libraries start threads of their own, and a forked child may crash in them.
    """
    return on_linux()


def anonymous_file(label: str) -> int:
    """A descriptor of memory (or an unlinked file) that nothing can find by name and that goes with its last holder."""
    if on_linux():
        return os.memfd_create(label, os.MFD_CLOEXEC)
    import tempfile

    with tempfile.TemporaryFile(prefix=f"{label}-") as file:
        return os.dup(file.fileno())


def exit_watch(pid: int) -> int | None:
    """A descriptor that becomes readable when process `pid` ends; None where the system has none."""
    if not on_linux():
        return None
    with contextlib.suppress(OSError):
        return os.pidfd_open(pid)
    return None


def die_with_parent(with_signal: int = signal.SIGKILL) -> None:
    """Ask to be sent a signal when the thread that started this process ends; elsewhere, sockets tell."""
    if on_linux():
        _prctl(_PR_SET_PDEATHSIG, with_signal)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent died, so that they can be found and ended."""
    if on_linux():
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def children(pid: int) -> list[int]:
    """The direct children of a process; empty where the system does not say."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(child) for child in file.read().split()]
    except OSError:
        return []


def machine_id() -> str:
    """One boot of one machine, seen from one process namespace; empty where the system does not say.

    Two processes that agree on this and on the host's name see each other's process ids and share a monotonic clock.
    """
    if not on_linux():
        return ""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def process_started(pid: int) -> int:
    """When a process was started, in ticks since the machine was; 0 where it is gone or the system does not say."""
    fields = _stat_fields(pid)
    return int(fields[19]) if fields is not None else 0


def is_running(pid: int, started: int) -> bool:
    """Whether the process that was started then still runs: not another of its number, and not one that has ended."""
    if on_linux():
        fields = _stat_fields(pid)
        return fields is not None and fields[0] not in ("Z", "X") and int(fields[19]) == started
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _stat_fields(pid: int) -> list[str] | None:
    """Of a process, its state and what follows; None where it is gone or the system does not say."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return None


def num_oom_kills() -> int:
    """How many processes the kernel has killed for want of memory, in any control group; 0 where it does not say."""
    try:
        with open("/proc/vmstat") as file:
            return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), 0)
    except OSError:
        return 0


def resident_bytes(pid: int) -> int | None:
    """The memory that a process holds; None where it is gone or the system does not say."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return None


def make_private_dirs(path: Path) -> None:
    """Make a directory and those above it that are missing, for their owner alone, whatever the umask."""
    for missing in reversed([directory for directory in (path, *path.parents) if not directory.exists()]):
        # Not `mkdir(parents=True)`, which gives the parents the rights that the umask leaves.
        missing.mkdir(mode=0o700, exist_ok=True)


@dataclass(frozen=True)
class Condition:
    """What a process does, as the system sees it; amounts are since its start and with all that it started."""

    state: str = ""
    """Of its main thread: `R` runs or wants to, `S` and `D` wait, `T` is stopped."""
    cpu_s: float = 0.0
    num_bytes: int = 0
    """Read and written."""
    waits_in: str = ""
    """The kernel's function that the main thread waits in, where that may be known."""
    traced: bool = False
    """A debugger holds it."""


def condition(pid: int) -> Condition | None:
    """None where the process is gone or the system does not say."""
    try:
        state, cpu_s = _stat(pid)
        with open(f"/proc/{pid}/status") as file:
            tracer = next((line.split()[1] for line in file if line.startswith("TracerPid:")), "0")
    except (OSError, ValueError, IndexError):
        return None
    num_bytes, waits_in = _io(pid), ""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/wchan") as file:
        waits_in = file.read().strip().removeprefix("0")
    below = children(pid)
    while below:
        child = below.pop()
        below += children(child)
        with contextlib.suppress(OSError, ValueError, IndexError):
            cpu_s += _stat(child)[1]
            num_bytes += _io(child)
    return Condition(state, cpu_s, num_bytes, waits_in, tracer != "0")


def _stat(pid: int) -> tuple[str, float]:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return fields[0], sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _io(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/io") as file:
            return sum(int(line.split()[1]) for line in file if line.startswith(("rchar", "wchar")))
    except (OSError, ValueError, IndexError):
        return 0


def num_cores() -> int:
    """Cores that this process may use: its affinity mask and its cgroup's quota, not what the board carries."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        with open("/sys/fs/cgroup/cpu.max") as file:
            quota, period = file.read().split()
        if quota != "max":
            cores = min(cores, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        pass
    return cores


def _prctl(option: int, value: int) -> None:
    import ctypes

    libc: Any = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}, {value}): {os.strerror(code)}")
