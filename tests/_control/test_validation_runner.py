"""Validations on the fake engine and the fake clock: retries, timeouts and results."""

import msgspec
import pytest

from paceline._control.commands import StartValidation, StopWorkers
from paceline._control.events import ValidationEnded
from paceline._control.validation_runner import EXIT_TIMEOUT_S, START_TIMEOUT_S, ValidationRunner, ValidationSetup
from paceline._core.checkpoint_records import CheckpointRecord
from paceline._engine import messages
from paceline._engine.base import WorkerGroupSpec, WorkerSpec
from paceline.testing import FakeClock, FakeEngine

RECORD = CheckpointRecord(3, "checkpoint_000003", 2, msgspec.Raw(b"{}"))
METRICS = msgspec.Raw(b'{"accuracy":0.5}')


class ValidationRuns:
    """Validations of one kind of worker, and a controller that looks in now and then."""

    def __init__(self, worker, *, timeout_s=None, max_retries=0, is_retried=lambda failed: True):
        self.clock = FakeClock()
        self.engine = FakeEngine(worker, self.clock)
        setup = ValidationSetup(lambda: self.engine, self.group, lambda record: timeout_s, max_retries, is_retried)
        self.runner = ValidationRunner(setup, self.clock)

    def group(self, record, number):
        begin = messages.WorkerInit("run", "run", number, 0, 1, 0, 1, 0, 0, 1)
        return WorkerGroupSpec(number, (WorkerSpec(begin, record.name),), b"")

    def run_one(self, record=RECORD, *, within=10):
        """Run one validation; return its events within so many polls."""
        assert self.runner.execute(StartValidation(record))
        for _ in range(within):
            if news := self.runner.poll():
                return news
        return []

    def poll_twice(self):
        return [*self.runner.poll(), *self.runner.poll()]

    @property
    def num_tries(self):
        return len(self.engine.groups)


def returns(begin):
    yield messages.WorkerReady(begin.attempt, 0, 1)
    yield messages.WorkerReturned(begin.attempt, 0, 0, value=METRICS)
    while not isinstance((yield None), messages.ExitWorker):
        pass


def dies(begin):
    yield messages.WorkerReady(begin.attempt, 0, 1)
    raise RuntimeError("SIGKILL")


def raises(begin):
    frames = ("lib.py:1 in load", "mine.py:7 in validate")
    yield messages.WorkerFailed(begin.attempt, 0, messages.WorkerFailure(0, "user", "ValueError: no", frames=frames))
    while True:
        yield None


def hangs(begin):
    yield messages.WorkerReady(begin.attempt, 0, 1)
    while True:
        yield None


def never_starts(begin):
    while True:
        yield None


def ended(status, metrics=b"{}", problem=""):
    return ValidationEnded(2, 3, "checkpoint_000003", status, msgspec.Raw(metrics), problem)


def test_the_result_is_returned_once_and_the_next_validation_may_start():
    runs = ValidationRuns(returns)
    assert runs.run_one() == [ended("VALIDATED", METRICS)]
    assert runs.runner.poll() == []
    assert runs.run_one() == [ended("VALIDATED", METRICS)]
    assert [group.attempt for group in runs.engine.groups] == [1, 2]


RAISED = ended("VALIDATION_FAILED", problem="ValueError: no, at mine.py:7 in validate")
KILLED = ended("VALIDATION_FAILED", problem="killed by SIGKILL")


@pytest.mark.parametrize(
    ("worker", "max_retries", "expected", "num_tries"),
    [(raises, 0, RAISED, 1), (dies, 0, KILLED, 1), (dies, 3, KILLED, 4), (raises, 3, RAISED, 1)],
)
def test_a_failure_names_the_users_line_and_is_retried_if_its_kind_is(worker, max_retries, expected, num_tries):
    runs = ValidationRuns(worker, max_retries=max_retries, is_retried=lambda failed: failed.failure.kind == "killed")
    assert runs.run_one(within=50) == [expected]
    assert runs.num_tries == num_tries


def test_the_timeout_counts_from_the_start_of_the_function():
    runs = ValidationRuns(hangs, timeout_s=5)
    runs.clock.advance(1)
    assert runs.run_one(within=1) == []
    runs.clock.advance(4.9)
    assert runs.runner.poll() == []
    runs.clock.advance(0.1)
    problem = "stopped after its timeout of 5 s"
    assert runs.poll_twice() == [ended("VALIDATION_TIMEOUT", problem=problem)]


def test_a_validation_that_never_starts_times_out():
    runs = ValidationRuns(never_starts, timeout_s=5)
    assert runs.run_one() == []
    runs.clock.advance(START_TIMEOUT_S + 5 - 0.125)
    assert runs.poll_twice() == []
    runs.clock.advance(0.125)
    assert [event.status for event in runs.poll_twice()] == ["VALIDATION_TIMEOUT"]


def test_all_tries_share_one_timeout():
    def worker(begin):
        yield messages.WorkerReady(begin.attempt, 0, 1)
        runs.clock.advance(2)
        raise RuntimeError("SIGKILL")

    runs = ValidationRuns(worker, timeout_s=5, max_retries=-1)
    assert runs.run_one(within=50) == [KILLED]
    assert runs.num_tries == 3, "the third ended after six seconds"


def test_a_worker_that_returned_and_does_not_exit_is_killed_and_its_result_counts():
    runs = ValidationRuns(returns)
    stop, kills = runs.engine.stop, []

    def stop_only_by_killing(*, kill):
        kills.append(kill)
        if kill:
            stop(kill=True)

    runs.engine.stop = stop_only_by_killing
    assert runs.run_one() == []
    runs.clock.advance(EXIT_TIMEOUT_S)
    assert runs.poll_twice() == [ended("VALIDATED", METRICS)]
    assert kills == [False, True]


def test_a_validation_that_cannot_start_fails_without_failing_the_run():
    runs = ValidationRuns(returns)
    runs.engine.start = lambda group: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    problem = "cannot start: [Errno 28] No space left on device"
    assert runs.run_one() == [ended("VALIDATION_FAILED", problem=problem)]


def test_other_commands_are_left_to_others():
    assert not ValidationRuns(returns).runner.execute(StopWorkers(1, kill=True))


def test_a_closed_runner_returns_no_event():
    runs = ValidationRuns(hangs)
    assert runs.run_one() == []
    runs.runner.close()
    assert runs.engine._workers == {}
