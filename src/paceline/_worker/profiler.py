"""Profiles this worker for some seconds on request: Python stacks, and torch operations.

A thread samples all others a hundred times a second. Nothing is stopped or traced, and nothing of the user's is
changed. Errors are returned as problems, and training continues.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from types import CodeType
from typing import Any

from paceline._core.frames import capture_stack, display_name, display_path
from paceline._engine.messages import ProfileRecorded
from paceline._worker.torch_trace import TorchTrace

SAMPLE_INTERVAL_S = 0.01
SWITCH_INTERVAL_S = 0.0002
_MAX_FRAMES = 120
_MAX_STACKS = 20_000
"""Distinct stacks; any more are counted as `...`."""
MAX_FILE = 16 << 20
"""Per file. Unsent data must stay below what makes reports block: see `link.MAX_UNSENT`."""
_PACKAGE = str(Path(__file__).parents[1])
_OUR_THREADS = ("paceline-link", "paceline-profile", "paceline-trace")
_FINISH_TIMEOUT_S = 5.0

Stack = tuple[CodeType, ...]
StackKey = tuple[str, tuple[int, ...]]
"""The name of a thread, and the addresses of its code objects."""


class Profiler:
    """Records profiles of this process, at most one at a time."""

    def __init__(
        self, attempt: int, rank: int, send: Callable[[ProfileRecorded], None], scratch: Callable[[], Path]
    ) -> None:
        """`scratch` creates a directory that is removed with the attempt."""
        self._ids = attempt, rank
        self._send = send
        self._scratch = scratch
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()

    def start(self, number: int, seconds: float) -> None:
        """Profile for some seconds on a separate thread, and send the result."""
        if self._thread is not None and self._thread.is_alive():
            self._send(ProfileRecorded(*self._ids, number, problem="already being profiled"))
            return
        self._thread = threading.Thread(target=self._run, args=(number, seconds), name="paceline-profile", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Send what there is: the worker is about to exit."""
        self._ending.set()
        deadline = time.monotonic() + _FINISH_TIMEOUT_S
        while self._thread is not None and self._thread.is_alive() and time.monotonic() < deadline:
            self._thread.join(0.02)  # In steps: torch's profiler is switched off by this thread, in between.

    def _run(self, number: int, seconds: float) -> None:
        try:
            files, problems = self._profile(seconds)
        except Exception as error:  # noqa: BLE001
            files, problems = (), [f"the profile failed: {type(error).__name__}: {error}"]
        self._send(ProfileRecorded(*self._ids, number, files, "; ".join(problems)))

    def _profile(self, seconds: float) -> tuple[tuple[tuple[str, bytes], ...], list[str]]:
        problems: list[str] = []
        trace = TorchTrace(seconds, self._scratch, self._ending) if "torch" in sys.modules else None
        if trace is not None:
            trace.start()
        samples = StackSamples()
        samples.collect(seconds, self._ending, lambda: trace.num_pauses if trace is not None else 0)
        files = []
        folded = samples.to_folded().encode()
        if len(folded) > MAX_FILE:
            folded = folded[:MAX_FILE].rpartition(b"\n")[0]
            problems.append(f"stacks truncated to {MAX_FILE >> 20} MB")
        files.append(("folded.txt", folded))
        if trace is not None:
            data = trace.wait_for_trace()
            problems += trace.problems
            if data is not None and len(data) > MAX_FILE:
                problems.append(f"trace dropped: its {len(data) >> 20} MB exceed the limit of {MAX_FILE >> 20} MB")
            elif data is not None:
                files.append(("trace.json.gz", data))
        return tuple(files), problems


class StackSamples:
    """Stacks of the threads of this process, and how often each was seen."""

    def __init__(self) -> None:
        self._counts: Counter[StackKey] = Counter()
        self._stacks: dict[StackKey, Stack] = {}
        self._labels: dict[CodeType, str] = {}
        self._names: dict[int, str] = {}
        """Thread names at the last sample."""
        main: Any = sys.modules.get("paceline._worker.main")
        self._work: CodeType | None = main.work.__code__ if hasattr(main, "work") else None
        """Our function around the user's: its frame, and those outside, are left out."""

    def collect(self, seconds: float, ending: threading.Event, pauses: Callable[[], int] = lambda: 0) -> None:
        """Sample for some seconds, or until `ending`. `pauses` counts how often something else paused the process."""
        end = time.monotonic() + seconds
        last, paused = time.monotonic(), pauses()
        # With the default 5 ms, this thread would mostly run where another releases the GIL by itself, as at every
        # system call, and would see those places instead of the ones where the time is spent.
        switch_interval_s = sys.getswitchinterval()
        sys.setswitchinterval(min(switch_interval_s, SWITCH_INTERVAL_S))
        try:
            while last < end and not ending.wait(SAMPLE_INTERVAL_S):
                now = time.monotonic()
                # If C code holds the GIL, this thread runs late: what it sees then has lasted that long.
                weight = max(1, round((now - last) / SAMPLE_INTERVAL_S))
                if (paused_now := pauses()) != paused:
                    paused, weight = paused_now, 1
                last = now
                self._sample_once(weight)
        finally:
            sys.setswitchinterval(switch_interval_s)

    def _sample_once(self, weight: int) -> None:
        idents = sys._current_frames().keys()
        if idents != self._names.keys():
            self._name_threads(idents)
        for ident, name in self._names.items():
            if name in _OUR_THREADS:
                continue
            codes = (frame.f_code for frame in capture_stack(ident, _MAX_FRAMES))
            stack = tuple(itertools.takewhile(lambda code: code is not self._work, codes))[::-1]
            # By address: hashing a code object hashes everything in it.
            key = name, tuple(map(id, stack))
            if key not in self._stacks:
                if len(self._stacks) >= _MAX_STACKS:
                    key, stack = (name, ()), ()
                self._stacks[key] = stack
            self._counts[key] += weight

    def _name_threads(self, idents: Iterable[int]) -> None:
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        names[threading.main_thread().ident] = "main thread"
        self._names = {ident: names.get(ident, "unnamed thread") for ident in idents}

    def to_folded(self) -> str:
        """One line per stack: its functions, outermost first, and a count; the main thread first."""
        lines = []
        for (thread, at), count in self._counts.items():
            stack = self._stacks[thread, at]
            labels = [self._label_code(code) for code in stack] or ["..."]
            lines.append((thread != "main thread", ";".join([_folded_name(thread), *labels]), count))
        return "".join(f"{stack} {count}\n" for _, stack, count in sorted(lines))

    def _label_code(self, code: CodeType) -> str:
        label = self._labels.get(code)
        if label is None:
            where = f"{_shorten_path(code.co_filename)}:{code.co_firstlineno}"
            label = self._labels[code] = _folded_name(f"{code.co_qualname} ({where})")
        return label


def _shorten_path(filename: str) -> str:
    """For an installed package, the path within it."""
    _, separator, within = filename.rpartition(f"{os.sep}site-packages{os.sep}")
    if not separator and filename.startswith(_PACKAGE):
        return f"paceline{filename.removeprefix(_PACKAGE)}"
    return within if separator else display_path(filename)


def _folded_name(text: str) -> str:
    """Format a name for a folded stack: no separator, no newline, and of limited length."""
    return display_name(text).replace(";", ":")[:300] or "?"
