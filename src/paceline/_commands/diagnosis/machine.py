"""Check this machine: GPUs, cores, memory, shared memory, limits on open files and processes, and its host name.

The limits are those of this process, including the container's, not those of the hardware.
"""

from __future__ import annotations

import os
import resource
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from paceline._commands.diagnosis import DiagnosisLine, format_duration, format_size
from paceline._core import settings, system
from paceline._engine.local.devices import count_gpus, this_machine

_line = partial(DiagnosisLine, "machine")

_CGROUP = Path("/sys/fs/cgroup")
_SHM = Path("/dev/shm")
_GB = 10**9
LITTLE_MEMORY, LITTLE_SHM = 1 * _GB, 1 * _GB
FEW_FILES, FEW_PROCESSES = 1024, 512
PATIENCE_S = 60.0
SLOW_LOOKUP_S = 2.0

_CUDA = "import torch; print(torch.cuda.device_count(), torch.version.cuda or '')"


def check_machine() -> Iterator[DiagnosisLine]:
    yield from _check_gpus()
    yield _check_cores()
    yield _check_memory()
    yield _check_shared_memory()
    yield _check_open_files()
    yield _check_processes()
    yield _check_host_name()


def _check_gpus() -> Iterator[DiagnosisLine]:
    gpus, present = this_machine().gpus, count_gpus()
    if present and not gpus:
        yield _line("GPUs", "warn", f"CUDA_VISIBLE_DEVICES hides all {present}", "unset CUDA_VISIBLE_DEVICES")
        return
    described, problem = _query_driver()
    if not gpus and problem:
        hint = "if this machine has GPUs: load their driver (`modprobe nvidia`, or reboot after an update)"
        yield _line("GPUs", "warn", f"none available to workers; nvidia-smi: {problem}", hint)
        return
    if not gpus:
        yield _line("GPUs", "ok", "none available to workers")
        return
    text = f"{len(gpus)}{f' ({described})' if described else ''}; available to workers: {', '.join(gpus)}"
    if problem:
        hint = "the loaded driver and its libraries may be of different versions, as after an update: reboot"
        yield _line("GPUs", "fail", f"{text}; nvidia-smi: {problem}", hint)
    else:
        yield _line("GPUs", "ok", text)
    if find_spec("torch") is not None:
        yield _check_cuda(len(gpus))


def _query_driver() -> tuple[str, str]:
    """Return the GPUs as `nvidia-smi` describes them, and why it cannot; both empty if it is not installed."""
    if shutil.which("nvidia-smi") is None:
        return "", ""
    command = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    except (OSError, subprocess.TimeoutExpired) as problem:
        return "", str(problem)
    lines = list(dict.fromkeys(ended.stdout.strip().splitlines()))
    if ended.returncode:
        return "", " ".join([*lines, *ended.stderr.split()]) or f"exit code {ended.returncode}"
    return "; ".join(lines), ""


