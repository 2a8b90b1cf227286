"""What every engine has to do, as tests: subclass, say how to make the engine and its workers, and let pytest run it.

class TestMyEngine(EngineContract):
    def engine(self): ...
    def group(self, behaviour, attempt=1, size=2): ...
"""

from __future__ import annotations

import abc
import time
from typing import Literal

from paceline._engine.base import Engine, Group
from paceline._engine.messages import (
    FromWorker,
    Hold,
    Release,
    Reported,
    Sample,
    Sampled,
    WorkerFailed,
    WorkerHeld,
    WorkerReady,
    WorkerReturned,
    WorkersStopped,
)

Behaviour = Literal["report three times", "raise", "die", "exit early", "wait for ever", "hold", "join"]
"""What the workers of a contract test do: report and return; raise a ValueError; be killed by a signal; leave without
a word; never end; answer `Hold` and never end; come to one barrier and return."""

Said = list[FromWorker | WorkersStopped]


class EngineContract(abc.ABC):
    patience_s = 60.0

    @abc.abstractmethod
    def engine(self) -> Engine: ...

    @abc.abstractmethod
    def group(self, behaviour: Behaviour, attempt: int = 1, size: int = 2) -> Group: ...

    def test_each_worker_is_heard_in_its_own_order(self) -> None:
        engine = self.engine()
        engine.start(self.group("report three times"))
        said = self._hear(engine, lambda said: _count(said, WorkerReturned) == 2)
        for rank in (0, 1):
            own = [m for m in said if not isinstance(m, WorkersStopped) and getattr(m, "rank", None) == rank]
            assert [type(m) for m in own] == [WorkerReady, Reported, Reported, Reported, WorkerReturned]
            assert [m.seq for m in own if isinstance(m, Reported)] == [1, 2, 3]
        engine.stop(kill=False)
        assert self._hear(engine, _stopped) == [WorkersStopped(1)]
        engine.close()

    def test_an_exception_arrives_as_a_failure_and_the_others_stay(self) -> None:
        engine = self.engine()
        engine.start(self.group("raise"))
        said = self._hear(engine, lambda said: _count(said, WorkerFailed) == 2)
        failure = next(m.failure for m in said if isinstance(m, WorkerFailed))
        assert failure.message.startswith("ValueError")
        assert not any(isinstance(m, WorkersStopped) for m in said)
        self._end(engine)

    def test_a_worker_that_is_killed_or_leaves_without_a_word_has_failed(self) -> None:
        behaviours: tuple[tuple[Behaviour, str], ...] = (("die", "killed"), ("exit early", "exited"))
        for behaviour, kind in behaviours:
            engine = self.engine()
            engine.start(self.group(behaviour))
            said = self._hear(engine, lambda said: _count(said, WorkerFailed) == 2)
            assert {m.failure.kind for m in said if isinstance(m, WorkerFailed)} == {kind}
            engine.stop(kill=True)
            if not _stopped(said):
                self._hear(engine, _stopped)
            engine.close()

    def test_workers_that_never_end_are_ended_and_their_end_is_no_failure(self) -> None:
        engine = self.engine()
        engine.start(self.group("wait for ever"))
        self._hear(engine, lambda said: _count(said, WorkerReady) == 2)
        engine.stop(kill=True)
        engine.stop(kill=True)
        said = self._hear(engine, _stopped)
        assert said == [WorkersStopped(1)]
        engine.close()

    def test_messages_reach_the_worker_they_are_for(self) -> None:
        engine = self.engine()
        engine.start(self.group("hold"))
        self._hear(engine, lambda said: _count(said, WorkerReady) == 2)
        engine.send(1, Hold())
        said = self._hear(engine, lambda said: _count(said, WorkerHeld) == 1)
        assert [m.rank for m in said if isinstance(m, WorkerHeld)] == [1]
        engine.send(7, Hold())
        self._end(engine)

    def test_a_worker_tells_what_it_is_doing_while_its_function_runs(self) -> None:
        engine = self.engine()
        engine.start(self.group("wait for ever"))
        self._hear(engine, lambda said: _count(said, WorkerReady) == 2)
        engine.send(1, Sample(3))
        said = self._hear(engine, lambda said: _count(said, Sampled) == 1)
        sampled = next(m for m in said if isinstance(m, Sampled))
        assert (sampled.attempt, sampled.rank, sampled.number) == (1, 1, 3)
        assert sampled.main
        condition = engine.condition(1)
        assert condition is None or condition.state in ("R", "S", "D")
        assert engine.condition(7) is None
        self._end(engine)

    def test_a_barrier_lets_workers_go_on_when_it_is_released(self) -> None:
        engine = self.engine()
        engine.start(self.group("join"))
        self._hear(engine, lambda said: sum(type(m).__name__ == "Joined" for m in said) == 2)
        for rank in (0, 1):
            engine.send(rank, Release(1))
        self._hear(engine, lambda said: _count(said, WorkerReturned) == 2)
        engine.stop(kill=False)
        self._hear(engine, _stopped)
        engine.close()

    def test_a_second_group_starts_after_the_first_is_gone(self) -> None:
        engine = self.engine()
        for attempt in (1, 2, 3):
            engine.start(self.group("report three times", attempt))
            self._hear(engine, lambda said: _count(said, WorkerReturned) == 2)
            engine.stop(kill=False)
            assert self._hear(engine, _stopped)[-1] == WorkersStopped(attempt)
        engine.close()

    def test_a_wake_ends_the_wait(self) -> None:
        engine = self.engine()
        engine.wake()
        assert engine.wait(self.patience_s) == []
        engine.close()
        engine.wake()  # By another thread, which cannot know.

    def test_closing_ends_whatever_still_runs(self) -> None:
        engine = self.engine()
        engine.start(self.group("wait for ever"))
        engine.close()

    def _end(self, engine: Engine) -> None:
        engine.stop(kill=True)
        self._hear(engine, _stopped)
        engine.close()

    def _hear(self, engine: Engine, enough: object) -> Said:
        assert callable(enough)
        said: Said = []
        deadline = time.monotonic() + self.patience_s
        while not enough(said):
            assert time.monotonic() < deadline, f"waited in vain, heard {said}"
            said += engine.wait(1.0)
        return said


def _count(said: Said, kind: type) -> int:
    return sum(isinstance(message, kind) for message in said)


def _stopped(said: Said) -> bool:
    return any(isinstance(message, WorkersStopped) for message in said)
