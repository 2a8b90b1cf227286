"""This machine: GPUs, cores, memory, shared memory, and how many files and processes there may be.

Limits are those that hold for this process, a container's among them: not what the board carries.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from paceline._commands.diagnosis.line import Line, size
from paceline._core import settings, system
from paceline._engine.local.devices import this_machine

_CGROUP = Path("/sys/fs/cgroup")
_SHM = Path("/dev/shm")
_GB = 10**9
LITTLE_MEMORY, LITTLE_SHM = 1 * _GB, 1 * _GB
FEW_FILES, FEW_PROCESSES = 1024, 512
PATIENCE_S = 60.0

_CUDA = "import torch; print(torch.cuda.device_count(), torch.version.cuda or '')"


def looked_at() -> Iterator[Line]:
    yield from _gpus()
    yield _cores()
    yield _memory()
    yield _shared_memory()
    yield _open_files()
    yield _processes()


def _gpus() -> Iterator[Line]:
    gpus = this_machine().gpus
    if not gpus:
        yield Line("machine", "GPUs", "ok", "none that workers could be given")
        return
    yield Line("machine", "GPUs", "ok", f"{len(gpus)}{_named()}; workers may be given {', '.join(gpus)}")
    if find_spec("torch") is not None:
        yield _cuda(len(gpus))


def _named() -> str:
    """What they are, where the driver's own command tells."""
    if shutil.which("nvidia-smi") is None:
        return ""
    asked = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        told = subprocess.run(asked, capture_output=True, text=True, timeout=PATIENCE_S, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    kinds = list(dict.fromkeys(told.strip().splitlines()))
    return f" ({'; '.join(kinds)})" if kinds else ""


def _cuda(num_gpus: int) -> Line:
    """Whether torch sees them; in a process of its own, so that this one never holds a GPU."""
    try:
        ended = subprocess.run([sys.executable, "-c", _CUDA], capture_output=True, text=True, timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        return Line("machine", "torch", "fail", f"has not answered about GPUs for {PATIENCE_S:.0f} s", "try nvidia-smi")
    count, _, version = ended.stdout.strip().rpartition("\n")[2].partition(" ")
    if ended.returncode or not count.isdigit():
        last = ended.stderr.strip().rpartition("\n")[2]
        return Line("machine", "torch", "fail", f"cannot be asked about GPUs: {last}")
    if int(count) < num_gpus:
        hint = "install a build of torch for the CUDA version of the driver: https://pytorch.org/get-started"
        built = f"it was built for CUDA {version}" if version else "it was built without CUDA"
        return Line("machine", "torch", "warn", f"sees {count} of the {num_gpus} GPUs; {built}", hint)
    return Line("machine", "torch", "ok", f"sees {count} GPUs, with CUDA {version}")


def _cores() -> Line:
    usable, board = system.num_cores(), os.cpu_count() or 1
    text = f"{usable} that may be used" + (f", of {board} that there are" if usable != board else "")
    threads = settings.load().omp_num_threads
    if threads and threads.isdigit() and int(threads) > usable:
        hint = "unset it, and each worker gets its share of the cores"
        return Line("machine", "cores", "warn", f"{text}; OMP_NUM_THREADS={threads} is more than that", hint)
    return Line("machine", "cores", "ok", text)


def _memory() -> Line:
    total, free = _meminfo("MemTotal"), _meminfo("MemAvailable")
    if total is None or free is None:
        return Line("machine", "memory", "ok", "the system does not say how much there is")
    text = f"{size(free)} free of {size(total)}"
    limit, used = _limit("memory.max"), _limit("memory.current")
    if limit is not None and limit < total:
        # What files are cached in counts as used, and is given up when it is needed.
        free = min(free, limit - (used or 0) + _cached())
        text = f"{size(free)} free of the {size(limit)} that this container may have ({size(total)} in the machine)"
    if free < LITTLE_MEMORY:
        return Line("machine", "memory", "warn", text, "end what else runs here, or give the container more")
    return Line("machine", "memory", "ok", text)


def _shared_memory() -> Line:
    try:
        there = os.statvfs(_SHM)
    except OSError as problem:
        return Line("machine", "shared memory", "warn", f"{_SHM}: {problem.strerror}", "DataLoaders of torch need it")
    total, free = there.f_blocks * there.f_frsize, there.f_bavail * there.f_frsize
    text = f"{size(free)} free of {size(total)} in {_SHM}"
    if free < LITTLE_SHM:
        hint = (
            "docker run --shm-size=8g, or an emptyDir of medium Memory: workers of DataLoaders hand batches over there"
        )
        return Line("machine", "shared memory", "warn", text, hint)
    return Line("machine", "shared memory", "ok", text)


def _open_files() -> Line:
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed != resource.RLIM_INFINITY and allowed < FEW_FILES:
        hint = f"ulimit -n {4096 if most in (resource.RLIM_INFINITY,) or most >= 4096 else most}"
        return Line("machine", "open files", "warn", f"{allowed} for each process", hint)
    told = "as many as there is memory for" if allowed == resource.RLIM_INFINITY else f"{allowed} for each process"
    return Line("machine", "open files", "ok", told)


def _processes() -> Line:
    allowed, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    limits = {f"{allowed} for this user": allowed} if allowed != resource.RLIM_INFINITY else {}
    pids = _limit("pids.max")
    if pids is not None:
        limits[f"{pids} in this container, {_limit('pids.current') or 0} used"] = pids
    text = "; ".join(limits) or "not limited"
    if limits and min(limits.values()) < FEW_PROCESSES:
        return Line(
            "machine", "processes", "warn", text, "threads count too: raise `ulimit -u`, or the container's limit"
        )
    return Line("machine", "processes", "ok", text)


def _meminfo(name: str) -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), None)


def _cached() -> int:
    try:
        lines = (_CGROUP / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("inactive_file ")), 0)


def _limit(name: str) -> int | None:
    """Of the control group; None where it has none."""
    try:
        text = (_CGROUP / name).read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
