"""The engine that runs workers on this machine.

Each worker has a socket pair to the driver and a log file; one selector in the driver reads all of them. The exit
status classifies a worker that exits without reporting its end. Nothing listens on a network port.
"""

import os
import selectors
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from paceline._core import system
from paceline._core.codec import FrameReader, encode_frame, send_pending
from paceline._engine import messages
from paceline._engine.base import WakeSocket, WorkerGroupSpec, WorkerResources, WorkerSpec
from paceline._engine.local.devices import Machine, compute_local_capacity, this_machine
from paceline._engine.local.launchers import Launcher, ProcessExit, choose_launcher
from paceline._engine.messages import FromWorker, WorkersStopped

_RECEIVE_BYTES = 1 << 18
_POLL_S = 0.05
"""Poll interval for exits, where the system has no descriptor to watch a process with."""
_PRELOAD_AFTER_S = 2.0
"""Only a run of some length pays for imports that speed up its restart and the next run."""
_SAMPLE_INTERVAL_S = 0.5
_MAX_SAMPLES = 120


@dataclass
class _LocalWorker:
    begin: messages.WorkerInit
    connection: socket.socket
    frames: FrameReader = field(default_factory=FrameReader)
    unsent: deque[memoryview] = field(default_factory=deque)
    has_reported_end: bool = False
    """It has reported that it returned or failed, so its exit adds nothing."""
    exit: ProcessExit | None = None
    is_drained: bool = False
    is_kill_requested: bool = False


