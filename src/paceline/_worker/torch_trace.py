"""Traces what torch does in this process, from a thread of ours: its operations, and the kernels of a GPU.

torch's profiler pauses everything while it stops, some microseconds for each operation it has seen. So it runs for a
moment first and then for longer, but never for more than some ten thousand operations. A process can have only one: if
the user's code uses it, we do not start ours, and we stop it when the user's code starts one meanwhile.
"""

from __future__ import annotations

import contextlib
import gc
import gzip
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from paceline._core import settings

MAX_EVENTS = 50_000
"""Events in a trace. Each takes about 7 microseconds in which nothing else runs."""
FIRST_WINDOW_S = 0.1
WINDOW_GROWTH = 3.0
_CHUNK = 1 << 20
_OURS = "_of_paceline"
"""Marks a profiler as ours."""


class TorchTrace:
    def __init__(self, seconds: float, scratch: Callable[[], str], ending: threading.Event) -> None:
        self.num_pauses = 0
        """How often training was paused briefly."""
        self.problems: list[str] = []
        self._seconds = seconds
        self._scratch = scratch
        self._ending = ending
        self._best: tuple[int, Any, float] | None = None
        """The number of events, the profiler that has them, and the seconds it covers."""
        self._thread = threading.Thread(target=self._run, name="paceline-trace", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wait_for_trace(self) -> bytes | None:
        """Wait for the trace and return it as gzipped JSON; None if there is none, with the reason in `problems`."""
        self._thread.join()
        if self._best is None:
            return None
        num_events, profiler, seconds = self._best
        self._best = None
        if seconds < 0.5 * self._seconds:
            self.problems.append(f"the trace covers {seconds:.1f} s: that is {num_events} events")
        try:
            return self._export(profiler)
        except Exception as error:  # noqa: BLE001  see the module
            self.problems.append(f"no trace: {type(error).__name__}: {error}")
            return None

    def _run(self) -> None:
        try:
            self._trace(sys.modules["torch"])
        except Exception as error:  # noqa: BLE001  see the module
            self.problems.append(f"no trace: {type(error).__name__}: {error}")

    def _trace(self, torch: Any) -> None:
        if has_user_profiler(torch):
            self.problems.append("no trace: the code uses torch's profiler itself, and there is one in a process")
            return
        with settings.override_environment({"KINETO_LOG_LEVEL": "99"}):  # It would otherwise write to the worker's log.
            self._record_windows(torch)

    def _record_windows(self, torch: Any) -> None:
        end = time.monotonic() + self._seconds
        length, rate = min(FIRST_WINDOW_S, self._seconds), 0.0
        with _yield_to_user_profiler(torch) as aside:
            while length > 0.0 and not aside.is_set() and not self._ending.is_set():
                began = time.monotonic()
                profiler, num_events = self._record_window(torch, length, aside)
                lasted = time.monotonic() - began
                if num_events and (self._best is None or num_events >= self._best[0]):
                    self._best = num_events, profiler, lasted
                if num_events >= MAX_EVENTS / 2:
                    break
                rate = max(rate, num_events / lasted)
                longest = MAX_EVENTS / rate if rate else float("inf")
                length = min(WINDOW_GROWTH * length, longest, end - time.monotonic())
        if aside.is_set():
            self.problems.append("the trace ended early: the code began to use torch's profiler itself")
        elif self._best is None:
            self.problems.append("no trace: torch ran no operation meanwhile")

    def _record_window(self, torch: Any, length: float, aside: _ProfilerArbiter) -> tuple[Any, int]:
        """Run the profiler for `length` seconds."""
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_initialized() and torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        config = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
        profiler = torch.profiler.profile(activities=activities, experimental_config=config)
        with aside.hold() as may:
            if not may:
                return profiler, 0
            profiler.start()
            for each in (profiler, profiler.profiler):
                setattr(each, _OURS, True)
            try:
                aside.wait(length, self._ending)
            finally:
                self.num_pauses += 1
                profiler.stop()
                self.num_pauses += 1
        return profiler, len(profiler.profiler.kineto_results.events())

    def _export(self, profiler: Any) -> bytes:
        directory = Path(self._scratch())
        try:
            path = directory / "trace.json"
            profiler.export_chrome_trace(str(path))
            packed = directory / "trace.json.gz"
            with open(path, "rb") as source, gzip.open(packed, "wb", compresslevel=4) as target:
                shutil.copyfileobj(source, target, _CHUNK)
            return packed.read_bytes()
        finally:
            shutil.rmtree(directory, ignore_errors=True)


def has_user_profiler(torch: Any) -> bool:
    """Whether the user's code has a torch profiler. Searches all objects: a profiler in warm-up shows nowhere else."""
    kinds = (torch.profiler._KinetoProfile, torch.autograd.profiler.profile)
    found = (each for each in gc.get_objects() if issubclass(type(each), kinds))
    return any(_OURS not in vars(each) for each in found)


class _ProfilerArbiter:
    """Gives the user's code precedence for the profiler; it waits until ours is off."""

    def __init__(self) -> None:
        self._deciding = threading.Lock()
        self._wanted = threading.Event()
        self._off = threading.Event()
        self._off.set()
        self._thread = threading.get_ident()

    def is_set(self) -> bool:
        return self._wanted.is_set()

    def wait(self, seconds: float, ending: threading.Event) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and not ending.is_set():
            if self._wanted.wait(min(0.1, left)):
                return

    @contextlib.contextmanager
    def hold(self) -> Iterator[bool]:
        """Yield whether ours may be on within the block."""
        with self._deciding:
            may = not self._wanted.is_set()
            if may:
                self._off.clear()
        try:
            yield may
        finally:
            self._off.set()

    def yield_to_user(self) -> None:
        if threading.get_ident() != self._thread:
            with self._deciding:
                self._wanted.set()
            self._off.wait()


@contextlib.contextmanager
def _yield_to_user_profiler(torch: Any) -> Iterator[_ProfilerArbiter]:
    """Make other threads that start torch's profiler wait until ours is off: two at once crash."""
    aside, module = _ProfilerArbiter(), torch.autograd.profiler
    before = {name: getattr(module, name) for name in ("_prepare_profiler", "_enable_profiler")}

    def yield_before(call: Any) -> Any:
        def call_after_yielding(*args: Any, **kwargs: Any) -> Any:
            aside.yield_to_user()
            return call(*args, **kwargs)

        return call_after_yielding

    for name, call in before.items():
        setattr(module, name, yield_before(call))
    try:
        yield aside
    finally:
        for name, call in before.items():
            setattr(module, name, call)
