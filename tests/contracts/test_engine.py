"""Every engine keeps the contract: the fake one, forked workers, spawned workers."""

import os
import signal

import cloudpickle
import msgspec
import pytest

from paceline import train
from paceline._core.system import SystemClock
from paceline._engine import messages
from paceline._engine.base import WorkerGroupSpec, WorkerSpec
from paceline._engine.local.engine import LocalEngine
from paceline.testing import FakeClock, FakeEngine, Faults
from paceline.testing.contracts import EngineContract
from paceline.testing.faults.engine import FaultyEngine
from paceline.train import BackendConfig


def _raise():
    raise ValueError("planned")


def _report():
    for i in range(3):
        train.report({"i": i})


JOBS = {
    "report three times": _report,
    "raise": _raise,
    "die": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exit early": lambda: os._exit(0),
    "wait for ever": lambda: signal.pause(),
    "hold": lambda: signal.pause(),
    "join": lambda: train.collective.barrier(),
}


def specs(path, attempt, size):
    for rank in range(size):
        begin = messages.WorkerInit("run", str(path), attempt, rank, size, rank, size, 0, first_seq=0, num_threads=1)
        yield WorkerSpec(begin, path / f"rank_{rank}.log")


class TestForkedWorkers(EngineContract):
    start_method = "fork"

    @pytest.fixture(autouse=True)
    def _path(self, tmp_path):
        self.path = tmp_path

    def engine(self):
        return LocalEngine()

    def group(self, behaviour, attempt=1, size=2):
        # By value: the workers cannot import the modules of a test.
        cloudpickle.register_pickle_by_value(__import__(__name__, fromlist=["x"]))
        job = cloudpickle.dumps((JOBS[behaviour], None, BackendConfig()))
        return WorkerGroupSpec(attempt, tuple(specs(self.path, attempt, size)), job, start_method=self.start_method)


class TestSpawnedWorkers(TestForkedWorkers):
    start_method = "spawn"


@pytest.fixture
def portable(monkeypatch):
    """Without memfds, pidfds and death signals, as on macOS."""
    monkeypatch.setenv("PACELINE_PORTABLE", "1")


@pytest.mark.slow
@pytest.mark.usefixtures("portable")
class TestPortableWorkers(TestForkedWorkers):
    pass


@pytest.mark.usefixtures("portable")
def test_messages_of_each_portable_worker_arrive_in_order(tmp_path):
    forked = TestForkedWorkers()
    forked.path = tmp_path
    forked.test_messages_of_each_worker_arrive_in_order()


def fake_worker(behaviour):
    def worker(begin):
        attempt, rank = begin.attempt, begin.rank
        if behaviour == "exit early":
            return
        yield messages.WorkerReady(attempt, rank, pid=1)
        match behaviour:
            case "report three times":
                for seq in (1, 2, 3):
                    yield messages.Reported(attempt, rank, seq, msgspec.Raw(b"{}"), 0.0, "x.py:1")
            case "raise":
                yield messages.WorkerFailed(attempt, rank, messages.WorkerFailure(rank, "user", "ValueError: planned"))
            case "die":
                raise RuntimeError("SIGKILL")
            case "join":
                message = yield messages.Joined(attempt, rank, 1, "x.py:1")
                while not isinstance(message, messages.Release):
                    message = yield None
        if behaviour in ("report three times", "join"):
            yield messages.WorkerReturned(attempt, rank, num_reports=3)
        while True:
            message = yield None
            if isinstance(message, messages.Hold):
                yield messages.WorkerHeld(attempt, rank, 0)
            elif isinstance(message, messages.SampleStacks):
                frames = (messages.StackFrame("x", "wait", "x.py:1"),)
                yield messages.StacksSampled(attempt, rank, message.number, frames)

    return worker


class TestFakeEngine(EngineContract):
    @pytest.fixture(autouse=True)
    def _path(self, tmp_path):
        self.path = tmp_path
        self.behaviour = "wait for ever"

    def engine(self):
        return FakeEngine(lambda begin: fake_worker(self.behaviour)(begin))

    def group(self, behaviour, attempt=1, size=2):
        self.behaviour = behaviour
        return WorkerGroupSpec(attempt, tuple(specs(self.path, attempt, size)), b"")


def faulty(engine, clock, path):
    """An engine around another one, with no fault to strike: it has to be as good as the one inside."""
    return FaultyEngine(engine, Faults(), Faults().memory(path), clock, lose=lambda: None)


class TestFaultyFakeEngine(TestFakeEngine):
    def engine(self):
        return faulty(super().engine(), FakeClock(), self.path)


class TestFaultyForkedWorkers(TestForkedWorkers):
    def engine(self):
        return faulty(super().engine(), SystemClock(), self.path)
