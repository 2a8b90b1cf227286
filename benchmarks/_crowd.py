"""Workers by the thousand that are no processes: an engine that says what they would say, on a clock of its own.

Each reports once a second and saves now and then, ten of them in the same moment, so that the controller gets as many
messages at a time whether there are a hundred or ten thousand. The files of checkpoints are real. At a given second
some workers die, and all the others lose their connections to them. What the engine itself takes is kept apart from
what the controller does with it.
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
    StagedFiles,
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

AT_A_TIME = 10
IDLE_S = 0.02

Message = FromWorker | WorkersStopped
Line = tuple[float, list[Message] | None]
"""When something is said, and what; None: nothing before the storage thread has done its work."""


@dataclass(frozen=True)
class Plan:
    """What the workers do, in seconds of their own clock."""

    dies_at: int
    share: float
    """Of the workers that die, in the first attempt."""
    ends_at: int
    save_every: int


@dataclass
class Spent:
    """What the engine took, of the thread that called it."""

    cpu_s: float = 0.0
    wall_s: float = 0.0


@dataclass
class Moments:
    """When, in seconds that were not the engine's own."""

    steady: list[tuple[float, float, float, int]] = field(default_factory=list)
    """Of each round of reports before the death: when, CPU of this thread, CPU of the others, messages so far."""
    at: dict[str, float] = field(default_factory=dict)
    """`died`, `stopped`, `started` again, and all have reported `again`."""


