"""The operating system: time, processes, and Linux features beyond POSIX, each with a plain fallback.

`PACELINE_PORTABLE=1` uses the fallbacks everywhere, which is how they are tested on Linux.
"""

import contextlib
import functools
import os
import signal
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from paceline._core import settings

in_worker = False
"""Whether Paceline started this process as a worker, or as the parent of workers."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


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


def is_linux() -> bool:
    return sys.platform == "linux" and not settings.is_portable()


def is_fork_safe() -> bool:
    """Whether a fresh single-threaded process may fork after importing frameworks.

    On macOS, system libraries start their own threads, and a forked child may crash in them.
    """
    return is_linux()


def create_anonymous_file(label: str) -> int:
    """Return a descriptor of memory (or an unlinked file) that has no name and is freed with its last descriptor."""
    if is_linux():
        return os.memfd_create(label, os.MFD_CLOEXEC)
    import tempfile

    with tempfile.TemporaryFile(prefix=f"{label}-") as file:
        return os.dup(file.fileno())


def open_exit_watch(pid: int) -> int | None:
    """Return a descriptor that becomes readable when process `pid` ends; None if the system has none."""
    if not is_linux():
        return None
    with contextlib.suppress(OSError):
        return os.pidfd_open(pid)
    return None


def die_with_parent(with_signal: int = signal.SIGKILL) -> None:
    """Ask for a signal when the thread that started this process ends. Elsewhere, closed sockets tell."""
    if is_linux():
        _prctl(_PR_SET_PDEATHSIG, with_signal)


def adopt_orphans() -> None:
    """Become the parent of orphaned descendants, so that they can be found and killed."""
    if is_linux():
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def child_pids(pid: int) -> list[int]:
    """The direct children of a process; empty if unknown."""
    return [int(child) for child in _read_proc(f"{pid}/task/{pid}/children").split()]


def _read_proc(path: str) -> str:
    """The content of a file in /proc; empty if the process is gone or the system has no such file."""
    return _read_text(f"/proc/{path}")


def _read_text(path: str | Path) -> str:
    """The content of a small file of the system; empty if there is none."""
    # Not `open`, which takes as long again: each trial of a search reads several, in its worker and in the driver.
    parts = []
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return ""
    try:
        while part := os.read(fd, 1 << 16):
            parts.append(part)
    except OSError:
        return ""
    finally:
        os.close(fd)
    return b"".join(parts).decode(errors="replace")


def working_directory() -> str:
    """A path to the working directory that other processes can use while this one lives, even if it was deleted."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return f"/proc/{os.getpid()}/cwd"


def make_absolute(path: str) -> str:
    """Expand `~` and put the working directory before a relative path; the error says why there is none."""
    expanded = os.path.expanduser(path)
    try:
        return expanded if os.path.isabs(expanded) else os.path.join(os.getcwd(), expanded)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"cannot resolve the relative path {path!r}: the working directory was deleted\n\n"
            "hint: pass an absolute path, or change to a directory that exists"
        ) from error


def machine_id() -> str:
    """Identifies one boot of one machine, as seen from one process namespace; empty if unknown.

    Two processes with the same id and host name see each other's process ids and share a monotonic clock.
    """
    if not is_linux():
        return ""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def process_start_ticks(pid: int) -> int:
    """When a process started, in ticks since boot; 0 if it is gone or unknown."""
    fields = _read_stat_fields(pid)
    return int(fields[19]) if fields else 0


def is_running(pid: int, started: int) -> bool:
    """Whether the process with this start time still runs: it has not ended, and its pid was not reused."""
    if is_linux():
        fields = _read_stat_fields(pid)
        return bool(fields) and fields[0] not in ("Z", "X") and int(fields[19]) == started
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _read_stat_fields(pid: int) -> list[str]:
    """The state of a process and the fields after it; empty if it is gone or unknown."""
    return _read_proc(f"{pid}/stat").rpartition(")")[2].split()


def num_oom_kills(root: Path = Path("/")) -> int:
    """How many processes of this one's control group the kernel's OOM killer has killed; 0 if unknown.

    Where groups do not count their kills, those of the whole machine.
    """
    for group in _memory_groups(root):
        for name in ("memory.events", "memory.oom_control"):  # version 2, version 1
            kills = _read_group_number(group / name, "oom_kill")
            if kills is not None:
                return kills
    return _read_group_number(root / "proc/vmstat", "oom_kill") or 0


@dataclass(frozen=True)
class UsableMemory:
    """The memory of the machine, or less where a control group limits this process."""

    total_bytes: int
    free_bytes: int
    """Including file caches, which the kernel reclaims on demand."""


def usable_memory(root: Path = Path("/")) -> UsableMemory:
    """The memory that this process may use: the smallest limit of its control group and the ancestors of that."""
    import psutil

    machine = psutil.virtual_memory()
    total, free = machine.total, machine.available
    # Each group counts: one with a higher limit may have less left, because others use it too.
    for group in _memory_groups(root):
        # Version 2, then version 1. A version 1 group also knows of limits of ancestors that are not visible here.
        limits = [_read_group_number(group / name) for name in ("memory.max", "memory.high", "memory.limit_in_bytes")]
        limits.append(_read_group_number(group / "memory.stat", "hierarchical_memory_limit"))
        limit = min((limit for limit in limits if limit is not None), default=machine.total)
        if limit >= machine.total:
            continue
        is_v1 = (group / "memory.usage_in_bytes").exists()
        used = _read_group_number(group / ("memory.usage_in_bytes" if is_v1 else "memory.current")) or 0
        # Memory files are no file cache here, though the kernel counts them as cache elsewhere.
        names = [f"{'total_' if is_v1 else ''}{state}active_file" for state in ("in", "")]
        cached = sum(_read_group_number(group / "memory.stat", name) or 0 for name in names)
        total, free = min(total, limit), min(free, max(0, limit - used + cached))
    return UsableMemory(total, free)


