"""Which processes of a run are left, which is what G5 is about; and a place with little memory to put one into."""

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import psutil

T = TypeVar("T")

V1, V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")


@contextlib.contextmanager
def small_memory(num_bytes: int = 300 << 20) -> Iterator[Path]:
    """A control group with little memory, for a process to put itself into; `OSError` where none can be made."""
    v1 = (V1 / "memory.limit_in_bytes").exists()
    path = (V1 if v1 else V2) / f"paceline-test-{os.getpid()}"
    path.mkdir()
    try:
        (path / ("memory.limit_in_bytes" if v1 else "memory.max")).write_text(str(num_bytes))
        yield path
    finally:
        path.rmdir()


@contextlib.contextmanager
def inside(group: Path) -> Iterator[Path]:
    """This process is in the control group meanwhile. Use `use_up_memory` in a child, which the kernel kills first.

    The group needs room for this process, its warm ones and workers: when the child is gone, the kernel kills others.
    """
    groups = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    controller, top = ("memory", V1) if V1 in group.parents else ("", V2)
    before = next(name for _, names, name in groups if controller in names.split(","))
    (group / "cgroup.procs").write_text(str(os.getpid()))
    try:
        yield group
    finally:
        for pid in (group / "cgroup.procs").read_text().split():  # this process, and the warm ones it keeps
            with contextlib.suppress(ProcessLookupError):
                (top / before.lstrip("/") / "cgroup.procs").write_text(pid)


def use_up_memory(group: Path) -> None:
    """Take all memory of the control group, until the kernel kills this process."""
    Path("/proc/self/oom_score_adj").write_text("1000")
    (group / "cgroup.procs").write_text(str(os.getpid()))
    blocks = []
    while True:
        blocks.append(b"1" * (8 << 20))


def find_processes(
    matches: Callable[[psutil.Process], object], pids: Iterable[int] | None = None
) -> list[psutil.Process]:
    """The processes that match, of these or of all on the machine; what is gone, or not ours to look at, does not."""
    processes = []
    for pid in psutil.pids() if pids is None else pids:
        with contextlib.suppress(psutil.Error):
            if matches(process := psutil.Process(pid)):
                processes.append(process)
    return processes


def still_running(processes: Collection[psutil.Process], within_s: float = 60.0) -> list[psutil.Process]:
    """Those that still run after that time. One that has ended and waits for its parent does not run."""
    left = psutil.wait_procs(processes, timeout=within_s)[1]
    return find_processes(lambda p: p in left and p.status() != psutil.STATUS_ZOMBIE, [p.pid for p in left])


def wait_until(condition: Callable[[], T], timeout_s: float = 100.0) -> T:
    """The first answer of the condition that is true."""
    deadline = time.monotonic() + timeout_s
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"nothing happened in {timeout_s:g} s"
        time.sleep(0.005)
    return answer
