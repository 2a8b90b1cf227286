"""How ranks are asked what they use, and when that is written down."""

from concurrent.futures import Future
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline._control import journal
from paceline._control.controller import Controller
from paceline._control.events import Described, DriverStarted, Measured, StageUse, WorkersStopped
from paceline._control.journal import Journal
from paceline._control.run import Finished, Run
from paceline._control.vitals import AT_LAST_EVERY_S, EVERY_S, Vitals, interval_s
from paceline._engine.base import Group, WorkerSpec
from paceline._engine.messages import Begin, Failure, Measure, RankUse, Used, WorkerFailed, WorkerReady, WorkerReturned
from paceline._storage.depot import DiskDepot
from paceline._storage.files import LocalFiles
from paceline._storage.layout import Layout
from paceline.testing import FakeClock, FakeEngine


def drive(tmp_path, worker, *, size=2, max_failures=0, vitals=None, described=None, observers=()):
    layout, clock = Layout(tmp_path), FakeClock()

    def group(command, run):
        begins = [
            Begin("run", str(tmp_path), command.attempt, rank, size, rank, size, 0, run.num_reports, 1)
            for rank in range(size)
        ]
        return Group(command.attempt, tuple(WorkerSpec(begin, tmp_path / "log") for begin in begins), b"")

    book = Journal(layout.journal)
    controller = Controller(
        Run(),
        journal=book,
        engine=FakeEngine(worker, clock),
        depot=DiskDepot(LocalFiles(), layout),
        group=group,
        clock=clock,
        vitals=vitals if vitals is not None else Vitals(),
        described=described,
        observers=observers,
    )
    run = controller.drive(DriverStarted(size, max_failures))
    book.close()
    return run, journal.read(layout.journal)


def measured(events):
    return [event for event in events if isinstance(event, Measured)]


def answering(begin, times):
    """A worker that answers so often; what it used is the number of the answer."""
    yield WorkerReady(begin.attempt, begin.rank, 1)
    for number in range(1, times + 1):
        while not isinstance((yield None), Measure):
            pass
        yield Used(begin.attempt, RankUse(begin.rank, cpu_s=number))


def test_all_ranks_are_asked_again_and_again_and_each_answer_of_all_is_one_line(tmp_path):
    def worker(begin):
        yield from answering(begin, 3)
        yield WorkerReturned(begin.attempt, begin.rank, 0)

    run, events = drive(tmp_path, worker)
    assert run.phase == Finished("complete")
    told = measured(events)
    assert [[(use.rank, use.cpu_s) for use in each.ranks] for each in told] == [[(0, n), (1, n)] for n in (1, 2, 3)]
    times = [each.at for each in told]
    assert all(later - sooner >= EVERY_S for sooner, later in pairwise(times))


def test_one_that_does_not_answer_keeps_nobody_from_being_told(tmp_path):
    def worker(begin):
        if begin.rank == 0:
            yield from answering(begin, 2)
        else:
            yield WorkerReady(begin.attempt, begin.rank, 1)
            for _ in range(60):
                yield None
        yield WorkerReturned(begin.attempt, begin.rank, 0)

    _, events = drive(tmp_path, worker)
    assert [[use.rank for use in each.ranks] for each in measured(events)] == [[0], [0]]


def test_what_workers_say_unasked_at_their_end_is_told_of_their_own_attempt(tmp_path):
    """Also where their end, and the beginning of the next, is heard in the same breath."""

    def worker(begin):
        yield WorkerReady(begin.attempt, begin.rank, 1)
        if begin.rank == 0:  # the other one is killed before it can
            yield Used(begin.attempt, RankUse(begin.rank, wall_s=begin.attempt))
        if begin.attempt == 1:
            yield WorkerFailed(begin.attempt, begin.rank, Failure(begin.rank, "killed", "killed by SIGKILL"))
        yield WorkerReturned(begin.attempt, begin.rank, 0)

    run, events = drive(tmp_path, worker, max_failures=1)
    assert run.phase == Finished("complete")
    told = measured(events)
    assert [(each.attempt, use.rank, use.wall_s) for each in told for use in each.ranks] == [(1, 0, 1), (2, 0, 2)]
    ended = [event.attempt for event in events if isinstance(event, WorkersStopped | Measured)]
    assert ended == sorted(ended)


def test_what_workers_of_an_earlier_attempt_say_is_not_taken_for_the_present(tmp_path):
    def worker(begin):
        yield WorkerReady(begin.attempt, begin.rank, 1)
        yield Used(begin.attempt - 1, RankUse(begin.rank))
        yield WorkerReturned(begin.attempt, begin.rank, 0)

    assert measured(drive(tmp_path, worker)[1]) == []


def test_stages_of_datasets_go_with_what_ranks_use(tmp_path):
    stages = (StageUse("train", "read", 10, limits=True),)

    def worker(begin):
        yield from answering(begin, 1)
        yield WorkerReturned(begin.attempt, begin.rank, 0)

    _, events = drive(tmp_path, worker, vitals=Vitals(lambda: (stages, True)))
    assert [(each.stages, each.consumers_wait) for each in measured(events)] == [(stages, True)]


def test_observers_are_shown_what_is_noted(tmp_path):
    class Watching:
        def __init__(self):
            self.seen = []

        def saw(self, event, run):
            self.seen.append(event)

        def tick(self, run, now):
            pass

    def worker(begin):
        yield from answering(begin, 1)
        yield WorkerReturned(begin.attempt, begin.rank, 0)

    watching = Watching()
    _, events = drive(tmp_path, worker, observers=[watching])
    assert measured(watching.seen) == measured(events)


def returning(begin):
    yield WorkerReady(begin.attempt, begin.rank, 1)
    yield WorkerReturned(begin.attempt, begin.rank, 0)


def test_a_description_is_written_once(tmp_path):
    making = Future()
    making.set_result(Described(msgspec.Raw(b'{"config":{}}')))
    _, events = drive(tmp_path, returning, described=making)
    assert [bytes(event.about) for event in events if isinstance(event, Described)] == [b'{"config":{}}']


@pytest.mark.parametrize("outcome", [None, ValueError("no")])
def test_without_a_description_the_run_goes_on(tmp_path, outcome, caplog):
    making = Future()
    if outcome is None:
        making.set_result(None)
    else:
        making.set_exception(outcome)
    run, events = drive(tmp_path, returning, described=making)
    assert run.phase == Finished("complete")
    assert not any(isinstance(event, Described) for event in events)
    assert ("could not be described" in caplog.text) == (outcome is not None)


@given(st.integers(1, 10_000), st.floats(0, 1e6))
def test_more_ranks_or_an_older_attempt_are_never_asked_more_often(size, age_s):
    found = interval_s(size, age_s)
    assert EVERY_S <= found <= max(AT_LAST_EVERY_S, 0.05 * size)
    assert interval_s(size + 1, age_s) >= found
    assert interval_s(size, age_s + 1) >= found
