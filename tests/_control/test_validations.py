"""Validations on the fake engine and the fake clock: how one is tried, timed and told."""

import msgspec
import pytest

from paceline._control.commands import StartValidation
from paceline._control.events import ValidationEnded
from paceline._control.validation_runner import EXIT_TIMEOUT_S, START_TIMEOUT_S, ValidationRunner, ValidationSetup
from paceline._engine.base import WorkerGroupSpec, WorkerSpec
from paceline._engine.messages import (
    CheckpointRecord,
    ExitWorker,
    WorkerFailed,
    WorkerFailure,
    WorkerInit,
    WorkerReady,
    WorkerReturned,
)
from paceline.testing import FakeClock, FakeEngine

RECORD = CheckpointRecord(3, "checkpoint_000003", 2, msgspec.Raw(b"{}"))
FOUND = msgspec.Raw(b'{"accuracy":0.5}')


class Beside:
    """Validations of one kind of worker, and a controller that looks in now and then."""

    def __init__(self, worker, *, timeout_s=None, max_retries=0, is_retried=lambda failed: True):
        self.clock = FakeClock()
        self.engine = FakeEngine(worker, self.clock)
        validator = ValidationSetup(lambda: self.engine, self.group, lambda record: timeout_s, max_retries, is_retried)
        self.validations = ValidationRunner(validator, self.clock)

    def group(self, record, number):
        begin = WorkerInit("run", "run", number, 0, 1, 0, 1, 0, 0, 1)
        return WorkerGroupSpec(number, (WorkerSpec(begin, record.name),), b"")

    def told(self, record=RECORD, *, within=10):
        """What is told of a validation, looked for that often."""
        self.validations.start(StartValidation(record))
        for _ in range(within):
            if news := self.validations.take_ended():
                return news
        return []

    def news_of_two_looks(self):
        return [*self.validations.take_ended(), *self.validations.take_ended()]

    @property
    def num_tries(self):
        return len(self.engine.groups)


def returns(begin):
    yield WorkerReady(begin.attempt, 0, 1)
    yield WorkerReturned(begin.attempt, 0, 0, value=FOUND)
    while not isinstance((yield None), ExitWorker):
        pass


def dies(begin):
    yield WorkerReady(begin.attempt, 0, 1)
    raise RuntimeError("SIGKILL")


def raises(begin):
    frames = ("lib.py:1 in load", "mine.py:7 in validate")
    yield WorkerFailed(begin.attempt, 0, WorkerFailure(0, "user", "ValueError: no", frames=frames))
    while True:
        yield None


def hangs(begin):
    yield WorkerReady(begin.attempt, 0, 1)
    while True:
        yield None


def never_starts(begin):
    while True:
        yield None


def ended(status, metrics=b"{}", problem=""):
    return ValidationEnded(2, 3, "checkpoint_000003", status, msgspec.Raw(metrics), problem)


def test_what_it_returned_is_told_once_and_the_next_may_start():
    beside = Beside(returns)
    assert beside.told() == [ended("VALIDATED", FOUND)]
    assert beside.validations.take_ended() == []
    assert beside.told() == [ended("VALIDATED", FOUND)]
    assert [group.attempt for group in beside.engine.groups] == [1, 2]


RAISED = ended("VALIDATION_FAILED", problem="ValueError: no, at mine.py:7 in validate")
KILLED = ended("VALIDATION_FAILED", problem="killed by SIGKILL")


@pytest.mark.parametrize(
    ("worker", "max_retries", "told", "num_tries"),
    [(raises, 0, RAISED, 1), (dies, 0, KILLED, 1), (dies, 3, KILLED, 4), (raises, 3, RAISED, 1)],
)
def test_a_failure_is_told_with_the_users_line_and_tried_again_if_it_is_of_that_kind(
    worker, max_retries, told, num_tries
):
    beside = Beside(worker, max_retries=max_retries, is_retried=lambda failed: failed.failure.kind == "killed")
    assert beside.told(within=50) == [told]
    assert beside.num_tries == num_tries


def test_time_counts_from_when_the_function_begins():
    beside = Beside(hangs, timeout_s=5)
    beside.clock.advance(1)
    assert beside.told(within=1) == []
    beside.clock.advance(4.9)
    assert beside.validations.take_ended() == []
    beside.clock.advance(0.1)
    problem = "it took longer than 5 s and was ended"
    assert beside.news_of_two_looks() == [ended("VALIDATION_TIMEOUT", problem=problem)]


def test_one_that_never_begins_is_ended_too():
    beside = Beside(never_starts, timeout_s=5)
    assert beside.told() == []
    beside.clock.advance(START_TIMEOUT_S + 5)
    assert [event.status for event in beside.news_of_two_looks()] == ["VALIDATION_TIMEOUT"]


def test_all_tries_together_have_the_time_of_one():
    def worker(begin):
        yield WorkerReady(begin.attempt, 0, 1)
        beside.clock.advance(2)
        raise RuntimeError("SIGKILL")

    beside = Beside(worker, timeout_s=5, max_retries=-1)
    assert beside.told(within=50) == [KILLED]
    assert beside.num_tries == 3, "the third ended after six seconds"


def test_one_that_returned_and_does_not_leave_is_ended_and_what_it_returned_counts():
    beside = Beside(returns)
    stop, asked = beside.engine.stop, []

    def stop_only_by_killing(*, kill):
        asked.append(kill)
        if kill:
            stop(kill=True)

    beside.engine.stop = stop_only_by_killing
    assert beside.told() == []
    beside.clock.advance(EXIT_TIMEOUT_S)
    assert beside.news_of_two_looks() == [ended("VALIDATED", FOUND)]
    assert asked == [False, True]


def test_one_that_cannot_be_started_is_a_failure_of_its_own_and_not_of_the_run():
    beside = Beside(returns)
    beside.engine.start = lambda group: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    problem = "it could not start: [Errno 28] No space left on device"
    assert beside.told() == [ended("VALIDATION_FAILED", problem=problem)]


def test_closed_in_the_middle_it_tells_nothing():
    beside = Beside(hangs)
    assert beside.told() == []
    beside.validations.close()
    assert beside.engine._workers == {}
