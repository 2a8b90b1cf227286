"""The data processes of a service: started, spoken to, and found dead."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import time
from collections.abc import Hashable
from dataclasses import dataclass, field

import cloudpickle

from paceline._core import system
from paceline._engine.local import launch
from paceline._engine.local.devices import this_machine
from paceline.data.context import DataContext
from paceline.data.exec.gpus import visible
from paceline.data.exec.wire import Received, Wire

MODULE = "paceline.data.exec.process"
PRELOAD = (
    "pyarrow",
    "pyarrow.parquet",
    "pyarrow.compute",
    MODULE,
    "paceline.data.exec.remote",
    "paceline.data.iterator",
)
"""What data processes need, and the workers who take their rows."""

_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


@dataclass
class Process:
    number: int
    pool: Hashable
    wire: Wire
    arenas: set[int] = field(default_factory=set)
    """Those it has mapped."""
    jobs: set[str] = field(default_factory=set)
    forget: list[int] = field(default_factory=list)
    at: tuple[int, int] | None = None
    """The stream and the unit that it works on."""
    chain_stage: tuple[int, int] = (0, 0)
    idle_since: float = field(default_factory=time.monotonic)
    open: bool = True


@dataclass(frozen=True)
class Death:
    process: Process
    last_words: list[Received]
    """What it had said and nobody had heard."""
    how: str


class Fleet:
    def __init__(self, selector: selectors.BaseSelector, context: DataContext) -> None:
        self._selector = selector
        self._launcher: launch.Launcher | None = launch.launcher(PRELOAD)
        self._watched: set[int] = set()
        self._slots: dict[int, tuple[Hashable, int]] = {}
        self._processes: dict[int, Process] = {}
        self._num_oom_kills = system.num_oom_kills()
        self._context = system.anonymous_file("paceline-data")
        with open(self._context, "wb", closefd=False) as file:
            cloudpickle.dump(context, file)

    def __getitem__(self, number: int) -> Process:
        return self._processes[number]

    def __contains__(self, number: int) -> bool:
        return number in self._processes

    @property
    def all(self) -> list[Process]:
        return list(self._processes.values())

    @property
    def must_look(self) -> bool:
        """Whether the end of a process is not told by a descriptor, and has to be looked for."""
        return bool(self._processes) and len(self._watched) == 0

    def start(self, number: int, pool: Hashable) -> None:
        if self._launcher is None:
            self._launcher = launch.launcher(PRELOAD)
        ours, theirs = socket.socketpair()
        log = _terminal()
        try:
            environment = launch.inherited(**_ONE_THREAD, **self._devices(pool, number))
            self._launcher.launch(number, environment, (theirs.fileno(), log, self._context), MODULE)
        finally:
            theirs.close()
            os.close(log)
        ours.setblocking(False)
        process = self._processes[number] = Process(number, pool, Wire(ours))
        self._selector.register(ours, selectors.EVENT_READ, process)
        self._watch()

    def _devices(self, pool: Hashable, number: int) -> dict[str, str]:
        """The GPUs of a process whose pool has some: those of a slot that no other process of it has."""
        if not isinstance(pool, tuple) or not pool[2]:
            return {}
        self._slots = {other: held for other, held in self._slots.items() if other in self._processes}
        taken = {slot for of, slot in self._slots.values() if of == pool}
        slot = next(slot for slot in range(len(taken) + 1) if slot not in taken)
        self._slots[number] = (pool, slot)
        return {"CUDA_VISIBLE_DEVICES": visible(this_machine().gpus, pool[2], slot)}

    def pid(self, number: int) -> int:
        return self._launcher.pid(number) if self._launcher is not None else 0

    def retire(self, number: int) -> None:
        """It leaves when it sees that nobody speaks to it any more."""
        self.hang_up(self._processes[number])

    def hang_up(self, process: Process) -> None:
        if process.open:
            process.open = False
            self._selector.unregister(process.wire.end)
            process.wire.close()

    def deaths(self) -> list[Death]:
        if self._launcher is None:
            return []
        exits = self._launcher.exits()
        if any(ended.zygote_lost for ended in exits):
            self._unwatch()
            self._launcher.close()
            self._launcher = None
        else:
            self._watch()
        found = []
        for ended in exits:
            process = self._processes.pop(ended.token, None)
            if process is not None:
                found.append(Death(process, _last_words(process), self._how(ended)))
                self.hang_up(process)
        return found

    def close(self) -> None:
        for process in self._processes.values():
            self.hang_up(process)
        self._unwatch()
        if self._launcher is not None:
            for number in self._processes:
                self._launcher.kill(number)
            self._launcher.close()
        self._processes.clear()
        os.close(self._context)

    def _how(self, ended: launch.Exit) -> str:
        if ended.zygote_lost:
            return "was lost with the process that it was forked from"
        if ended.code == -signal.SIGKILL and system.num_oom_kills() > self._num_oom_kills:
            self._num_oom_kills = system.num_oom_kills()
            return "was killed by the kernel, out of memory"
        if ended.code < 0:
            return f"was killed by {signal.Signals(-ended.code).name}"
        return f"exited with code {ended.code}"

    def _watch(self) -> None:
        now = set(self._launcher.watched()) if self._launcher is not None else set()
        for fd in self._watched - now:
            # The descriptor is closed by now, and epoll has dropped it by itself.
            with contextlib.suppress(KeyError, ValueError, OSError):
                self._selector.unregister(fd)
        for fd in now - self._watched:
            self._selector.register(fd, selectors.EVENT_READ, "launcher")
        self._watched = now

    def _unwatch(self) -> None:
        for fd in self._watched:
            self._selector.unregister(fd)
        self._watched = set()


def _last_words(process: Process) -> list[Received]:
    words: list[Received] = []
    while process.open and (heard := process.wire.hear()):
        words += heard
    return words


def _terminal() -> int:
    """Where a data process prints to: what is printed in a user's function is seen."""
    try:
        return os.dup(2)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY)