class LocalEngine:
    def __init__(
        self, launcher: Launcher | None = None, machine: Machine | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        """`launcher` starts processes; by default it is chosen at the first `start`.

        `machine` is the part of this machine that the workers may use; None means all of it. `env` is added to the
        environment of the workers.
        """
        self._env = dict(env or {})
        self._machine = machine
        self._selector = selectors.DefaultSelector()
        self._wake_socket = WakeSocket()
        self._selector.register(self._wake_socket.receiver, selectors.EVENT_READ, "wake")
        self._given_launcher = self._launcher = launcher
        self._watched_fds: set[int] = set()
        """The launcher's descriptors that are registered with the selector."""
        self._workers: dict[int, _LocalWorker] = {}
        self._attempt = 0
        self._memory_monitor = MemoryMonitor()
        self._preload_due: tuple[float, tuple[str, ...]] | None = None
        self._imported: set[str] = set()
        """The modules to preload later that a worker has imported."""
        self._host = socket.gethostname()

    waits = False

    def capacity(self, needs: WorkerResources, least: int, most: int) -> int:
        return compute_local_capacity(self._machine or this_machine(), needs, least, most)

    def start(self, group: WorkerGroupSpec) -> None:
        assert not self._workers, "the workers of the last attempt have not been stopped"
        self._attempt = group.attempt
        self._launcher = self._renew_launcher(group)
        job = system.create_anonymous_file("paceline-job")
        try:
            with open(job, "wb", closefd=False) as file:
                file.write(group.job)
            os.lseek(job, 0, os.SEEK_SET)
            for spec in group.workers:
                self._launch(spec, job)
        finally:
            os.close(job)
        self._imported.clear()
        self._preload_due = (time.monotonic() + _PRELOAD_AFTER_S, group.preload_later)
        self._watch({*self._launcher.watched_fds()})

    def send(self, rank: int, message: messages.ToWorker) -> None:
        worker = self._workers.get(rank)
        if worker is None or worker.is_drained or worker.exit is not None:
            return
        worker.unsent.append(memoryview(encode_frame(messages.encode_message(message))))
        self._flush(worker)

    def stop(self, *, kill: bool) -> None:
        assert self._launcher is not None
        for rank, worker in self._workers.items():
            self.send(rank, messages.ExitWorker())
            if kill and not worker.is_kill_requested and worker.exit is None:
                worker.is_kill_requested = True
                self._launcher.kill(rank)
        if not self._workers:
            self.wake()

    def wait(self, timeout_s: float | None) -> list[FromWorker | WorkersStopped]:
        output: list[FromWorker | WorkersStopped] = []
        for key, mask in self._selector.select(timeout_s):
            if key.data == "wake":
                self._wake_socket.drain()
            elif isinstance(key.data, _LocalWorker):
                if mask & selectors.EVENT_WRITE:
                    self._flush(key.data)
                if mask & selectors.EVENT_READ:
                    self._receive(key.data, output)
        if self._launcher is not None and self._workers:
            due = self._preload_due
            if due and time.monotonic() >= due[0] and self._launcher.preload_ahead(due[1], self._imported):
                self._preload_due = None
            self._memory_monitor.sample(self._workers, self._launcher.pid)
            exits = self._launcher.take_exits()
            self._watch({*self._launcher.watched_fds()})
            self._handle_exits(exits, output)
            if all(worker.exit and worker.is_drained for worker in self._workers.values()):
                self._workers.clear()
                self._memory_monitor.clear()
                output.append(WorkersStopped(self._attempt))
        return output

    def wake(self) -> None:
        self._wake_socket.wake()

    def close(self) -> None:
        if self._launcher is not None:
            for rank, worker in self._workers.items():
                if worker.exit is None:
                    self._launcher.kill(rank)
            while any(worker.exit is None for worker in self._workers.values()):
                self.wait(_POLL_S)
            self._launcher.close()
        for worker in self._workers.values():
            worker.connection.close()
        self._workers.clear()
        self._selector.close()
        self._wake_socket.close()

    def condition(self, rank: int) -> system.ProcessStatus | None:
        pid = self.pid(rank) if rank in self._workers else 0
        return system.read_process_status(pid) if pid else None

    def pid(self, rank: int) -> int:
        """Return the pid of a rank; 0 if it is not known yet."""
        return self._launcher.pid(rank) if self._launcher is not None else 0

    def _renew_launcher(self, group: WorkerGroupSpec) -> Launcher:
        """Connect anew for each attempt, to a live zygote and the one that has preloaded the most."""
        if self._given_launcher is not None:
            return self._given_launcher
        if self._launcher is not None:
            self._watch(set())
            self._launcher.close()
        return choose_launcher(group.preload, group.start_method)

    def _watch(self, fds: set[int]) -> None:
        """Watch these descriptors of the launcher. Unregister closed ones before their numbers are reused."""
        for fd in self._watched_fds - fds:
            self._selector.unregister(fd)
        for fd in fds - self._watched_fds:
            self._selector.register(fd, selectors.EVENT_READ, "launcher")
        self._watched_fds = fds

    def _launch(self, spec: WorkerSpec, job: int) -> None:
        assert self._launcher is not None
        ours, theirs = socket.socketpair()
        system.make_private_dirs(spec.log.parent)
        log = os.open(spec.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            self._launcher.launch(spec.begin.rank, {**os.environ, **self._env, **spec.env}, (theirs.fileno(), log, job))
        finally:
            theirs.close()
            os.close(log)
        ours.setblocking(False)
        worker = _LocalWorker(spec.begin, ours)
        self._workers[spec.begin.rank] = worker
        self._selector.register(ours, selectors.EVENT_READ, worker)
        self.send(spec.begin.rank, spec.begin)

    def _flush(self, worker: _LocalWorker) -> None:
        try:
            send_pending(worker.connection, worker.unsent)
        except ConnectionError:
            worker.unsent.clear()  # The worker is gone; its exit reports that.
        if not worker.is_drained:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if worker.unsent else 0)
            self._selector.modify(worker.connection, events, worker)

    def _receive(self, worker: _LocalWorker, output: list[FromWorker | WorkersStopped]) -> bool:
        """Receive once; return False if there was nothing to receive."""
        try:
            data = worker.connection.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return False
        except ConnectionError:
            data = b""
        if not data:
            self._disconnect(worker)
        for payload in worker.frames.feed(data):
            message = messages.decode_from_worker(payload)
            if type(message) is messages.Reported:  # Nearly all are.
                output.append(message)
                continue
            if isinstance(message, messages.UsageReported):
                self._imported.update(message.imported)
            worker.has_reported_end = worker.has_reported_end or isinstance(
                message, messages.WorkerReturned | messages.WorkerFailed
            )
            output.append(message)
        return True

    def _handle_exits(self, exits: list[ProcessExit], output: list[FromWorker | WorkersStopped]) -> None:
        for ended in exits:
            worker = self._workers[ended.token]
            worker.exit = ended
            # Its last messages may still be in the socket, and come before the news of its exit.
            while not worker.is_drained and self._receive(worker, output):
                pass
            if not worker.is_drained:
                # A process that the worker left behind still holds the other end; the worker itself is gone.
                self._disconnect(worker)
            if not worker.has_reported_end and not worker.is_kill_requested:
                failure = self._make_failure(worker.begin.rank, ended)
                output.append(messages.WorkerFailed(worker.begin.attempt, worker.begin.rank, failure))

    def _disconnect(self, worker: _LocalWorker) -> None:
        self._selector.unregister(worker.connection)
        worker.connection.close()
        worker.is_drained = True

    def _make_failure(self, rank: int, ended: ProcessExit) -> messages.WorkerFailure:
        kind: messages.FailureKind = "exited"
        message = f"exited with code {ended.code} before its function returned"
        if ended.zygote_lost:
            kind, message = "engine", "ended because the zygote it was forked from was killed"
        elif ended.code == -signal.SIGKILL and (reason := self._memory_monitor.explain_oom_kill(rank)) is not None:
            kind, message = "memory", reason
        elif ended.code == -signal.SIGTERM:
            kind, message = "preempted", "ended by SIGTERM"
        elif ended.code < 0:
            kind, message = "killed", f"killed by {signal.Signals(-ended.code).name}"
        # JAX and NCCL watchdogs abort a process when one of its peers is gone.
        is_echo = ended.code == -signal.SIGABRT
        return messages.WorkerFailure(rank, kind, message, at=ended.at, host=self._host, collateral=is_echo)


class MemoryMonitor:
    """Evidence that the kernel killed a worker because memory ran out.

    Samples the memory of processes at intervals, and counts the kernel's OOM kills of this attempt.
    """

    def __init__(self) -> None:
        self._num_kills = system.num_oom_kills()
        self._samples: dict[int, deque[tuple[float, int]]] = {}
        self._last = 0.0

    def sample(self, ranks: Iterable[int], pid_of: Callable[[int], int]) -> None:
        now = time.monotonic()
        if now - self._last < _SAMPLE_INTERVAL_S:
            return
        self._last = now
        for rank in ranks:
            pid = pid_of(rank)
            if pid and (resident := system.resident_bytes(pid)):
                self._samples.setdefault(rank, deque(maxlen=_MAX_SAMPLES)).append((now, resident))

    def clear(self) -> None:
        """Forget an attempt. The kernel may have killed a child of a worker, which explains no later death."""
        self._samples.clear()
        self._num_kills = system.num_oom_kills()

    def explain_oom_kill(self, rank: int) -> str | None:
        kills = system.num_oom_kills()
        if kills <= self._num_kills:
            return None
        self._num_kills = kills
        return f"out of memory: killed by the kernel{_format_growth(self._samples.get(rank))}"


def _format_growth(samples: deque[tuple[float, int]] | None) -> str:
    if not samples:
        return ""
    (began, first), (ended, last) = samples[0], samples[-1]
    text = f"; it held {last / 2**30:.2f} GiB"
    if last > first and ended - began >= 1:
        text += f", {(last - first) / 2**30:.2f} GiB more than {ended - began:.0f} s before"
    return text
