"""An engine whose workers are generators: the same contract as the real ones, in microseconds and without a process.

Also `FakeClock`, a clock that moves only when told to.

A worker is a generator function that takes its `WorkerInit`, yields messages it sends, and receives those sent to it:

    def worker(begin):
        yield WorkerReady(begin.attempt, begin.rank, pid=1)
        message = yield None                # sends nothing, receives one message or None
        yield WorkerReturned(begin.attempt, begin.rank, num_reports=0)

A worker that returns without reporting its end has died, as a process would; one that raises has been killed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator

from paceline._core.system import ProcessStatus
from paceline._engine import messages
from paceline._engine.base import WorkerGroupSpec, WorkerResources
from paceline._engine.messages import FailureKind, FromWorker, ToWorker, WorkerInit, WorkersStopped

FakeWorker = Callable[[WorkerInit], Generator[FromWorker | None, ToWorker | None, None]]
"""A worker of a `FakeEngine`: it yields messages to send, or None to receive one; raising counts as being killed."""


class _FakeWorkerState:
    def __init__(self, begin: WorkerInit, worker: FakeWorker) -> None:
        self.begin = begin
        self.generator = worker(begin)
        self.inbox: deque[ToWorker] = deque()
        self.started = False
        self.is_waiting = False
        """It yielded None: it receives the next message."""
        self.has_reported_end = False
        self.is_gone = False
        self._last_messages: list[FromWorker] = []

    def take_turn(self) -> list[FromWorker]:
        """Let the worker send one message."""
        if self._last_messages:
            return [self._last_messages.pop()]
        try:
            if self.started:
                message = self.generator.send(self.inbox.popleft() if self.is_waiting and self.inbox else None)
            else:
                self.started, message = True, next(self.generator)
        except StopIteration:
            return self._make_end_messages("exited", "exited with code 0 before its function returned")
        except Exception as error:  # noqa: BLE001  the test's way to kill a worker
            return self._make_end_messages("killed", f"killed by {error}")
        self.is_waiting = message is None
        self.has_reported_end |= isinstance(message, messages.WorkerReturned | messages.WorkerFailed)
        return [message] if message is not None else []

    def kill(self, kind: FailureKind, message: str, unheard: bool) -> None:
        """End it where it is; its death is the last message from it."""
        self.generator.close()
        self.has_reported_end = self.has_reported_end and not unheard
        self._last_messages = self._make_end_messages(kind, message)

    @property
    def is_silent(self) -> bool:
        return self.is_gone and not self._last_messages

    def _make_end_messages(self, kind: FailureKind, message: str) -> list[FromWorker]:
        self.is_gone = True
        if self.has_reported_end:
            return []
        attempt, rank = self.begin.attempt, self.begin.rank
        return [messages.WorkerFailed(attempt, rank, messages.WorkerFailure(rank, kind, message))]


class FakeEngine:
    """An engine whose workers are generators in the test process; each sends one message at a time."""

    def __init__(self, worker: FakeWorker, clock: FakeClock | None = None) -> None:
        self._worker = worker
        self._clock = clock if clock is not None else FakeClock()
        self._workers: dict[int, _FakeWorkerState] = {}
        self._attempt = 0
        self._woken = False
        self.groups: list[WorkerGroupSpec] = []
        """The arguments of each `start`."""
        self.num_places: int | None = None
        """How many workers fit; None means any number."""
        self.conditions: dict[int, ProcessStatus] = {}
        """What `condition` answers for each rank."""

    waits = False

    def capacity(self, needs: WorkerResources, least: int, most: int) -> int:
        return most if self.num_places is None else min(self.num_places, most)

    def start(self, group: WorkerGroupSpec) -> None:
        assert not self._workers, "the workers of the last attempt have not been stopped"
        self.groups.append(group)
        self._attempt = group.attempt
        self._workers = {spec.begin.rank: _FakeWorkerState(spec.begin, self._worker) for spec in group.workers}

    def send(self, rank: int, message: ToWorker) -> None:
        worker = self._workers.get(rank)
        if worker is not None and not worker.is_gone:
            worker.inbox.append(message)

    def kill(
        self, rank: int, kind: FailureKind = "killed", message: str = "killed by SIGKILL", *, unheard: bool = False
    ) -> None:
        """End one worker as a signal would: a failure, unless it had reported its end and that was not `unheard`."""
        worker = self._workers.get(rank)
        if worker is not None and not worker.is_gone:
            worker.kill(kind, message, unheard)

    def stop(self, *, kill: bool) -> None:
        for rank, worker in self._workers.items():
            self.send(rank, messages.ExitWorker())
            if kill or worker.has_reported_end:
                worker.generator.close()
                worker.is_gone = True

    def wait(self, timeout_s: float | None) -> list[FromWorker | WorkersStopped]:
        received: list[FromWorker | WorkersStopped] = []
        for worker in self._workers.values():
            if not worker.is_silent:
                received += worker.take_turn()
        if self._workers and all(worker.is_silent for worker in self._workers.values()):
            self._workers.clear()
            received.append(WorkersStopped(self._attempt))
        if not received and not self._woken:
            self._clock.advance(timeout_s or 0.0)
            time.sleep(0)  # A loop that never waits would starve the thread that commits.
        self._woken = False
        return received

    def condition(self, rank: int) -> ProcessStatus | None:
        return self.conditions.get(rank)

    def wake(self) -> None:
        self._woken = True

    def close(self) -> None:
        for worker in self._workers.values():
            worker.generator.close()
        self._workers.clear()


class FakeClock:
    """A clock for tests: it stands still until `advance(seconds)` is called."""

    def __init__(self, now: float = 0.0) -> None:
        self._now = now

    def now(self) -> float:
        return self._now

    def wall(self) -> float:
        return 1_000_000_000.0 + self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds
