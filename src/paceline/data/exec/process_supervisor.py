"""The data processes of a service: starts them, talks to them, and detects their deaths."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import cloudpickle

from paceline._core import system
from paceline._engine.local import launchers
from paceline._engine.local.devices import this_machine
from paceline.data.context import DataContext
from paceline.data.exec.message_socket import MessageSocket, ReceivedMessage

MODULE = "paceline.data.exec.process"
PRELOAD = (
    "pyarrow",
    "pyarrow.parquet",
    "pyarrow.compute",
    MODULE,
    "paceline.data.exec.service_client",
    "paceline.data.iterator",
)
"""Modules that data processes, and the workers that take their rows, need."""

_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


@dataclass
class DataProcessHandle:
    number: int
    pool: Hashable
    wire: MessageSocket
    arenas: set[int] = field(default_factory=set)
    jobs: set[str] = field(default_factory=set)
    arenas_to_forget: list[int] = field(default_factory=list)
    assignment: tuple[int, int] | None = None
    """The stream and the unit it works on."""
    chain_stage: tuple[int, int] = (0, 0)
    idle_since: float = field(default_factory=time.monotonic)
    is_open: bool = True


@dataclass(frozen=True)
class ProcessDeath:
    process: DataProcessHandle
    unread_messages: list[ReceivedMessage]
    description: str


class DataProcessSupervisor:
    def __init__(self, selector: selectors.BaseSelector, context: DataContext) -> None:
        self._selector = selector
        self._launcher: launchers.Launcher | None = launchers.choose_launcher(PRELOAD)
        self._watched_fds: set[int] = set()
        self._slots: dict[int, tuple[Hashable, int]] = {}
        self._processes: dict[int, DataProcessHandle] = {}
        self._num_oom_kills = system.num_oom_kills()
        self._context = system.create_anonymous_file("paceline-data")
        with open(self._context, "wb", closefd=False) as file:
            cloudpickle.dump(context, file)

    def __getitem__(self, number: int) -> DataProcessHandle:
        return self._processes[number]

    def __contains__(self, number: int) -> bool:
        return number in self._processes

    @property
    def processes(self) -> list[DataProcessHandle]:
        return list(self._processes.values())

    @property
    def needs_polling(self) -> bool:
        """Whether process exits must be polled because no descriptor reports them."""
        return bool(self._processes) and len(self._watched_fds) == 0

    def start(self, number: int, pool: Hashable) -> None:
        if self._launcher is None:
            self._launcher = launchers.choose_launcher(PRELOAD)
        ours, theirs = socket.socketpair()
        log = _duplicate_stderr()
        try:
            environment = launchers.derive_environment(**_ONE_THREAD, **self._visible_devices(pool, number))
            self._launcher.launch(number, environment, (theirs.fileno(), log, self._context), MODULE)
        finally:
            theirs.close()
            os.close(log)
        ours.setblocking(False)
        process = self._processes[number] = DataProcessHandle(number, pool, MessageSocket(ours))
        self._selector.register(ours, selectors.EVENT_READ, process)
        self._watch_launcher()

    def _visible_devices(self, pool: Hashable, number: int) -> dict[str, str]:
        """The GPUs of a process whose pool has some: those of a slot that no other process of the pool uses."""
        if not isinstance(pool, tuple) or not pool[2]:
            return {}
        self._slots = {other: entry for other, entry in self._slots.items() if other in self._processes}
        used = {slot for other_pool, slot in self._slots.values() if other_pool == pool}
        slot = next(slot for slot in range(len(used) + 1) if slot not in used)
        self._slots[number] = (pool, slot)
        return {"CUDA_VISIBLE_DEVICES": visible_devices(this_machine().gpus, pool[2], slot)}

    def pid(self, number: int) -> int:
        return self._launcher.pid(number) if self._launcher is not None else 0

    def disconnect(self, process: DataProcessHandle) -> None:
        """The process exits when it sees that its socket is closed."""
        if process.is_open:
            process.is_open = False
            self._selector.unregister(process.wire.sock)
            process.wire.close()

    def collect_deaths(self) -> list[ProcessDeath]:
        if self._launcher is None:
            return []
        exits = self._launcher.take_exits()
        if any(process_exit.zygote_lost for process_exit in exits):
            self._unwatch_launcher()
            self._launcher.close()
            self._launcher = None
        else:
            self._watch_launcher()
        deaths = []
        for process_exit in exits:
            process = self._processes.pop(process_exit.token, None)
            if process is not None:
                deaths.append(ProcessDeath(process, _read_remaining(process), self._describe_exit(process_exit)))
                self.disconnect(process)
        return deaths

    def close(self) -> None:
        for process in self._processes.values():
            self.disconnect(process)
        self._unwatch_launcher()
        if self._launcher is not None:
            for number in self._processes:
                self._launcher.kill(number)
            self._launcher.close()
        self._processes.clear()
        os.close(self._context)

    def _describe_exit(self, process_exit: launchers.ProcessExit) -> str:
        if process_exit.zygote_lost:
            return "was lost with the process it was forked from"
        if process_exit.code == -signal.SIGKILL and system.num_oom_kills() > self._num_oom_kills:
            self._num_oom_kills = system.num_oom_kills()
            return "was killed by the kernel, out of memory"
        if process_exit.code < 0:
            return f"was killed by {signal.Signals(-process_exit.code).name}"
        return f"exited with code {process_exit.code}"

    def _watch_launcher(self) -> None:
        now = set(self._launcher.watched_fds()) if self._launcher is not None else set()
        for fd in self._watched_fds - now:
            # The descriptor is closed already, and epoll has dropped it.
            with contextlib.suppress(KeyError, ValueError, OSError):
                self._selector.unregister(fd)
        for fd in now - self._watched_fds:
            self._selector.register(fd, selectors.EVENT_READ, "launcher")
        self._watched_fds = now

    def _unwatch_launcher(self) -> None:
        for fd in self._watched_fds:
            self._selector.unregister(fd)
        self._watched_fds = set()


def _read_remaining(process: DataProcessHandle) -> list[ReceivedMessage]:
    unread: list[ReceivedMessage] = []
    while process.is_open and (messages := process.wire.receive_messages()):
        unread += messages
    return unread


def _duplicate_stderr() -> int:
    """Output of user functions in data processes goes to our standard error."""
    try:
        return os.dup(2)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY)


def visible_devices(gpus: Sequence[str], each: float, slot: int) -> str:
    """`CUDA_VISIBLE_DEVICES` for the process in a slot of its pool; fractions share a GPU.

    Counts from the last GPU down, because training workers get theirs from the first up.
    """
    last_first = list(reversed(gpus))
    if each >= 1:
        num = int(each)
        return ",".join(last_first[(slot * num + index) % len(gpus)] for index in range(num))
    return last_first[int(slot * each + 1e-9) % len(gpus)]
