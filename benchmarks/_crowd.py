"""An engine that simulates thousands of workers on its own clock, without processes.

Each worker reports once a second and saves now and then. Messages come in groups of ten ranks, so the controller gets
as many at a time with a hundred workers as with ten thousand. The files of checkpoints are real. At a given second
some workers die, and the others lose their connections to them. The engine's own time is measured separately.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec

from paceline._core.checkpoint_records import StagedFiles
from paceline._core.cursor import Cursor
from paceline._core.system import ProcessStatus
from paceline._engine.base import WorkerGroupSpec, WorkerResources
from paceline._engine.messages import (
    CheckpointCommitted,
    CheckpointStaged,
    FromWorker,
    Reported,
    SampleStacks,
    StacksSampled,
    ToWorker,
    WorkerFailed,
    WorkerFailure,
    WorkerReady,
    WorkerReturned,
    WorkersStopped,
)
from paceline._storage.files import hash_file
from paceline._storage.run_layout import RunLayout, checkpoint_name
from paceline.testing import FakeClock

GROUP_SIZE = 10
IDLE_S = 0.02

Message = FromWorker | WorkersStopped
TimedMessages = tuple[float, list[Message] | None]
"""When messages arrive, and which; None: wait for the storage thread."""


@dataclass(frozen=True)
class Plan:
    """What the workers do, in seconds of the simulated clock."""

    dies_at: int
    share: float
    """The share of workers that die in the first attempt."""
    ends_at: int
    save_every: int


@dataclass
class EngineTime:
    """Time the engine itself used in the thread that called it."""

    cpu_s: float = 0.0
    wall_s: float = 0.0


@dataclass
class Timings:
    """Points in time, without the engine's own time."""

    steady: list[tuple[float, float, float, int]] = field(default_factory=list)
    """For each round of reports before the failure: time, CPU of this thread, CPU of the others, messages so far."""
    at: dict[str, float] = field(default_factory=dict)
    """`died`, `stopped`, `started` again, and `again`: all workers have reported again."""


