"""What this worker uses: processor, memory, its GPUs, and where its time went. Read while the user's thread works.

Nothing here touches CUDA: GPUs are asked through NVML, the driver's own library, which opens no context on them. That
is done in a thread of its own, since a driver in trouble may not answer, and the one that listens has to.
"""

from __future__ import annotations

import os
import resource
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from paceline._core import system
from paceline._core.spending import CHECKPOINT, DATA, REPORT, SETUP
from paceline._engine.local.devices import this_machine
from paceline._engine.messages import GpuUse, RankUse
from paceline._worker.nvml import Nvml

if TYPE_CHECKING:
    from paceline._worker.context import Context

_ANSWER_S = 0.05
"""How long the GPUs may take to answer; what they say later is told the next time."""


class Usage:
    """Of one worker in one attempt."""

    def __init__(self, context: Context, *, shared: bool = False) -> None:
        """`shared`: the process has done other things before, which do not count."""
        self._context = context
        self._cpu_s_before = _cpu_s() if shared else 0.0
        self._host = socket.gethostname()
        self._gpus = _Gpus(context.begin.devices) if context.begin.devices else None

    def now(self) -> RankUse:
        begin = self._context.begin
        wall_s, sums = self._context.spending.read()
        devices = begin.devices
        return RankUse(
            begin.rank,
            cpu_s=round(max(0.0, _cpu_s() - self._cpu_s_before), 2),
            rss_bytes=_resident_bytes(),
            gpus=self._gpus.read() if self._gpus is not None else (),
            # Parts are rounded down and the whole up: they never sum to more than it.
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


def _cpu_s() -> float:
    seen = system.condition(os.getpid())
    if seen is not None:
        return seen.cpu_s
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


def _resident_bytes() -> int:
    """Memory that several of the processes hold together counts for each of them."""
    total, below = 0, [os.getpid()]
    while below:
        pid = below.pop()
        total += system.resident_bytes(pid) or 0
        below += system.children(pid)
    return total


class _Gpus:
    """Those given to this worker, asked in a thread."""

    def __init__(self, devices: tuple[int, ...]) -> None:
        """`devices`: indices among the visible ones."""
        self._devices = devices
        self._asked = threading.Event()
        self._answered = threading.Event()
        self._last: tuple[GpuUse, ...] = ()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def read(self) -> tuple[GpuUse, ...]:
        """What they said last: at best just now."""
        if self._is_closed:
            return self._last
        if self._thread is None:
            self._thread = threading.Thread(target=self._ask, name="paceline-gpus", daemon=True)
            self._thread.start()
        self._answered.clear()
        self._asked.set()
        self._answered.wait(_ANSWER_S)
        return self._last

    def close(self) -> None:
        """The thread ends, once the driver has answered it."""
        self._is_closed = True
        self._asked.set()

    def _ask(self) -> None:
        names = this_machine().gpus
        nvml = Nvml.opened()
        while True:
            self._asked.wait()
            if self._is_closed:
                return
            self._asked.clear()
            uses = []
            for device in self._devices:
                name = names[device] if device < len(names) else str(device)
                use = nvml.use(name) if nvml is not None else None
                if use is None:
                    use = _torch_use(device, name)
                if use is not None:
                    uses.append(use)
            self._last = tuple(uses)
            self._answered.set()


def _torch_use(device: int, name: str) -> GpuUse | None:
    """What torch knows of a GPU that it works on already; asked of another one it would open a context there."""
    torch: Any = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized() or not cuda.memory_reserved(device):
        return None
    try:
        free, total = cuda.mem_get_info(device)
    except RuntimeError:  # Whatever is wrong with it, the user's code is told.
        return None
    return GpuUse(int(name) if name.isdigit() else device, total - free, total)