class Crowd:
    def __init__(self, layout: RunLayout, clock: FakeClock, plan: Plan) -> None:
        self.spent = Spent()
        self.moments = Moments()
        self.num_told = 0
        """Messages to workers."""
        self.num_said = 0
        self._layout, self._clock, self._plan = layout, clock, plan
        self._woken = threading.Event()
        self._attempt = self._size = 0
        self.first_seq = 0
        """The report that the attempt goes on from."""
        self._answers: deque[FromWorker] = deque()
        self._lines: Iterator[Line] = iter(())
        self._next: Line | None = None
        self._killed = False
        self._committed = 0

    waits = False

    def capacity(self, needs: WorkerResources, least: int, most: int) -> int:
        return most

    def start(self, group: WorkerGroupSpec) -> None:
        if self._attempt:
            self.mark("started")
        with self._own():
            self._attempt, self._size = group.attempt, len(group.workers)
            self.first_seq = group.workers[0].begin.first_seq
            self._killed = False
            self._lines = self._life()

    def send(self, rank: int, message: ToWorker) -> None:
        self.num_told += 1
        if isinstance(message, SampleStacks):
            self._answers.append(StacksSampled(self._attempt, rank, message.number, has_moved=True))
        elif isinstance(message, CheckpointCommitted):
            self._committed = message.record.seq

    def stop(self, *, kill: bool) -> None:
        if kill:
            self.moments.at.setdefault("stopped", self._now())
        self._killed = True

    def wait(self, timeout_s: float | None) -> list[Message]:
        with self._own():
            said = self._due(math.inf if timeout_s is None else timeout_s)
        if said is None:
            # Not on the account of the simulation: a restart waits for the checkpoint to be verified.
            self._idle()
            return []
        self.num_said += len(said)
        if said and isinstance(said[0], WorkerFailed) and "died" not in self.moments.at:
            self.mark("died")
        return said

    def _due(self, timeout_s: float) -> list[Message] | None:
        """What is said next, if it is within that time; None if nobody is there to say anything."""
        if self._answers:
            answers: list[Message] = list(self._answers)
            self._answers.clear()
            return answers
        if self._next is None:
            self._next = next(self._lines, None)
        if self._next is None:
            return None
        due, said = self._next
        if said is None:
            self._next = None
            self._idle()
            return []
        after_s = max(0.0, due - self._clock.now())
        self._clock.advance(min(after_s, timeout_s))
        if after_s > timeout_s:
            return []
        self._next = None
        return said

    def _idle(self) -> None:
        """Nothing is said before the storage thread has done its work."""
        began = time.perf_counter()
        self._woken.wait(IDLE_S)
        self._woken.clear()
        self._clock.advance(time.perf_counter() - began)

    def condition(self, rank: int) -> ProcessStatus | None:
        return None

    def wake(self) -> None:
        self._woken.set()

    def close(self) -> None:
        """There is nothing to end."""

    @contextmanager
    def _own(self) -> Iterator[None]:
        cpu, wall = time.thread_time(), time.perf_counter()
        try:
            yield
        finally:
            self.spent.cpu_s += time.thread_time() - cpu
            self.spent.wall_s += time.perf_counter() - wall

    def mark(self, what: str) -> None:
        self.moments.at[what] = self._now()

    def _now(self) -> float:
        return time.perf_counter() - self.spent.wall_s

    # What an attempt says, and when

    def _life(self) -> Iterator[Line]:
        plan, attempt, began = self._plan, self._attempt, self._clock.now()
        tens = [range(at, min(at + AT_A_TIME, self._size)) for at in range(0, self._size, AT_A_TIME)]
        for ranks in tens:
            yield began, [WorkerReady(attempt, rank, rank + 1) for rank in ranks]
        ends_at = plan.dies_at if attempt == 1 else plan.ends_at
        for second in range(1, ends_at - self.first_seq + 1):
            seq = self.first_seq + second
            if self._saves(seq):
                yield from self._until_committed(seq - 1)
            for at, ranks in enumerate(tens):
                yield began + second + at / len(tens), self._reports(ranks, seq)
            if attempt == 1:
                # Just after the last message of a round was taken, before the next is asked for.
                self.moments.steady.append(self._reading())
        yield from self._until_committed(ends_at)
        if attempt == 1:
            yield from self._deaths(began + ends_at + 1, tens)
        else:
            for ranks in tens:
                yield self._clock.now(), [WorkerReturned(attempt, rank, ends_at) for rank in ranks]
        while not self._killed:
            yield self._clock.now() + 0.1, []
        yield self._clock.now(), [WorkersStopped(attempt)]

    def _saves(self, seq: int) -> bool:
        return seq % self._plan.save_every == 0

    def _until_committed(self, seq: int) -> Iterator[Line]:
        """A minute of theirs is less than a second here: the disk must not be asked for more than it would be."""
        last = seq - seq % self._plan.save_every
        while last > max(self.first_seq, self._committed):
            yield self._clock.now(), None

    def _reading(self) -> tuple[float, float, float, int]:
        cpu_s = time.thread_time()
        return self._now(), cpu_s - self.spent.cpu_s, time.process_time() - cpu_s, self.num_said

    def _reports(self, ranks: range, seq: int) -> list[Message]:
        name = checkpoint_name(seq) if self._saves(seq) else None
        metrics = msgspec.Raw(msgspec.json.encode({"step": seq, "loss": 0.25, "accuracy": 0.75, "rate": 1e-3}))
        rows = 8 * self._size * seq
        data = (("train", Cursor(row=rows, unit=seq, at=rows, chunk=8 * self._size, world=self._size)),)
        said: list[Message] = []
        for rank in ranks:
            at = self._clock.wall()
            said.append(Reported(self._attempt, rank, seq, metrics, at, "train.py:40 in train_fn", name, None, data))
            if name is not None:
                said.append(CheckpointStaged(self._attempt, seq, self._staged(rank, seq)))
        return said

    def _staged(self, rank: int, seq: int) -> StagedFiles:
        directory = self._layout.staged_rank(self._attempt, seq, rank)
        directory.mkdir(parents=True)
        path = directory / f"shard_{rank}.pt"
        path.write_bytes(b"weights")
        return StagedFiles(rank, (hash_file(path, path.name),))

    def _deaths(self, at: float, tens: list[range]) -> Iterator[Line]:
        """Some are killed; the others hear of it, and some say so first."""
        every = max(1, round(1 / self._plan.share))
        for ranks in tens:
            yield at, [self._death(rank, dead=rank % every == every - 1) for rank in ranks]

    def _death(self, rank: int, *, dead: bool) -> WorkerFailed:
        wall = self._clock.wall()
        if dead:
            failure = WorkerFailure(rank, "killed", "killed by SIGKILL", at=wall, host="node")
        else:
            told = "RuntimeError: Connection closed by peer"
            frames = ("train.py:38 in train_fn",)
            failure = WorkerFailure(rank, "user", told, at=wall + 1, frames=frames, traceback="...", collateral=True)
        return WorkerFailed(self._attempt, rank, failure)