class SimulatedEngine:
    def __init__(self, layout: RunLayout, clock: FakeClock, plan: Plan) -> None:
        self.engine_time = EngineTime()
        self.timings = Timings()
        self.num_sent = 0
        """Messages to workers."""
        self.num_received = 0
        self._layout, self._clock, self._plan = layout, clock, plan
        self._wake_event = threading.Event()
        self._attempt = self._size = 0
        self.first_seq = 0
        """The report from which the attempt resumes."""
        self._answers: deque[FromWorker] = deque()
        self._schedule: Iterator[TimedMessages] = iter(())
        self._next: TimedMessages | None = None
        self._killed = False
        self._committed = 0

    waits = False

    def capacity(self, needs: WorkerResources, least: int, most: int) -> int:
        return most

    def start(self, group: WorkerGroupSpec) -> None:
        if self._attempt:
            self.mark("started")
        with self._count_own_time():
            self._attempt, self._size = group.attempt, len(group.workers)
            self.first_seq = group.workers[0].begin.first_seq
            self._killed = False
            self._schedule = self._attempt_messages()

    def send(self, rank: int, message: ToWorker) -> None:
        self.num_sent += 1
        if isinstance(message, SampleStacks):
            self._answers.append(StacksSampled(self._attempt, rank, message.number, has_moved=True))
        elif isinstance(message, CheckpointCommitted):
            self._committed = message.record.seq

    def stop(self, *, kill: bool) -> None:
        if kill:
            self.timings.at.setdefault("stopped", self._now())
        self._killed = True

    def wait(self, timeout_s: float | None) -> list[Message]:
        with self._count_own_time():
            messages = self._next_messages(math.inf if timeout_s is None else timeout_s)
        if messages is None:
            # Not counted as engine time: a restart waits until the checkpoint is verified.
            self._idle()
            return []
        self.num_received += len(messages)
        if messages and isinstance(messages[0], WorkerFailed) and "died" not in self.timings.at:
            self.mark("died")
        return messages

    def _next_messages(self, timeout_s: float) -> list[Message] | None:
        """The next messages that are due within the timeout; None if there are no workers."""
        if self._answers:
            answers: list[Message] = list(self._answers)
            self._answers.clear()
            return answers
        if self._next is None:
            self._next = next(self._schedule, None)
        if self._next is None:
            return None
        due, messages = self._next
        if messages is None:
            self._next = None
            self._idle()
            return []
        after_s = max(0.0, due - self._clock.now())
        self._clock.advance(min(after_s, timeout_s))
        if after_s > timeout_s:
            return []
        self._next = None
        return messages

    def _idle(self) -> None:
        """Wait for the storage thread."""
        began = time.perf_counter()
        self._wake_event.wait(IDLE_S)
        self._wake_event.clear()
        self._clock.advance(time.perf_counter() - began)

    def condition(self, rank: int) -> ProcessStatus | None:
        return None

    def wake(self) -> None:
        self._wake_event.set()

    def close(self) -> None:
        """Do nothing: there are no processes to stop."""

    @contextmanager
    def _count_own_time(self) -> Iterator[None]:
        cpu, wall = time.thread_time(), time.perf_counter()
        try:
            yield
        finally:
            self.engine_time.cpu_s += time.thread_time() - cpu
            self.engine_time.wall_s += time.perf_counter() - wall

    def mark(self, what: str) -> None:
        self.timings.at[what] = self._now()

    def _now(self) -> float:
        return time.perf_counter() - self.engine_time.wall_s

    # The messages of an attempt

    def _attempt_messages(self) -> Iterator[TimedMessages]:
        plan, attempt, began = self._plan, self._attempt, self._clock.now()
        groups = [range(at, min(at + GROUP_SIZE, self._size)) for at in range(0, self._size, GROUP_SIZE)]
        for ranks in groups:
            yield began, [WorkerReady(attempt, rank, rank + 1) for rank in ranks]
        ends_at = plan.dies_at if attempt == 1 else plan.ends_at
        for second in range(1, ends_at - self.first_seq + 1):
            seq = self.first_seq + second
            if self._is_save(seq):
                yield from self._wait_for_commit(seq - 1)
            for at, ranks in enumerate(groups):
                yield began + second + at / len(groups), self._reports(ranks, seq)
            if attempt == 1:
                # After the last message of a round was handled, before the next is requested.
                self.timings.steady.append(self._read_counters())
        yield from self._wait_for_commit(ends_at)
        if attempt == 1:
            yield from self._failures(began + ends_at + 1, groups)
        else:
            for ranks in groups:
                yield self._clock.now(), [WorkerReturned(attempt, rank, ends_at) for rank in ranks]
        while not self._killed:
            yield self._clock.now() + 0.1, []
        yield self._clock.now(), [WorkersStopped(attempt)]

    def _is_save(self, seq: int) -> bool:
        return seq % self._plan.save_every == 0

    def _wait_for_commit(self, seq: int) -> Iterator[TimedMessages]:
        """Wait for commits: a simulated minute takes less than a second, and real disks are not that fast."""
        last = seq - seq % self._plan.save_every
        while last > max(self.first_seq, self._committed):
            yield self._clock.now(), None

    def _read_counters(self) -> tuple[float, float, float, int]:
        cpu_s = time.thread_time()
        return self._now(), cpu_s - self.engine_time.cpu_s, time.process_time() - cpu_s, self.num_received

    def _reports(self, ranks: range, seq: int) -> list[Message]:
        name = checkpoint_name(seq) if self._is_save(seq) else None
        metrics = msgspec.Raw(msgspec.json.encode({"step": seq, "loss": 0.25, "accuracy": 0.75, "rate": 1e-3}))
        rows = 8 * self._size * seq
        data = (("train", Cursor(row=rows, unit=seq, at=rows, chunk=8 * self._size, world=self._size)),)
        messages: list[Message] = []
        for rank in ranks:
            at = self._clock.wall()
            messages.append(
                Reported(self._attempt, rank, seq, metrics, at, "train.py:40 in train_fn", name, None, data)
            )
            if name is not None:
                messages.append(CheckpointStaged(self._attempt, seq, self._stage_files(rank, seq)))
        return messages

    def _stage_files(self, rank: int, seq: int) -> StagedFiles:
        directory = self._layout.staged_rank(self._attempt, seq, rank)
        directory.mkdir(parents=True)
        path = directory / f"shard_{rank}.pt"
        path.write_bytes(b"weights")
        return StagedFiles(rank, (hash_file(path, path.name),))

    def _failures(self, at: float, groups: list[range]) -> Iterator[TimedMessages]:
        """Some workers are killed; the others fail with a lost connection, and some of them report first."""
        every = max(1, round(1 / self._plan.share))
        for ranks in groups:
            yield at, [self._failure(rank, is_killed=rank % every == every - 1) for rank in ranks]

    def _failure(self, rank: int, *, is_killed: bool) -> WorkerFailed:
        wall = self._clock.wall()
        if is_killed:
            failure = WorkerFailure(rank, "killed", "killed by SIGKILL", at=wall, host="node")
        else:
            message = "RuntimeError: Connection closed by peer"
            frames = ("train.py:38 in train_fn",)
            failure = WorkerFailure(rank, "user", message, at=wall + 1, frames=frames, traceback="...", collateral=True)
        return WorkerFailed(self._attempt, rank, failure)