def _check_cuda(num_gpus: int) -> DiagnosisLine:
    """Check whether torch sees the GPUs, in a subprocess so that this process never holds one."""
    try:
        result = subprocess.run([sys.executable, "-c", _CUDA], capture_output=True, text=True, timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        return _line("torch", "fail", f"has not detected GPUs for {PATIENCE_S:.0f} s", "try nvidia-smi")
    count, _, version = result.stdout.strip().rpartition("\n")[2].partition(" ")
    if result.returncode or not count.isdigit():
        last = result.stderr.strip().rpartition("\n")[2]
        return _line("torch", "fail", f"cannot detect GPUs: {last}")
    if int(count) < num_gpus:
        hint = "install a build of torch for the CUDA version of the driver: https://pytorch.org/get-started"
        built = f"it was built for CUDA {version}" if version else "it was built without CUDA"
        return _line("torch", "warn", f"sees {count} of the {num_gpus} GPUs; {built}", hint)
    return _line("torch", "ok", f"sees {count} GPUs, with CUDA {version}")


def _check_cores() -> DiagnosisLine:
    usable, board = system.num_cores(), os.cpu_count() or 1
    text = f"{usable} usable" + (f" of {board}" if usable != board else "")
    threads = settings.load().omp_num_threads
    if threads and threads.isdigit() and int(threads) > usable:
        hint = "unset it, so that each worker gets its share of the cores"
        return _line("cores", "warn", f"{text}; OMP_NUM_THREADS={threads} is more than that", hint)
    if usable == 1 < board:
        hint = "raise the limit on this process: taskset, `docker run --cpus`, Slurm's --cpus-per-task"
        return _line("cores", "warn", f"{text}; all workers share it", hint)
    return _line("cores", "ok", text)


def _check_memory() -> DiagnosisLine:
    import psutil

    usable, total = system.usable_memory(), psutil.virtual_memory().total
    text = f"{format_size(usable.free_bytes)} free of {format_size(total)}"
    if usable.total_bytes < total:
        container = f"the {format_size(usable.total_bytes)} available to this container"
        text = f"{format_size(usable.free_bytes)} free of {container} ({format_size(total)} in the machine)"
    if usable.free_bytes < LITTLE_MEMORY:
        return _line("memory", "warn", text, "stop other processes, or give the container more")
    return _line("memory", "ok", text)


def _check_shared_memory() -> DiagnosisLine:
    try:
        usage = shutil.disk_usage(_SHM)
    except OSError as problem:
        return _line("shared memory", "warn", f"{_SHM}: {problem.strerror}", "torch DataLoaders need it")
    text = f"{format_size(usage.free)} free of {format_size(usage.total)} in {_SHM}"
    if usage.free < LITTLE_SHM:
        hint = "docker run --shm-size=8g, or an emptyDir of medium Memory: DataLoader workers pass batches through it"
        return _line("shared memory", "warn", text, hint)
    return _line("shared memory", "ok", text)


def _check_open_files() -> DiagnosisLine:
    allowed, maximum = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        return _line("open files", "ok", "unlimited")
    text = f"{allowed} for each process"
    if allowed < FEW_FILES:
        hint = "ulimit -n 4096"
        if 0 <= maximum < 4096:  # Only root raises the hard limit.
            hint = "as root, raise it in /etc/security/limits.conf, or `docker run --ulimit nofile=4096`"
        return _line("open files", "warn", text, hint)
    return _line("open files", "ok", text)


def _check_processes() -> DiagnosisLine:
    allowed, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    limits = {f"{allowed} for this user": allowed} if allowed != resource.RLIM_INFINITY else {}
    pids = _read_cgroup_number("pids.max")
    if pids is not None:
        limits[f"{pids} in this container, {_read_cgroup_number('pids.current') or 0} used"] = pids
    text = "; ".join(limits) or "not limited"
    if limits and min(limits.values()) < FEW_PROCESSES:
        return _line("processes", "warn", text, "threads count too: raise `ulimit -u`, or the container's limit")
    return _line("processes", "ok", text)


def _check_host_name() -> DiagnosisLine:
    import psutil

    name, began = socket.gethostname(), time.perf_counter()
    try:
        addresses = sorted({str(info[4][0]) for info in socket.getaddrinfo(name, None)})
    except OSError as problem:
        hint = f"add `127.0.1.1 {name}` to /etc/hosts: frameworks look the name up to connect workers"
        return _line("host name", "warn", f"{name} does not resolve: {problem.strerror}", hint)
    took_s = time.perf_counter() - began
    text = f"{name} is {', '.join(addresses)}"
    own = {each.address.partition("%")[0] for found in psutil.net_if_addrs().values() for each in found}
    if not any(each in own or each.startswith("127.") for each in addresses):
        hint = "correct its line in /etc/hosts, or its DNS entry: workers would connect to another machine"
        return _line("host name", "warn", f"{text}, no address of this machine", hint)
    if took_s > SLOW_LOOKUP_S:
        hint = f"add `{addresses[0]} {name}` to /etc/hosts, or correct the DNS servers in /etc/resolv.conf"
        return _line("host name", "warn", f"{text}, found after {format_duration(took_s)}", hint)
    return _line("host name", "ok", text)


def _read_cgroup_number(name: str) -> int | None:
    """Read a number from a file of the control group; None if it is missing or not a number."""
    try:
        text = (_CGROUP / name).read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
