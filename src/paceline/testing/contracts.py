"""What every engine must do, as tests: subclass, define how to make the engine and its workers, and run pytest.

class TestMyEngine(EngineContract):
    def engine(self): ...

    def group(self, behaviour, attempt=1, size=2): ...
"""

from __future__ import annotations

import abc
import time
from collections.abc import Callable
from typing import Literal

from paceline._engine import messages as kinds
from paceline._engine.base import Engine, WorkerGroupSpec
from paceline._engine.messages import FromWorker, WorkerFailed, WorkerReady, WorkerReturned, WorkersStopped

Behaviour = Literal["report three times", "raise", "die", "exit early", "wait for ever", "hold", "join"]
"""What the workers of a contract test do: report and return; raise a ValueError; get killed by a signal; exit without a
message; never end; answer `Hold` and never end; enter one barrier and return.
"""

EngineMessages = list[FromWorker | WorkersStopped]


class EngineContract(abc.ABC):
    patience_s = 60.0

    @abc.abstractmethod
    def engine(self) -> Engine: ...

    @abc.abstractmethod
    def group(self, behaviour: Behaviour, attempt: int = 1, size: int = 2) -> WorkerGroupSpec: ...

    def test_messages_of_each_worker_arrive_in_order(self) -> None:
        engine, messages = self._start("report three times", WorkerReturned)
        for rank in (0, 1):
            of_rank = [m for m in messages if not isinstance(m, WorkersStopped) and getattr(m, "rank", None) == rank]
            assert [type(m) for m in of_rank] == [WorkerReady, *[kinds.Reported] * 3, WorkerReturned]
            assert [m.seq for m in of_rank if isinstance(m, kinds.Reported)] == [1, 2, 3]
        assert self._stop_engine(engine, kill=False) == [WorkersStopped(1)]

    def test_an_exception_arrives_as_a_failure_and_the_others_stay(self) -> None:
        engine, messages = self._start("raise", WorkerFailed)
        failure = next(m.failure for m in messages if isinstance(m, WorkerFailed))
        assert failure.message.startswith("ValueError")
        assert not any(isinstance(m, WorkersStopped) for m in messages)
        self._stop_engine(engine)

    def test_a_worker_that_is_killed_or_exits_early_has_failed(self) -> None:
        behaviours: tuple[tuple[Behaviour, str], ...] = (("die", "killed"), ("exit early", "exited"))
        for behaviour, kind in behaviours:
            engine, messages = self._start(behaviour, WorkerFailed)
            assert {m.failure.kind for m in messages if isinstance(m, WorkerFailed)} == {kind}
            engine.stop(kill=True)
            if not _has_stopped(messages):
                self._wait_until(engine, _has_stopped)
            engine.close()

    def test_workers_that_never_end_are_ended_and_their_end_is_no_failure(self) -> None:
        engine, _ = self._start("wait for ever", WorkerReady)
        engine.stop(kill=True)
        assert self._stop_engine(engine) == [WorkersStopped(1)]

    def test_messages_reach_the_worker_they_are_for(self) -> None:
        engine, _ = self._start("hold", WorkerReady)
        engine.send(1, kinds.Hold())
        messages = self._wait_until(engine, lambda messages: _count_messages(messages, kinds.WorkerHeld) == 1)
        assert [m.rank for m in messages if isinstance(m, kinds.WorkerHeld)] == [1]
        engine.send(7, kinds.Hold())
        self._stop_engine(engine)

    def test_a_worker_reports_its_stacks_while_its_function_runs(self) -> None:
        engine, _ = self._start("wait for ever", WorkerReady)
        engine.send(1, kinds.SampleStacks(3))
        messages = self._wait_until(engine, lambda messages: _count_messages(messages, kinds.StacksSampled) == 1)
        sampled = next(m for m in messages if isinstance(m, kinds.StacksSampled))
        assert (sampled.attempt, sampled.rank, sampled.number) == (1, 1, 3)
        assert sampled.main
        condition = engine.condition(1)
        assert condition is None or condition.state in ("R", "S", "D")
        assert engine.condition(7) is None
        self._stop_engine(engine)

    def test_a_released_barrier_lets_workers_continue(self) -> None:
        engine = self.engine()
        engine.start(self.group("join"))
        self._wait_until(engine, lambda messages: sum(type(m).__name__ == "Joined" for m in messages) == 2)
        for rank in (0, 1):
            engine.send(rank, kinds.Release(1))
        self._wait_until(engine, lambda messages: _count_messages(messages, WorkerReturned) == 2)
        self._stop_engine(engine, kill=False)

    def test_a_second_group_starts_after_the_first_has_stopped(self) -> None:
        engine = self.engine()
        for attempt in (1, 2, 3):
            engine.start(self.group("report three times", attempt))
            self._wait_until(engine, lambda messages: _count_messages(messages, WorkerReturned) == 2)
            engine.stop(kill=False)
            assert self._wait_until(engine, _has_stopped)[-1] == WorkersStopped(attempt)
        engine.close()

    def test_a_wake_ends_the_wait(self) -> None:
        engine = self.engine()
        engine.wake()
        assert engine.wait(self.patience_s) == []
        engine.close()
        engine.wake()  # As another thread might, which cannot know that the engine is closed.

    def test_closing_ends_whatever_still_runs(self) -> None:
        engine = self.engine()
        engine.start(self.group("wait for ever"))
        engine.close()

    def _start(self, behaviour: Behaviour, kind: type) -> tuple[Engine, EngineMessages]:
        """Start two workers, and wait for a message of this kind from both."""
        engine = self.engine()
        engine.start(self.group(behaviour))
        return engine, self._wait_until(engine, lambda messages: _count_messages(messages, kind) == 2)

    def _stop_engine(self, engine: Engine, *, kill: bool = True) -> EngineMessages:
        engine.stop(kill=kill)
        messages = self._wait_until(engine, _has_stopped)
        engine.close()
        return messages

    def _wait_until(self, engine: Engine, enough: Callable[[EngineMessages], bool]) -> EngineMessages:
        messages: EngineMessages = []
        deadline = time.monotonic() + self.patience_s
        while not enough(messages):
            assert time.monotonic() < deadline, f"timed out, received {messages}"
            messages += engine.wait(1.0)
        return messages


def _count_messages(messages: EngineMessages, kind: type) -> int:
    return sum(isinstance(message, kind) for message in messages)


def _has_stopped(messages: EngineMessages) -> bool:
    return any(isinstance(message, WorkersStopped) for message in messages)
