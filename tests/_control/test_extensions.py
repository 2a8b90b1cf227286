"""What the controller looks after beside its loop, each extension alone."""

from types import SimpleNamespace

import pytest
from msgspec import Raw

from paceline._control import events
from paceline._control.extensions import CAPACITY_POLL_S, CapacityWatch, HangWatch, TaskDispatch
from paceline._control.journal import Journal
from paceline._control.recovery import RunReplay
from paceline._control.run import Run
from paceline._control.step import step
from paceline._control.worker_sync import TaskQueue
from paceline._core.checkpoint_records import CheckpointRecord
from paceline._core.errors import StorageError
from paceline._engine.base import WorkerResources
from paceline._engine.messages import Joined, SampleStacks, StacksSampled, TaskAnswered
from paceline.testing import FakeClock

COMMITTED = events.Committed(CheckpointRecord(1, "checkpoint_000001", 1, Raw(b"{}")))
STOP = events.StopRequested(1)


def test_what_the_ranks_of_an_earlier_attempt_sent_says_nothing_about_those_of_this_one():
    calls = []
    watch = HangWatch(1.0, "warn", "/runs/a")
    watch.detector = SimpleNamespace(
        on_barrier_joined=lambda message, now: calls.append((message, now)),
        add_sample=lambda message, now: calls.append((message, now)),
    )
    watch.attach(SimpleNamespace(clock=FakeClock(5.0), run=Run(attempt=2)))
    messages = [kind for n in (1, 2, 3) for kind in (Joined(n, 0, 1, "x.py:1"), StacksSampled(n, 0, 1))]
    assert list(map(watch.on_message, messages)) == [False, True] * 3
    assert calls == [(Joined(2, 0, 1, "x.py:1"), 5.0), (StacksSampled(2, 0, 1), 5.0)]
    assert not watch.on_message(events.WorkersStopped(2))


def test_ranks_that_wait_for_machines_are_not_silent():
    clock, sent = FakeClock(0.0), []
    watch = HangWatch(1.0, "warn", "/runs/a")
    engine = SimpleNamespace(waits=True)
    run = step(Run(), events.DriverStarted(1, 0))[0]
    watch.attach(SimpleNamespace(clock=clock, run=run, engine=engine, broadcast=sent.append))

    def look(for_s):
        for _ in range(int(for_s / 0.25)):
            clock.advance(0.25)
            assert watch.poll() == ()

    look(for_s=60)
    engine.waits = False
    look(for_s=4)
    assert sent == []
    look(for_s=0.25)
    assert sent == [SampleStacks(1)]


@pytest.mark.parametrize("is_watched", [True, False])
def test_persistent_workers_are_idle_for_the_hang_watch_from_when_they_are_ready(is_watched):
    idle = []
    detector = SimpleNamespace(mark_idle=lambda rank, now: idle.append((rank, now)))
    dispatch = TaskDispatch(TaskQueue(), SimpleNamespace(detector=detector) if is_watched else None)
    dispatch.control = SimpleNamespace(clock=FakeClock(5.0))
    dispatch.on_event(events.WorkerReady(1, 3, 4321), 5.0)
    dispatch.on_event(STOP, 5.0)
    assert idle == ([(3, 5.0)] if is_watched else [])


@pytest.mark.parametrize("is_watched", [True, False])
def test_a_task_is_sent_to_all_ranks_which_are_busy_from_then_on(is_watched):
    calls, task = [], object()
    detector = SimpleNamespace(mark_all_busy=lambda now: calls.append(now))
    queue = SimpleNamespace(take_due=lambda run: task, find_mismatch=lambda run, wall: None)
    dispatch = TaskDispatch(queue, SimpleNamespace(detector=detector) if is_watched else None)
    barriers = SimpleNamespace(clear_returned=lambda: calls.append("cleared"))
    dispatch.control = SimpleNamespace(clock=FakeClock(5.0), run=Run(), barriers=barriers, broadcast=calls.append)
    assert dispatch.poll() == ()
    assert calls == ["cleared", *([5.0] if is_watched else []), task]


def test_a_rank_whose_answer_counts_is_idle_and_returned_and_other_messages_are_left_to_others():
    calls = []
    detector = SimpleNamespace(mark_idle=lambda rank, now: calls.append(("idle", rank)))
    queue = SimpleNamespace(add_answer=lambda answer, run: answer.number == 2)
    dispatch = TaskDispatch(queue, SimpleNamespace(detector=detector))
    barriers = SimpleNamespace(mark_returned=lambda rank: calls.append(("returned", rank)))
    dispatch.control = SimpleNamespace(clock=FakeClock(5.0), run=Run(), barriers=barriers)
    messages = [TaskAnswered(1, 3, 1, 0), TaskAnswered(1, 4, 2, 0), events.WorkersStopped(1)]
    assert [dispatch.on_message(message) for message in messages] == [True, True, False]
    assert calls == [("returned", 4), ("idle", 4)]


def test_capacity_is_polled_when_the_workers_are_gone_and_no_message_is_kept_from_others():
    added = []
    watch = CapacityWatch(WorkerResources())
    run = Run(sizes=(1, 2), num_places=1, attempt=1)
    engine = SimpleNamespace(capacity=lambda needs, smallest, largest: 2)
    watch.attach(SimpleNamespace(clock=FakeClock(100.0), run=run, engine=engine, add_event=added.append))
    assert not any(map(watch.on_message, [events.WorkersStopped(1), TaskAnswered(1, 0, 1, 0)]))
    assert added == [events.CapacityChanged(1, 2)]


@pytest.mark.parametrize(
    ("event", "resize_every_s", "is_polled"),
    [(COMMITTED, 0.0, True), (COMMITTED, CAPACITY_POLL_S, False), (STOP, 0.0, False)],
    ids=["a commit at which the run may grow", "a commit at which it may not", "another event"],
)
def test_capacity_is_polled_out_of_turn_after_commits_at_which_the_run_may_grow(event, resize_every_s, is_polled):
    polls = []
    watch = CapacityWatch(WorkerResources())
    run = Run(sizes=(1, 2, 4), num_places=1, attempt=1, resize_every_s=resize_every_s)
    engine = SimpleNamespace(capacity=lambda *arguments: polls.append(arguments) or 2)
    watch.attach(SimpleNamespace(clock=FakeClock(100.0), run=run, engine=engine))
    watch.on_event(event, 100.0)
    assert list(watch.poll()) == ([events.CapacityChanged(1, 2)] if is_polled else [])
    assert polls == [(WorkerResources(), 1, 4)] * is_polled


def test_an_abandoned_journal_writes_nothing_more_and_may_be_abandoned_twice(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl")
    journal.append(STOP)
    journal.flush()
    written = journal.path.read_bytes()
    journal.append(STOP)
    journal.abandon()
    journal.abandon()
    assert journal.path.read_bytes() == written
    with pytest.raises(ValueError, match="file descriptor"):
        journal.sync_written()


def test_a_journal_that_contradicts_itself_is_refused_with_the_number_of_the_line():
    replay = RunReplay()
    replay.apply_event(events.DriverStarted(1, 0))
    with pytest.raises(StorageError, match=r"^line 2 of the run's journal contradicts"):
        replay.apply_event(events.CheckpointVerified(1, 1))
