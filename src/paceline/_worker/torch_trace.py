"""Traces what torch does in this process for a moment: its operations, and the kernels of a GPU.

torch's profiler crashes when another thread switches it while an operation runs, so the main thread, which runs the
user's function, does it between two of its instructions. Stopping pauses it for some microseconds per operation: a
trace covers a second at most, or less once we know how many operations that is. A process can have only one profiler:
if the user's code uses it, we do not start ours, and we stop it when the user's code starts one meanwhile.
"""

from __future__ import annotations

import contextlib
import ctypes
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
MAX_WINDOW_S = 1.0
_CHUNK = 1 << 20
_OURS = "_of_paceline"
"""Marks a profiler as ours."""


class TorchTrace:
    _events_per_s = 0.0
    """The highest rate seen in this process."""

    def __init__(self, seconds: float, scratch: Callable[[], Path], ending: threading.Event) -> None:
        self.num_pauses = 0
        """How often training was paused briefly."""
        self.problems: list[str] = []
        self._seconds = seconds
        self._scratch = scratch
        self._ending = ending
        self._profiler: Any = None
        """The one that has the trace."""
        self._thread = threading.Thread(target=self._run, name="paceline-trace", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wait_for_trace(self) -> bytes | None:
        """Wait for the trace and return it as gzipped JSON; None if there is none, with the reason in `problems`."""
        self._thread.join()
        profiler, self._profiler = self._profiler, None
        if profiler is None:
            return None
        try:
            return self._export(profiler)
        except Exception as error:  # noqa: BLE001  reported as a problem
            self.problems.append(f"no trace: {type(error).__name__}: {error}")
            return None

    def _run(self) -> None:
        try:
            torch = sys.modules["torch"]
            if has_user_profiler(torch):
                self.problems.append("no trace: the code uses torch's profiler itself, and a process can have only one")
                return
            # It would otherwise write to the worker's log.
            with settings.override_environment({"KINETO_LOG_LEVEL": "99"}):
                self._record(torch)
        except Exception as error:  # noqa: BLE001  reported as a problem
            self.problems.append(f"no trace: {type(error).__name__}: {error}")

    def _record(self, torch: Any) -> None:
        recording = _Recording(torch)
        length = min(self._seconds, MAX_WINDOW_S, MAX_EVENTS / max(self._events_per_s, 1.0))
        with _yield_to_user_profiler(torch, recording):
            if not run_in_main_thread(recording.start, self._ending):
                self.problems.append("no trace: the main thread ran no Python code meanwhile")
                return
            self.num_pauses += 1
            recording.wait(length, self._ending)
            # Even while the worker ends: one that stays on would record, and keep, all that follows.
            run_in_main_thread(recording.stop)
            self.num_pauses += 1
        if recording.is_wanted_by_user:
            self.problems.append("the trace ended early: the code began to use torch's profiler itself")
        if not (num_events := recording.count_events()):
            self.problems.append("no trace: torch ran no operation meanwhile")
            return
        TorchTrace._events_per_s = max(self._events_per_s, num_events / recording.seconds)
        if recording.seconds < 0.5 * self._seconds:
            self.problems.append(f"the trace covers {recording.seconds:.1f} s: that is {num_events} events")
        self._profiler = recording.profiler

    def _export(self, profiler: Any) -> bytes:
        directory = self._scratch()
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
    profilers = (each for each in gc.get_objects() if issubclass(type(each), kinds))
    return any(_OURS not in vars(each) for each in profilers)


class _Recording:
    """torch's profiler, switched on once and off once, by the main thread."""

    def __init__(self, torch: Any) -> None:
        self.profiler: Any = None
        self.seconds = 0.0
        self.is_wanted_by_user = False
        self._torch = torch
        self._began: float | None = None
        self.is_off = threading.Event()
        """Set when the user's code may have the profiler."""
        self._is_starting = False

    def start(self) -> None:
        if self.is_wanted_by_user:
            return
        torch = self._torch
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_initialized() and torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self.profiler = torch.profiler.profile(activities=activities)
        self._is_starting = True
        try:
            self.profiler.start()
        finally:
            self._is_starting = False
        for each in (self.profiler, self.profiler.profiler):
            setattr(each, _OURS, True)
        self._began = time.monotonic()

    def stop(self) -> None:
        if self._began is not None and not self.seconds:
            self.seconds = time.monotonic() - self._began
            self.profiler.stop()
        self.is_off.set()

    def wait(self, seconds: float, ending: threading.Event) -> None:
        end = time.monotonic() + seconds
        while (remaining := end - time.monotonic()) > 0 and not ending.is_set():
            if self.is_off.wait(min(0.05, remaining)) or self.is_wanted_by_user:
                return

    def count_events(self) -> int:
        return len(self.profiler.profiler.kineto_results.events()) if self.seconds else 0

    def yield_to_user(self) -> None:
        """Called by a thread that is about to start a profiler of its own: two at once crash."""
        if self._is_starting and threading.current_thread() is threading.main_thread():
            return  # It is ours.
        self.is_wanted_by_user = True
        if threading.current_thread() is threading.main_thread():
            self.stop()
        elif self._is_starting or self._began is not None:
            self.is_off.wait()


@contextlib.contextmanager
def _yield_to_user_profiler(torch: Any, recording: _Recording) -> Iterator[None]:
    """Switch ours off before the user's code starts torch's profiler."""
    module = torch.autograd.profiler
    before = {name: getattr(module, name) for name in ("_prepare_profiler", "_enable_profiler")}

    def yield_before(call: Any) -> Any:
        def call_after_yielding(*args: Any, **kwargs: Any) -> Any:
            recording.yield_to_user()
            return call(*args, **kwargs)

        return call_after_yielding

    for name, call in before.items():
        setattr(module, name, yield_before(call))
    try:
        yield
    finally:
        recording.is_off.set()  # Also when it could not be started: a thread of the user's may wait for it.
        for name, call in before.items():
            setattr(module, name, call)


_pending_calls: list[Any] = []
"""Kept until the interpreter has called them."""


def run_in_main_thread(action: Callable[[], None], give_up: threading.Event | None = None) -> bool:
    """Run it in the main thread between two instructions, as a signal handler is; False if `give_up` came first.

    It waits while the main thread is in C code, such as a wait for a GPU.
    """
    called, lock = threading.Event(), threading.Lock()
    errors: list[BaseException] = []

    def call(_: Any) -> int:
        with lock:
            if not called.is_set():
                try:
                    action()
                except BaseException as error:  # noqa: BLE001  an exception cannot leave a pending call
                    errors.append(error)
                called.set()
        _pending_calls.remove(pending)
        return 0

    pending = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(call)
    _pending_calls.append(pending)
    add = ctypes.pythonapi.Py_AddPendingCall
    while add(pending, None) != 0:  # The queue of the interpreter is full.
        time.sleep(0.001)
    while not called.wait(0.05):
        if (give_up is not None and give_up.is_set()) or not threading.main_thread().is_alive():
            with lock:
                if not called.is_set():
                    called.set()  # It finds nothing to do when it is called at last.
                    return False
    if not errors:
        return True
    if isinstance(errors[0], Exception):
        raise errors[0]
    # A signal handler raised while it ran: that was meant for the user's code.
    main = ctypes.c_ulong(threading.main_thread().ident or 0)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(main, ctypes.py_object(type(errors[0])))
    return False
