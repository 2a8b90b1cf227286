"""The engine that runs workers on this machine.

Each worker has a socket pair to the driver and a log file; one selector in the driver hears them all. A worker that
ends without having said how is told apart by its exit status. Nothing listens anywhere.
"""

import os
import selectors
import signal
import socket
import time
from collections import deque
from dataclasses import dataclass, field

from paceline._core import system
from paceline._core.codec import FrameReader, frame
from paceline._engine.base import Group, Needs, WorkerSpec
from paceline._engine.local.devices import Machine, capacity, this_machine
from paceline._engine.local.launch import Exit, Launcher, launcher
from paceline._engine.local.vitals import Vitals
from paceline._engine.messages import (
    Begin,
    Failure,
    FromWorker,
    ToWorker,
    WorkerFailed,
    WorkerReturned,
    WorkersStopped,
    decode_from_worker,
    encode,
)
from paceline._engine.messages import (
    Exit as Leave,
)

_RECEIVE = 1 << 18
_LOOK_AGAIN_S = 0.05
"""Where the system has no descriptor to watch a process by, its end is looked for."""
_RIPEN_AFTER_S = 2.0
"""Only a run of some length pays for imports that speed up its restart and the next run."""


@dataclass
class _Worker:
    begin: Begin
    end: socket.socket
    frames: FrameReader = field(default_factory=FrameReader)
    unsent: deque[memoryview] = field(default_factory=deque)
    spoken: bool = False
    """It has said that it returned or failed; its exit is no news."""
    exit: Exit | None = None
    drained: bool = False
    killed: bool = False
    """We asked for its end."""


