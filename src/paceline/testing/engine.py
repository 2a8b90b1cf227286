"""An engine whose workers are generators: the same contract as the real ones, in microseconds and without a process.

A worker is a generator function that takes its `Begin`, yields what the worker says, and is given what it is told:

    def worker(begin):
        yield WorkerReady(begin.attempt, begin.rank, pid=1)
        told = yield None                  # waits: nothing to say, hears one message or None
        yield WorkerReturned(begin.attempt, begin.rank, num_reports=0)

One that returns before it has said how it ended has died, as a process would; one that raises has been killed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator

from paceline._core.system import Condition
from paceline._engine.base import Group, Needs
from paceline._engine.messages import (
    Begin,
    Exit,
    Failure,
    FailureKind,
    FromWorker,
    ToWorker,
    WorkerFailed,
    WorkerReturned,
    WorkersStopped,
)
from paceline.testing.clock import FakeClock

FakeWorker = Callable[[Begin], Generator[FromWorker | None, ToWorker | None, None]]
"""A worker of a `FakeEngine`: it yields what it says, or None to hear what it is told; to raise is to be killed."""


class _Worker:
    def __init__(self, begin: Begin, worker: FakeWorker) -> None:
        self.begin = begin
        self.generator = worker(begin)
        self.told: deque[ToWorker] = deque()
        self.started = False
        self.waits = False
        """Its last word was None: it hears what it is told."""
        self.spoken = False
        self.gone = False
        self._last: list[FromWorker] = []

    def turn(self) -> list[FromWorker]:
        """Let the worker say one thing."""
        if self._last:
            return [self._last.pop()]
        try:
            if self.started:
                said = self.generator.send(self.told.popleft() if self.waits and self.told else None)
            else:
                self.started, said = True, next(self.generator)
        except StopIteration:
            return self._ended("exited", "exited with code 0 before its function returned")
        except Exception as error:  # noqa: BLE001  the test's way to kill a worker
            return self._ended("killed", f"killed by {error}")
        self.waits = said is None
        self.spoken = self.spoken or isinstance(said, WorkerReturned | WorkerFailed)
        return [said] if said is not None else []

    def kill(self, kind: FailureKind, message: str, unheard: bool) -> None:
        """End it where it stands; its death is the last that is heard of it."""
        self.generator.close()
        self.spoken = self.spoken and not unheard
        self._last = self._ended(kind, message)

    @property
    def silent(self) -> bool:
        return self.gone and not self._last

    def _ended(self, kind: FailureKind, message: str) -> list[FromWorker]:
        self.gone = True
        if self.spoken:
            return []
        begin = self.begin
        failure = Failure(begin.rank, kind, message)
        return [WorkerFailed(begin.attempt, begin.rank, failure)]


class FakeEngine:
    """An engine whose workers are generators of the test, each let to say one thing at a time, in this process."""

    def __init__(self, worker: FakeWorker, clock: FakeClock | None = None) -> None:
        self._worker = worker
        self._clock = clock if clock is not None else FakeClock()
        self._workers: dict[int, _Worker] = {}
        self._attempt = 0
        self._woken = False
        self.groups: list[Group] = []
        """What `start` was called with."""
        self.num_places: int | None = None
        """How many workers there is room for; None: any number."""
        self.conditions: dict[int, Condition] = {}
        """What the system would say of a rank's process, for `condition` to answer."""

    waits = False

    def capacity(self, needs: Needs, least: int, most: int) -> int:
        return most if self.num_places is None else min(self.num_places, most)

    def start(self, group: Group) -> None:
        assert not self._workers, "the workers of the last attempt have not been stopped"
        self.groups.append(group)
        self._attempt = group.attempt
        self._workers = {spec.begin.rank: _Worker(spec.begin, self._worker) for spec in group.workers}

    def send(self, rank: int, message: ToWorker) -> None:
        worker = self._workers.get(rank)
        if worker is not None and not worker.gone:
            worker.told.append(message)

    def kill(
        self,
        rank: int,
        kind: FailureKind = "killed",
        message: str = "killed by SIGKILL",
        *,
        unheard: bool = False,
    ) -> None:
        """End one worker as a signal would; it is told as a failure, unless it had said how it ended.

        `unheard`: what it said last did not arrive.
        """
        worker = self._workers.get(rank)
        if worker is not None and not worker.gone:
            worker.kill(kind, message, unheard)

    def stop(self, *, kill: bool) -> None:
        for rank, worker in self._workers.items():
            self.send(rank, Exit())
            if kill or worker.spoken:
                worker.generator.close()
                worker.gone = True

    def wait(self, timeout_s: float | None) -> list[FromWorker | WorkersStopped]:
        said: list[FromWorker | WorkersStopped] = []
        for worker in self._workers.values():
            if not worker.silent:
                said += worker.turn()
        if self._workers and all(worker.silent for worker in self._workers.values()):
            self._workers.clear()
            said.append(WorkersStopped(self._attempt))
        if not said and not self._woken:
            self._clock.advance(timeout_s or 0.0)
            time.sleep(0)  # A loop that never waits would keep the interpreter from the thread that commits.
        self._woken = False
        return said

    def condition(self, rank: int) -> Condition | None:
        return self.conditions.get(rank)

    def wake(self) -> None:
        self._woken = True

    def close(self) -> None:
        for worker in self._workers.values():
            worker.generator.close()
        self._workers.clear()
