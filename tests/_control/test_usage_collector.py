"""How ranks are polled for their usage, and when it is recorded."""

from concurrent.futures import Future
from itertools import pairwise
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from _control.controller_runs import RecordingObserver, drive
from paceline._control.events import RunDescribed, StageUse, UsageMeasured, WorkersStopped
from paceline._control.extensions import DescriptionRecorder, HangWatch
from paceline._control.run import Finished, RankProgress, Run, Running
from paceline._control.usage_collector import AT_LAST_EVERY_S, EVERY_S, UsageCollector, poll_interval_s
from paceline._engine.messages import (
    MeasureUsage,
    RankUsage,
    StacksSampled,
    UsageReported,
    WorkerFailed,
    WorkerFailure,
    WorkerReady,
    WorkerReturned,
)
from paceline.testing import FakeClock


def measured(events):
    return [event for event in events if isinstance(event, UsageMeasured)]


def answering(begin, times):
    """A worker that answers so often; what it used is the number of the answer."""
    yield WorkerReady(begin.attempt, begin.rank, 1)
    for number in range(1, times + 1):
        while not isinstance((yield None), MeasureUsage):
            pass
        yield UsageReported(begin.attempt, RankUsage(begin.rank, cpu_s=number))


def test_all_ranks_are_polled_regularly_and_each_round_of_answers_is_one_event(tmp_path):
    """With what stages of datasets did, and observers see it too."""
    stages = (StageUse("train", "read", 10, limits=True),)

    def worker(begin):
        yield from answering(begin, 3)
        yield WorkerReturned(begin.attempt, begin.rank, 0)

    observer = RecordingObserver()
    polling = UsageCollector(lambda: (stages, True))
    run, events, _ = drive(tmp_path, worker, extensions=[polling], observers=[observer])
    assert run.phase == Finished("complete")
    notes = measured(events)
    assert [[(use.rank, use.cpu_s) for use in each.ranks] for each in notes] == [[(0, n), (1, n)] for n in (1, 2, 3)]
    assert [(each.stages, each.consumers_wait) for each in notes] == 3 * [(stages, True)]
    assert all(later.at - sooner.at >= EVERY_S for sooner, later in pairwise(notes))
    assert measured(observer.events) == notes


def test_ranks_are_polled_every_two_seconds_and_the_answers_of_one_second_are_one_event():
    clock, sent, notes = FakeClock(), [], []
    run = Run(size=2, attempt=1, phase=Running(RankProgress.start_at(2, 0)))
    engine = SimpleNamespace(waits=False)
    collector = UsageCollector()
    collector.attach(
        SimpleNamespace(clock=clock, run=run, engine=engine, broadcast=sent.append, record_note=notes.append)
    )
    collector.on_attempt_started(2)
    for after_s, num_sent in ((0.0, 0), (1.875, 0), (0.125, 1), (1.875, 1), (0.125, 2)):
        clock.advance(after_s)
        collector.poll()
        assert len(sent) == num_sent
    for rank, after_s, num_notes in ((0, 0.0, 0), (None, 0.875, 0), (None, 0.125, 1), (1, 0.0, 1), (0, 0.0, 2)):
        if rank is not None:
            collector.on_message(UsageReported(1, RankUsage(rank)))
        clock.advance(after_s)
        collector.poll()
        assert len(notes) == num_notes
    engine.waits = True
    clock.advance(EVERY_S)
    collector.poll()
    assert len(sent) == 2, "no rank can answer"


def test_a_rank_that_does_not_answer_does_not_block_the_others(tmp_path):
    def worker(begin):
        if begin.rank == 0:
            yield from answering(begin, 2)
        else:
            yield WorkerReady(begin.attempt, begin.rank, 1)
            for _ in range(60):
                yield None
        yield WorkerReturned(begin.attempt, begin.rank, 0)

    _, events, _ = drive(tmp_path, worker, extensions=[UsageCollector()])
    assert [[use.rank for use in each.ranks] for each in measured(events)] == [[0], [0]]
    assert not any(each.consumers_wait for each in measured(events)), "there are no datasets"


def test_usage_sent_at_the_end_of_an_attempt_is_recorded_for_that_attempt(tmp_path):
    """Also where their end, and the beginning of the next, is heard in the same breath."""

    def worker(begin):
        yield WorkerReady(begin.attempt, begin.rank, 1)
        if begin.rank == 0:  # the other one is killed before it can
            yield UsageReported(begin.attempt, RankUsage(begin.rank, wall_s=begin.attempt))
        if begin.attempt == 1:
            yield WorkerFailed(begin.attempt, begin.rank, WorkerFailure(begin.rank, "killed", "killed by SIGKILL"))
        yield WorkerReturned(begin.attempt, begin.rank, 0)

    run, events, _ = drive(tmp_path, worker, max_failures=1, extensions=[UsageCollector()])
    assert run.phase == Finished("complete")
    notes = measured(events)
    assert [(each.attempt, use.rank, use.wall_s) for each in notes for use in each.ranks] == [(1, 0, 1), (2, 0, 2)]
    ended = [event.attempt for event in events if isinstance(event, WorkersStopped | UsageMeasured)]
    assert ended == sorted(ended)


def test_messages_of_an_earlier_attempt_are_ignored(tmp_path):
    def worker(begin):
        yield WorkerReady(begin.attempt, begin.rank, 1)
        yield UsageReported(begin.attempt - 1, RankUsage(begin.rank))
        yield StacksSampled(begin.attempt - 1, 7, 1)
        yield WorkerReturned(begin.attempt, begin.rank, 0)

    run, events, _ = drive(tmp_path, worker, extensions=[HangWatch(None, "warn", "/storage"), UsageCollector()])
    assert run.phase == Finished("complete")
    assert measured(events) == []


def returning(begin):
    yield WorkerReady(begin.attempt, begin.rank, 1)
    yield WorkerReturned(begin.attempt, begin.rank, 0)


@pytest.mark.parametrize("outcome", [RunDescribed(msgspec.Raw(b'{"config":{}}')), None, ValueError("no")])
def test_a_description_is_written_once_and_without_one_the_run_goes_on(tmp_path, outcome, caplog):
    making = Future()
    if isinstance(outcome, Exception):
        making.set_exception(outcome)
    else:
        making.set_result(outcome)
    run, events, _ = drive(tmp_path, returning, extensions=[DescriptionRecorder(making)])
    assert run.phase == Finished("complete")
    described = [event for event in events if isinstance(event, RunDescribed)]
    assert described == ([outcome] if isinstance(outcome, RunDescribed) else [])
    assert ("DescriptionRecorder failed" in caplog.text) == isinstance(outcome, Exception)


@given(st.integers(1, 10_000), st.floats(0, 1e6))
def test_more_ranks_or_an_older_attempt_are_never_asked_more_often(size, age_s):
    assert [poll_interval_s(*each) for each in ((1, 0), (1, 900), (1, 1e6), (400, 0))] == [2, 3, 10, 20]
    notes = poll_interval_s(size, age_s)
    assert EVERY_S <= notes <= max(AT_LAST_EVERY_S, 0.05 * size)
    assert poll_interval_s(size + 1, age_s) >= notes
    assert poll_interval_s(size, age_s + 1) >= notes
