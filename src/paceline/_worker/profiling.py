"""What this worker does, looked at for some seconds, for somebody who asked: Python's stacks, and torch's operations.

A thread looks at all others a hundred times a second. Nothing is stopped or traced for it, and nothing of the user's is
changed; whatever goes wrong is told as a problem, and training goes on.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import CodeType, FrameType

from paceline._core.frames import shown_name, shown_path
from paceline._engine.messages import Profiled
from paceline._worker.torch_trace import TorchTrace

EVERY_S = 0.01
TURN_S = 0.0002
_MOST_FRAMES = 120
_MOST_STACKS = 20_000
"""Different ones; what comes after that is counted as `...`."""
MAX_FILE = 16 << 20
"""Of each file. What waits to be sent must stay below what makes reports wait: see `link.MAX_UNSENT`."""
_PACKAGE = str(Path(__file__).parents[1])
_OURS = ("paceline-link", "paceline-profile", "paceline-trace")
_LEAVES_WITHIN_S = 5.0

Stack = tuple[CodeType, ...]
Key = tuple[str, tuple[int, ...]]
"""The name of a thread, and where its functions are in memory."""


class Profiling:
    """At most one profile at a time of this process."""

    def __init__(self, attempt: int, rank: int, send: Callable[[Profiled], None], scratch: Callable[[], str]) -> None:
        """`scratch` makes a directory that goes with the attempt."""
        self._attempt = attempt
        self._rank = rank
        self._send = send
        self._scratch = scratch
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()

    def begin(self, number: int, seconds: float) -> None:
        """Look for so long on a thread of its own, and send what was seen."""
        if self._thread is not None and self._thread.is_alive():
            self._send(Profiled(self._attempt, self._rank, number, problem="it is being profiled already"))
            return
        self._thread = threading.Thread(target=self._run, args=(number, seconds), name="paceline-profile", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """The worker is about to leave: send what there is."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(_LEAVES_WITHIN_S)

    def _run(self, number: int, seconds: float) -> None:
        try:
            files, problems = self._profiled(seconds)
        except Exception as error:  # noqa: BLE001  told to who asked; the user's code has nothing to do with it
            files, problems = (), [f"the profile broke off: {type(error).__name__}: {error}"]
        self._send(Profiled(self._attempt, self._rank, number, files, "; ".join(problems)))

    def _profiled(self, seconds: float) -> tuple[tuple[tuple[str, bytes], ...], list[str]]:
        problems: list[str] = []
        trace = TorchTrace(seconds, self._scratch, self._ending) if "torch" in sys.modules else None
        if trace is not None:
            trace.start()
        samples = Samples()
        samples.take(seconds, self._ending, lambda: trace.num_pauses if trace is not None else 0)
        files = []
        folded = samples.folded().encode()
        if len(folded) > MAX_FILE:
            folded = folded[:MAX_FILE].rpartition(b"\n")[0]
            problems.append(f"the stacks are cut to {MAX_FILE >> 20} MB")
        files.append(("folded.txt", folded))
        if trace is not None:
            data = trace.taken()
            problems += trace.problems
            if data is not None and len(data) > MAX_FILE:
                problems.append(f"the trace is left out: it has {len(data) >> 20} MB, and may have {MAX_FILE >> 20}")
            elif data is not None:
                files.append(("trace.json.gz", data))
        return tuple(files), problems


class Samples:
    """Stacks of the threads of this process, and how often each was seen."""

    def __init__(self) -> None:
        self._seen: Counter[Key] = Counter()
        self._stacks: dict[Key, Stack] = {}
        self._labels: dict[CodeType, str] = {}
        self._names: dict[int, str] = {}
        """Of the threads that were there at the last look."""
        self._work = _work_code()

    def take(self, seconds: float, ending: threading.Event, pauses: Callable[[], int] = lambda: 0) -> None:
        """Look for so long, or until `ending`. `pauses`: how often somebody else has held everything up."""
        end = time.monotonic() + seconds
        last, paused = time.monotonic(), pauses()
        with _short_turns():
            while not ending.wait(EVERY_S):
                now = time.monotonic()
                # Where C code keeps the GIL this thread comes late: what it sees then has lasted that long.
                weight = max(1, round((now - last) / EVERY_S))
                if (paused_now := pauses()) != paused:
                    paused, weight = paused_now, 1
                last = now
                self._look(weight)
                if now >= end:
                    return

    def _look(self, weight: int) -> None:
        frames = sys._current_frames()
        if frames.keys() != self._names.keys():
            self._name_threads(frames)
        for ident, innermost in frames.items():
            name = self._names[ident]
            if name in _OURS:
                continue
            stack = _codes(innermost, self._work)
            # By their addresses: a code object is else hashed by all that is in it.
            key = name, tuple(map(id, stack))
            if key not in self._stacks:
                if len(self._stacks) >= _MOST_STACKS:
                    key, stack = (name, ()), ()
                self._stacks[key] = stack
            self._seen[key] += weight

    def _name_threads(self, idents: Iterable[int]) -> None:
        known = {thread.ident: thread.name for thread in threading.enumerate()}
        known[threading.main_thread().ident] = "main thread"
        self._names = {ident: known.get(ident, "unnamed thread") for ident in idents}

    def folded(self) -> str:
        """One line for each stack: its functions, outermost first, and a number; the main thread's first."""
        lines = []
        for (thread, at), count in self._seen.items():
            stack = self._stacks[thread, at]
            names = [_name(thread), *(self._label(code) for code in stack)] if stack else [_name(thread), "..."]
            lines.append((thread != "main thread", ";".join(names), count))
        return "".join(f"{stack} {count}\n" for _, stack, count in sorted(lines))

    def _label(self, code: CodeType) -> str:
        label = self._labels.get(code)
        if label is None:
            where = f"{_short(code.co_filename)}:{code.co_firstlineno}"
            label = self._labels[code] = _name(f"{code.co_qualname} ({where})")
        return label


@contextlib.contextmanager
def _short_turns() -> Iterator[None]:
    """Have this thread get its turn soon after it wants one.

    With the usual 5 ms it would mostly get it where another thread lets go by itself, as at every call to the system,
    and see these places instead of those that the time is spent at.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, TURN_S))
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def _codes(innermost: FrameType | None, outermost: CodeType | None) -> Stack:
    """A stack, outermost first, without the calls by which a process becomes a worker."""
    codes: list[CodeType] = []
    while innermost is not None and len(codes) < _MOST_FRAMES:
        code = innermost.f_code
        if code is outermost:
            break
        codes.append(code)
        innermost = innermost.f_back
    codes.reverse()
    return tuple(codes)


def _work_code() -> CodeType | None:
    main = sys.modules.get("paceline._worker.main")
    code: CodeType | None = main.work.__code__ if main is not None and hasattr(main, "work") else None
    return code


def _short(filename: str) -> str:
    """Of an installed package, what is within it."""
    _, found, within = filename.rpartition(f"{os.sep}site-packages{os.sep}")
    if not found and filename.startswith(_PACKAGE):
        return f"paceline{filename.removeprefix(_PACKAGE)}"
    return within if found else shown_path(filename)


def _name(text: str) -> str:
    """As one part of a folded stack: no separator and no newline in it, and not without end."""
    return shown_name(text).replace(";", ":")[:300] or "?"