class LocalEngine:
    def __init__(self, launcher: Launcher | None = None, machine: Machine | None = None) -> None:
        """`launcher`: how processes start; chosen at the first `start` if not given.

        `machine`: the part of this one that the workers have; None: all of it.
        """
        self._machine = machine
        self._selector = selectors.DefaultSelector()
        self._wake_r, self._wake_w = socket.socketpair()
        self._wake_r.setblocking(False)
        self._wake_w.setblocking(False)
        self._selector.register(self._wake_r, selectors.EVENT_READ, "wake")
        self._given = self._launcher = launcher
        self._watched: set[int] = set()
        """Of the launcher's descriptors, those that the selector has."""
        self._workers: dict[int, _Worker] = {}
        self._attempt = 0
        self._vitals = Vitals()
        self._ripen: tuple[float, tuple[str, ...]] | None = None
        self._host = socket.gethostname()
        self._closed = False

    waits = False

    def capacity(self, needs: Needs, least: int, most: int) -> int:
        return capacity(self._machine if self._machine is not None else this_machine(), needs, least, most)

    def start(self, group: Group) -> None:
        assert not self._workers, "the workers of the last attempt have not been stopped"
        self._attempt = group.attempt
        self._launcher = self._launcher_for(group)
        job = system.anonymous_file("paceline-job")
        try:
            _write_all(job, group.job)
            for spec in group.workers:
                self._launch(spec, job)
        finally:
            os.close(job)
        self._ripen = (time.monotonic() + _RIPEN_AFTER_S, group.preload_later)
        self._watch_launcher()

    def send(self, rank: int, message: ToWorker) -> None:
        worker = self._workers.get(rank)
        if worker is None or worker.drained or worker.exit is not None:
            return
        worker.unsent.append(memoryview(frame(encode(message))))
        self._flush(worker)

    def stop(self, *, kill: bool) -> None:
        assert self._launcher is not None
        for rank, worker in self._workers.items():
            self.send(rank, Leave())
            if kill and not worker.killed and worker.exit is None:
                worker.killed = True
                self._launcher.kill(rank)
        if not self._workers:
            self.wake()

    def wait(self, timeout_s: float | None) -> list[FromWorker | WorkersStopped]:
        said: list[FromWorker | WorkersStopped] = []
        for key, mask in self._selector.select(timeout_s):
            if key.data == "wake":
                self._drain_wakes()
            elif isinstance(key.data, _Worker):
                if mask & selectors.EVENT_WRITE:
                    self._flush(key.data)
                if mask & selectors.EVENT_READ:
                    self._hear(key.data, said)
        if self._launcher is not None and self._workers:
            if self._ripen is not None and time.monotonic() >= self._ripen[0]:
                self._launcher.ripen(self._ripen[1])
                self._ripen = None
            self._vitals.sample(self._workers, self._launcher.pid)
            exits = self._launcher.exits()
            self._watch_launcher()
            self._take_exits(exits, said)
            if all(worker.exit and worker.drained for worker in self._workers.values()):
                self._workers.clear()
                self._vitals.forget()
                said.append(WorkersStopped(self._attempt))
        return said

    def wake(self) -> None:
        try:
            self._wake_w.send(b"\0")
        except BlockingIOError:
            pass  # It is full of wakes already.
        except OSError:
            if not self._closed:
                raise
            # Nobody waits any more. Another thread cannot know that: it asks whenever it likes.

    def close(self) -> None:
        if self._launcher is not None:
            for rank, worker in self._workers.items():
                if worker.exit is None:
                    self._launcher.kill(rank)
            while any(worker.exit is None for worker in self._workers.values()):
                self.wait(_LOOK_AGAIN_S)
            self._launcher.close()
        for worker in self._workers.values():
            worker.end.close()
        self._workers.clear()
        self._closed = True
        self._selector.close()
        self._wake_r.close()
        self._wake_w.close()

    def condition(self, rank: int) -> system.Condition | None:
        pid = self.pid(rank) if rank in self._workers else 0
        return system.condition(pid) if pid else None

    def pid(self, rank: int) -> int:
        """The process of a rank; 0 where it is not known yet."""
        return self._launcher.pid(rank) if self._launcher is not None else 0

    def _launcher_for(self, group: Group) -> Launcher:
        """A new line for each attempt: to a zygote that is alive, and to the one that has imported the most."""
        if self._given is not None:
            return self._given
        if self._launcher is not None:
            self._unwatch(self._watched)
            self._launcher.close()
        return launcher(group.preload, group.start_method)

    def _watch_launcher(self) -> None:
        """Watch what the launcher has now. What it has closed is forgotten before its number is used again."""
        assert self._launcher is not None
        watched = {*self._launcher.watched()}
        self._unwatch(self._watched - watched)
        for fd in watched - self._watched:
            self._selector.register(fd, selectors.EVENT_READ, "launcher")
        self._watched = watched

    def _unwatch(self, fds: set[int]) -> None:
        for fd in fds:
            self._selector.unregister(fd)
        self._watched = self._watched - fds

    def _launch(self, spec: WorkerSpec, job: int) -> None:
        assert self._launcher is not None
        ours, theirs = socket.socketpair()
        system.make_private_dirs(spec.log.parent)
        log = os.open(spec.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            self._launcher.launch(spec.begin.rank, {**os.environ, **spec.env}, (theirs.fileno(), log, job))
        finally:
            theirs.close()
            os.close(log)
        ours.setblocking(False)
        worker = _Worker(spec.begin, ours)
        self._workers[spec.begin.rank] = worker
        self._selector.register(ours, selectors.EVENT_READ, worker)
        self.send(spec.begin.rank, spec.begin)

    def _flush(self, worker: _Worker) -> None:
        try:
            while worker.unsent:
                data = worker.unsent[0]
                sent = worker.end.send(data)
                if sent < len(data):
                    worker.unsent[0] = data[sent:]
                else:
                    worker.unsent.popleft()
        except BlockingIOError:
            pass
        except ConnectionError:
            worker.unsent.clear()  # It is gone; its exit will say so.
        if not worker.drained:
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if worker.unsent else 0)
            self._selector.modify(worker.end, wanted, worker)

    def _hear(self, worker: _Worker, said: list[FromWorker | WorkersStopped]) -> None:
        try:
            data = worker.end.recv(_RECEIVE)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:
            self._selector.unregister(worker.end)
            worker.end.close()
            worker.drained = True
            return
        for payload in worker.frames.feed(data):
            message = decode_from_worker(payload)
            worker.spoken = worker.spoken or isinstance(message, WorkerReturned | WorkerFailed)
            said.append(message)

    def _take_exits(self, exits: list[Exit], said: list[FromWorker | WorkersStopped]) -> None:
        for ended in exits:
            worker = self._workers[ended.token]
            worker.exit = ended
            # Its last words may still be in the socket, and they come before the news of its death.
            while not worker.drained:
                self._hear(worker, said)
                if not worker.drained and not self._readable(worker):
                    break
            if not worker.drained:
                # Something the worker left behind still holds the other end; the worker itself is gone.
                self._selector.unregister(worker.end)
                worker.end.close()
                worker.drained = True
            if not worker.spoken and not worker.killed:
                failure = self._failure(worker.begin.rank, ended)
                said.append(WorkerFailed(worker.begin.attempt, worker.begin.rank, failure))

    @staticmethod
    def _readable(worker: _Worker) -> bool:
        try:
            worker.end.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except ConnectionError:
            return True
        return True

    def _failure(self, rank: int, ended: Exit) -> Failure:
        if ended.zygote_lost:
            message = "ended with the process that workers fork from, which was killed"
            return Failure(rank, "engine", message, at=ended.at, host=self._host)
        if ended.code == -signal.SIGKILL and (starved := self._vitals.out_of_memory(rank)) is not None:
            return Failure(rank, "memory", starved, at=ended.at, host=self._host)
        if ended.code == -signal.SIGTERM:
            return Failure(rank, "preempted", "ended by SIGTERM", at=ended.at, host=self._host)
        if ended.code < 0:
            name = signal.Signals(-ended.code).name
            # JAX's and NCCL's watches over their peers abort a process when another one is gone.
            echo = ended.code == -signal.SIGABRT
            return Failure(rank, "killed", f"killed by {name}", at=ended.at, host=self._host, collateral=echo)
        message = f"exited with code {ended.code} before its function returned"
        return Failure(rank, "exited", message, at=ended.at, host=self._host)

    def _drain_wakes(self) -> None:
        try:
            while self._wake_r.recv(4096):
                pass
        except BlockingIOError:
            pass


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