def _memory_groups(root: Path) -> tuple[Path, ...]:
    """The directories of the control groups that may limit the memory of this process, its own first."""
    return _find_memory_groups(root, tuple(_read_lines(root / "proc/self/cgroup")))


@functools.lru_cache(maxsize=8)  # The process may be moved to another group, but mounts stay.
def _find_memory_groups(root: Path, lines: tuple[str, ...]) -> tuple[Path, ...]:
    groups = [line.split(":", 2) for line in lines]
    found: list[Path] = []
    for line in _read_lines(root / "proc/self/mountinfo"):
        mount, _, kind = line.partition(" - ")
        mounted, point = mount.split()[3:5]
        fstype, _, options = kind.split(maxsplit=2)
        if fstype not in ("cgroup", "cgroup2") or (fstype == "cgroup" and "memory" not in options.split(",")):
            continue
        controller = "" if fstype == "cgroup2" else "memory"
        name = next((name for _, names, name in groups if controller in names.split(",")), "/")
        # In a container, the group's own directory may be mounted, or its name be relative to another place.
        inside = Path(name).relative_to(mounted) if Path(name).is_relative_to(mounted) else Path()
        inside = Path() if ".." in inside.parts else inside
        top = root / point.lstrip("/")
        found += (top / each for each in (inside, *inside.parents))
    return tuple(found)


def _read_lines(path: Path) -> list[str]:
    """Empty if there is no such file."""
    return _read_text(path).splitlines()


def _read_group_number(path: Path, label: str = "") -> int | None:
    """The number in a file of a control group, or the one after a label; None if it is missing or not a number."""
    text = _read_text(path)
    if label:
        text = f"\n{text}".partition(f"\n{label} ")[2]
    number = text.strip().partition("\n")[0].strip()
    return int(number) if number.isdigit() else None


def resident_bytes(pid: int) -> int | None:
    """The resident memory of a process; None if it is gone or unknown."""
    fields = _read_proc(f"{pid}/statm").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if fields else None


def open_private(path: str, flags: int) -> int:
    """An opener for `open`: the file is for the owner alone, whatever the umask."""
    return os.open(path, flags, 0o600)


def make_private_dirs(path: Path) -> None:
    """Create a directory and its missing parents, for the owner alone, whatever the umask."""
    try:
        path.mkdir(mode=0o700, exist_ok=True)
    except FileNotFoundError:
        # Not `mkdir(parents=True)`, which gives the parents the mode that the umask leaves.
        make_private_dirs(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)


@dataclass(frozen=True)
class ProcessStatus:
    """What a process does, as the system sees it. Amounts are totals since its start, including its children."""

    state: str = ""
    """Of its main thread: `R` runs or is runnable, `S` and `D` wait, `T` is stopped."""
    cpu_s: float = 0.0
    num_bytes: int = 0
    """Read and written."""
    kernel_function: str = ""
    """The kernel function that the main thread waits in, if known."""
    is_traced: bool = False
    """A debugger is attached."""
    is_host_silent: bool = False
    """Its host does not answer, so nothing else here is known."""


def read_process_status(pid: int) -> ProcessStatus | None:
    """None if the process is gone or the system does not tell."""
    fields, status = _read_stat_fields(pid), _read_proc(f"{pid}/status")
    if not fields or not status:
        return None
    tracer = next((line.split()[1] for line in status.splitlines() if line.startswith("TracerPid:")), "0")
    kernel_function = _read_proc(f"{pid}/wchan").strip().removeprefix("0")
    cpu_s, num_bytes = _cpu_s(fields), _read_io_bytes(pid)
    for child in descendant_pids(pid):
        cpu_s += _cpu_s(_read_stat_fields(child))
        num_bytes += _read_io_bytes(child)
    return ProcessStatus(fields[0], cpu_s, num_bytes, kernel_function, tracer != "0")


def read_cpu_s(pids: Iterable[int]) -> float:
    """CPU time of these processes and of their children that have ended; 0 if the system does not tell."""
    return sum(_cpu_s(_read_stat_fields(pid)) for pid in pids)


def descendant_pids(pid: int) -> list[int]:
    """The children of a process, theirs and so on; empty if unknown."""
    found = child_pids(pid)
    for each in found:  # It grows meanwhile.
        found += child_pids(each)
    return found


def _cpu_s(stat_fields: list[str]) -> float:
    return sum(map(int, stat_fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _read_io_bytes(pid: int) -> int:
    lines = _read_proc(f"{pid}/io").splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("rchar", "wchar")))


def num_cores() -> int:
    """The cores that this process may use: its affinity mask and its cgroup's quota, not those of the machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        with open("/sys/fs/cgroup/cpu.max") as file:
            quota, period = file.read().split()
        if quota != "max":
            cores = min(cores, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        pass
    return cores


@functools.cache  # A process that was forked from one that has used it need not load it again.
def _libc() -> Any:
    import ctypes

    return ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if _libc().prctl(option, value, 0, 0, 0) != 0:
        import ctypes

        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}, {value}): {os.strerror(code)}")
