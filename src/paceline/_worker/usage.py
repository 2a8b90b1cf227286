"""Measures what this worker uses: CPU, memory, its GPUs, and where its time went. Runs while the user's thread works.

Nothing here touches CUDA: GPUs are queried through NVML, the driver's own library, which opens no context on them. A
separate thread does that, because a broken driver may not answer, and the listening thread must not block.
"""

from __future__ import annotations

import ctypes
import os
import resource
import socket
import sys
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from paceline._core import system
from paceline._core.time_accounting import CHECKPOINT, DATA, REPORT, SETUP
from paceline._engine.local.devices import this_machine
from paceline._engine.messages import GpuUsage, RankUsage

if TYPE_CHECKING:
    from paceline._worker.context import WorkerContext

_ANSWER_S = 0.05
"""How long the GPUs may take to answer; a later answer is reported the next time."""


class UsageMeter:
    """Of one worker in one attempt."""

    def __init__(self, context: WorkerContext, *, shared: bool = False) -> None:
        """`shared`: the process has done other work before, which does not count."""
        self._context = context
        self._cpu_s_before = _cpu_s(_list_pids()) if shared else 0.0
        self._host = socket.gethostname()
        self._gpus = _GpuPoller(context.begin.devices) if context.begin.devices else None

    def measure(self) -> RankUsage:
        begin = self._context.begin
        pids = _list_pids()
        wall_s, sums = self._context.time_accounting.read()
        devices = begin.devices
        return RankUsage(
            begin.rank,
            cpu_s=round(max(0.0, _cpu_s(pids) - self._cpu_s_before), 2),
            rss_bytes=sum(system.resident_bytes(pid) or 0 for pid in pids),  # What they share counts for each.
            gpus=self._gpus.read() if self._gpus is not None else (),
            # Parts are rounded down and the whole up, so their sum never exceeds it.
            wall_s=round(_milliseconds(wall_s) + 0.001, 3),
            setup_s=_milliseconds(sums[SETUP]),
            data_s=_milliseconds(sums[DATA]),
            report_s=_milliseconds(sums[REPORT]),
            checkpoint_s=_milliseconds(sums[CHECKPOINT]),
            num_reports=self._context.num_reports,
            pid=os.getpid(),
            host=self._host,
            device=f"cuda:{devices[0]}" if devices else "cpu",
        )

    def close(self) -> None:
        if self._gpus is not None:
            self._gpus.close()


def _milliseconds(seconds: float) -> float:
    return int(seconds * 1000) / 1000


def _list_pids() -> list[int]:
    """This process and those that it started."""
    return [os.getpid(), *system.descendant_pids(os.getpid())]


def _cpu_s(pids: Sequence[int]) -> float:
    if cpu_s := system.read_cpu_s(pids):
        return cpu_s
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


class _GpuPoller:
    """Queries the GPUs of this worker on a separate thread."""

    def __init__(self, devices: tuple[int, ...]) -> None:
        """`devices`: indices among the visible ones."""
        self._devices = devices
        self._asked = threading.Event()
        self._answered = threading.Event()
        self._last: tuple[GpuUsage, ...] = ()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def read(self) -> tuple[GpuUsage, ...]:
        """Return the last answer: at best from just now."""
        if self._is_closed:
            return self._last
        if self._thread is None:
            self._thread = threading.Thread(target=self._poll_loop, name="paceline-gpus", daemon=True)
            self._thread.start()
        self._answered.clear()
        self._asked.set()
        self._answered.wait(_ANSWER_S)
        return self._last

    def close(self) -> None:
        """The thread ends once the driver has answered it."""
        self._is_closed = True
        self._asked.set()

    def _poll_loop(self) -> None:
        names = this_machine().gpus
        nvml = Nvml.open()
        while True:
            self._asked.wait()
            if self._is_closed:
                return
            self._asked.clear()
            usages = []
            for device in self._devices:
                name = names[device] if device < len(names) else str(device)
                use = nvml.use(name) if nvml is not None else None
                usages.append(use or _read_gpu_from_torch(device, name))
            self._last = tuple(filter(None, usages))
            self._answered.set()


def _read_gpu_from_torch(device: int, name: str) -> GpuUsage | None:
    """What torch knows about a GPU that it already uses; querying another one would open a context there."""
    torch: Any = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized() or not cuda.memory_reserved(device):
        return None
    try:
        free, total = cuda.mem_get_info(device)
    except RuntimeError:  # The user's code gets the error, whatever it is.
        return None
    return GpuUsage(int(name) if name.isdigit() else device, total - free, total)


_NVML_LIBRARY = "libnvidia-ml.so.1"


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class _Utilization(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class Nvml:
    """GPU usage from the NVIDIA driver's own C library: needs no package, and does not initialise CUDA."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._handles: dict[str, ctypes.c_void_p | None] = {}

    @classmethod
    def open(cls) -> Nvml | None:
        """Return None if there is no such driver."""
        try:
            library: Any = ctypes.CDLL(_NVML_LIBRARY)
            return cls(library) if library.nvmlInit_v2() == 0 else None
        except (OSError, AttributeError):
            return None

    def use(self, name: str) -> GpuUsage | None:
        """Usage of a GPU as named in `CUDA_VISIBLE_DEVICES`; None if the driver does not tell."""
        handle = self._find_handle(name)
        memory, busy, index = _Memory(), _Utilization(), ctypes.c_uint()
        if handle is None or self._library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)):
            return None
        if self._library.nvmlDeviceGetIndex(handle, ctypes.byref(index)):
            return None
        unknown = self._library.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(busy))
        return GpuUsage(index.value, memory.used, memory.total, -1.0 if unknown else busy.gpu / 100)

    def _find_handle(self, name: str) -> ctypes.c_void_p | None:
        if name not in self._handles:
            handle = ctypes.c_void_p()
            if name.isdigit():
                problem = self._library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(int(name)), ctypes.byref(handle))
            else:
                problem = self._library.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(handle))
            self._handles[name] = None if problem else handle
        return self._handles[name]
