"""The loop, with the fake engine: what is written, what is told, what happens to an observer that raises."""

import os
from itertools import groupby, pairwise

import msgspec
import pytest

from _control.controller_runs import RecordingObserver, drive
from paceline._control.events import (
    CommitFailed,
    Committed,
    HangCleared,
    HangSuspected,
    Retention,
    StopRequested,
    Timestamp,
)
from paceline._control.extensions import CapacityWatch, Extension, HangWatch, TaskDispatch
from paceline._control.journal_snapshot import read_snapshot
from paceline._control.recovery import load_outline
from paceline._control.run import BackingOff, Finished
from paceline._control.storage_thread import CheckpointWork, DeletionThread
from paceline._control.worker_sync import TaskQueue
from paceline._core.checkpoint_records import StagedFiles
from paceline._core.errors import RunHeldError, StorageError
from paceline._core.system import ProcessStatus
from paceline._engine.base import WorkerResources
from paceline._engine.messages import (
    CheckpointStaged,
    Hold,
    Joined,
    PreemptionNotice,
    ReleaseReport,
    Reported,
    SampleStacks,
    StackFrame,
    StacksSampled,
    StopAt,
    WorkerFailed,
    WorkerHeld,
    WorkerReturned,
)
from paceline._storage import commit
from paceline._storage.files import LocalFiles
from paceline._storage.run_layout import RunLayout
from paceline._storage.run_store import DiskRunStore
from written_runs import read_events


def reported(begin, seq, checkpoint=None):
    return Reported(begin.attempt, begin.rank, seq, msgspec.Raw(b"{}"), 0.0, "x.py:1", checkpoint)


def test_a_checkpoint_that_cannot_be_committed_is_refused_to_all_workers(tmp_path):
    answers_by_rank = {}

    def worker(begin):
        yield reported(begin, 1, "checkpoint_000001")
        yield CheckpointStaged(begin.attempt, 1, StagedFiles(begin.rank, ()))
        message = None
        while message is None:
            message = yield None
        answers_by_rank[begin.rank] = message
        yield WorkerReturned(begin.attempt, begin.rank, 1)

    (tmp_path / "checkpoint_000001").write_text("a file stands in the way")
    run, _, _ = drive(tmp_path, worker)
    assert run.phase == Finished("complete")
    assert {type(message).__name__ for message in answers_by_rank.values()} == {"CheckpointRefused"}
    assert run.checkpoints == ()


def test_deletions_are_told_when_a_rank_writes_a_checkpoint(tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(DeletionThread, "set_saving", lambda self, is_saving: told.append(is_saving))

    def worker(begin):
        yield reported(begin, 1, "checkpoint_000001")
        yield None
        yield CheckpointStaged(begin.attempt, 1, StagedFiles(begin.rank, ()))
        yield WorkerReturned(begin.attempt, begin.rank, 1)

    drive(tmp_path, worker, size=1)
    assert [is_saving for is_saving, _ in groupby(told)] == [False, True, False]


def test_an_observer_knows_of_a_checkpoint_before_an_older_one_is_deleted_for_it(tmp_path, monkeypatch):
    """Or what it wants to keep, of several that are committed at once, may be gone before it could say so."""
    order = []
    monkeypatch.setattr(CheckpointWork, "delete", lambda self, record: order.append(("deleted", record.seq)))

    class Watching(RecordingObserver):
        def on_event(self, event, run):
            if isinstance(event, Committed):
                order.append(("seen", event.record.seq))

    def worker(begin):
        for seq in (1, 2):
            yield reported(begin, seq, f"checkpoint_{seq:06d}")
            yield CheckpointStaged(begin.attempt, seq, StagedFiles(begin.rank, ()))
            while (yield None) is None:
                pass
        yield WorkerReturned(begin.attempt, begin.rank, 2)

    def keep_one(controller):
        controller.set_retention(Retention(1))

    drive(tmp_path, worker, size=1, before=keep_one, observers=[Watching()])
    assert order == [("seen", 1), ("seen", 2), ("deleted", 1)]


def test_an_observer_that_raises_is_dropped_and_the_others_go_on(tmp_path, caplog):
    class Broken(RecordingObserver):
        def tick(self, run, now):
            raise ValueError("broken")

    class BrokenAtOnce(RecordingObserver):
        """With more to be told in the same moment."""

        def on_event(self, event, run):
            if isinstance(event, Reported):
                raise ValueError("broken")

    def worker(begin):
        for seq in range(1, 20):
            yield reported(begin, seq)
        yield WorkerReturned(begin.attempt, begin.rank, 19)

    observer = RecordingObserver()
    run, events, _ = drive(tmp_path, worker, observers=[Broken(), BrokenAtOnce(), observer])
    assert run.phase == Finished("complete")
    # When it was is written for readers; observers have a clock of their own.
    assert observer.events == [event for event in events if not isinstance(event, Timestamp)]
    assert caplog.text.count("Broken raised an exception and is dropped") == 1
    assert caplog.text.count("BrokenAtOnce raised an exception and is dropped") == 1


def test_the_journal_is_on_the_disk_a_second_after_it_was_written(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr("os.fsync", lambda fd: synced.append(fd))
    num_syncs = []

    def worker(begin):
        while len(synced) < 3:  # what the opening wrote, the run's directory and the one above it
            yield None
        yield reported(begin, 1)
        before = len(synced)
        for _ in range(30):  # three seconds of the fake clock
            yield None
        while len(synced) == before:  # the storage thread has its own pace
            yield None
        num_syncs.append(len(synced) - before)
        yield WorkerReturned(begin.attempt, begin.rank, 1)

    drive(tmp_path, worker, size=1)
    assert num_syncs[0] == 1, "once, and not again while nothing new is written"


@pytest.mark.parametrize("saves", [True, False])
def test_a_run_is_on_the_disk_before_its_first_checkpoint_and_when_it_ends(tmp_path, monkeypatch, saves):
    done = []

    def commit_checkpoint(*args, real=commit.commit_checkpoint, **kwargs):
        done.append("commit")
        return real(*args, **kwargs)

    monkeypatch.setattr("os.fsync", lambda fd: done.append(os.readlink(f"/proc/self/fd/{fd}")))
    monkeypatch.setattr(commit, "commit_checkpoint", commit_checkpoint)

    def worker(begin):
        yield reported(begin, 1, "checkpoint_000001" if saves else None)
        if saves:
            yield CheckpointStaged(begin.attempt, 1, StagedFiles(begin.rank, ()))
            while (yield None) is None:
                pass
        yield WorkerReturned(begin.attempt, begin.rank, 1)

    run, _, _ = drive(tmp_path, worker, size=1)
    assert len(run.checkpoints) == saves
    before = done[: done.index("commit")] if saves else done
    assert {str(tmp_path / "journal.jsonl"), str(tmp_path), str(tmp_path.parent)} <= {*before}


def test_a_stop_that_comes_with_a_death_holds_for_the_attempt_after_it(tmp_path):
    """Both are taken in one go: the retry has begun by the time the stop has its turn."""

    def worker(begin):
        if begin.attempt == 1:
            raise RuntimeError("SIGKILL")
        while True:
            yield None

    stops = []

    def before(controller):
        def next_events(real=controller._next_events):
            events = real()
            if controller.run.attempt == 1 and not stops:
                stops.append(True)
                controller._inbox.append(StopRequested(1, now=True))
            return events

        controller._next_events = next_events

    run, _, engine = drive(tmp_path, worker, max_failures=5, before=before)
    assert run.phase.ending == "interrupted"
    assert len(engine.groups) == 2


@pytest.mark.parametrize("waits", [True, False])
def test_a_stop_while_the_engine_waits_for_machines_is_at_once(tmp_path, waits):
    def worker(begin):
        message = None
        while not isinstance(message, Hold):
            message = yield None
        yield WorkerReturned(begin.attempt, begin.rank, 0, stopped=True)

    def stop(controller):
        controller.engine.waits = waits
        controller.request_stop(now=False)

    run, events, _ = drive(tmp_path, worker, before=stop)
    assert run.phase == Finished("interrupted")
    assert [event for event in events if isinstance(event, StopRequested)] == [StopRequested(1, now=waits)]


def test_a_report_is_released_with_a_checkpoint_only_if_that_is_asked_for(tmp_path):
    released = []

    def worker(begin):
        message = None
        while len(released) < 2:
            message = yield None
            released.extend([message] if isinstance(message, ReleaseReport) else [])
        yield WorkerReturned(begin.attempt, begin.rank, 0)

    def release(controller):
        controller.release_report(1, 4)
        controller.release_report(2, 5)
        controller.release_report(1, 6, save=True)

    drive(tmp_path, worker, size=1, before=release)
    assert released == [ReleaseReport(4), ReleaseReport(6, save=True)]


def test_the_last_snapshot_covers_the_whole_journal(tmp_path):
    def worker(begin):
        yield reported(begin, 1)
        yield WorkerReturned(begin.attempt, begin.rank, 1)

    controllers = []
    run, _, _ = drive(tmp_path, worker, before=controllers.append)
    layout = RunLayout(tmp_path)
    expected = load_outline(DiskRunStore(LocalFiles(), layout))
    controllers[0].write_last_snapshot(b'{"a":1}')
    snapshot, journal = read_snapshot(layout), layout.journal.read_bytes()
    assert bytes(snapshot.summary) == b'{"a":1}'
    assert (snapshot.length, snapshot.num_lines) == (len(journal), journal.count(b"\n"))
    assert load_outline(DiskRunStore(LocalFiles(), layout)) == expected
    assert expected[0].phase == run.phase


def test_attempts_that_fail_at_once_wait_longer_and_longer_unless_the_run_is_stopped(tmp_path):
    def worker(begin):
        raise RuntimeError("SIGKILL")
        yield

    class StopInWait(RecordingObserver):
        def tick(self, run, now):
            if isinstance(run.phase, BackingOff):
                self.control.request_stop(now=False)

    observer = StopInWait()
    for name in "ab":
        (tmp_path / name).mkdir()
    run, _, engine = drive(tmp_path / "a", worker, max_failures=4)
    assert (run.phase.ending, len(engine.groups)) == ("failed", 5)
    assert 0.5 + 1 + 2 <= engine._clock.now() < 0.5 + 1 + 2 + 0.5, "each wait ends when it is due"
    run, _, engine = drive(
        tmp_path / "b", worker, max_failures=4, observers=[observer], before=lambda it: setattr(observer, "control", it)
    )
    assert (run.phase.ending, len(engine.groups)) == ("interrupted", 2)
    assert engine._clock.now() < 0.5


def test_a_mismatch_at_a_barrier_is_reported_once_and_not_retried(tmp_path):
    def worker(begin):
        if begin.rank == 0:
            yield Joined(begin.attempt, 0, 1, "x.py:7")
            while True:
                yield None
        yield WorkerReturned(begin.attempt, begin.rank, 0)

    run, events, engine = drive(tmp_path, worker, max_failures=3)
    assert run.phase.ending == "failed"
    assert sum(isinstance(event, WorkerFailed) for event in events) == 1
    assert len(engine.groups) == 1


def test_an_extension_that_raises_is_dropped_but_a_journal_that_cannot_be_written_ends_the_run(tmp_path, caplog):
    class Broken(Extension):
        def poll(self):
            raise ValueError("broken")

    class BrokenListener(Extension):
        def on_event(self, event, now):
            raise ValueError("broken too")

    class Writes(Extension):
        def poll(self):
            journal = self.control._journal
            append = journal.append

            def fail_once(event):
                journal.append = append
                raise OSError("the disk is full")

            journal.append = fail_once
            self.control.record_note(Timestamp(1.0))

    def worker(begin):
        yield None
        yield WorkerReturned(begin.attempt, begin.rank, 0)

    for name in "ab":
        (tmp_path / name).mkdir()
    run, _, _ = drive(tmp_path / "a", worker, extensions=[Broken(), BrokenListener()])
    assert run.phase == Finished("complete")
    assert "Broken failed and is disabled" in caplog.text
    assert "BrokenListener failed and is disabled" in caplog.text
    with pytest.raises(OSError, match="the disk is full"):
        drive(tmp_path / "b", worker, extensions=[Writes()])


@pytest.mark.parametrize("extension", [CapacityWatch(WorkerResources()), TaskDispatch(TaskQueue())], ids=type)
def test_a_run_ends_if_what_places_its_workers_or_sends_their_tasks_raises(tmp_path, monkeypatch, extension):
    def worker(begin):
        yield WorkerReturned(begin.attempt, begin.rank, 0)

    def fail():
        raise ValueError("broken")

    monkeypatch.setattr(extension, "poll", fail)
    with pytest.raises(ValueError, match="broken"):
        drive(tmp_path, worker, extensions=[extension])


class Fence:
    """A lease that is lost at its check of a number, or when it is told so."""

    number = 7

    def __init__(self, lost_at=None):
        self.lost_at = lost_at
        self.num_checks = 0
        self.lost = False

    def check(self):
        self.num_checks += 1
        self.lost = self.lost or self.num_checks == self.lost_at
        self.raise_if_lost()

    def raise_if_lost(self):
        if self.lost:
            raise RunHeldError("taken over")


def one_checkpoint(begin):
    yield reported(begin, 1, "checkpoint_000001")
    yield CheckpointStaged(begin.attempt, 1, StagedFiles(begin.rank, (), in_place=True))
    message = None
    while message is None:
        message = yield None
    yield WorkerReturned(begin.attempt, begin.rank, 1)


def test_a_driver_that_lost_the_run_ends_at_each_thing_it_would_do(tmp_path):
    """To start workers, to commit, to tell of the commit, to call the run complete: it asks before each."""
    for lost_at in (1, 2, 3, 4):
        path = tmp_path / str(lost_at)
        (path / "checkpoint_000001").mkdir(parents=True)
        fence = Fence(lost_at)
        with pytest.raises(RunHeldError):
            drive(path, one_checkpoint, fence=fence)
        assert fence.num_checks == lost_at
        assert len(read_events(path, Committed)) == (lost_at == 4)
        assert (path / "checkpoint_000001" / ".manifest.json").exists() == (lost_at > 2)
    path = tmp_path / "kept"
    (path / "checkpoint_000001").mkdir(parents=True)
    fence = Fence()
    run, _, _ = drive(path, one_checkpoint, fence=fence)
    assert run.phase == Finished("complete")
    assert fence.num_checks == 4
    assert commit.read_manifest(path / "checkpoint_000001").lease == 7


def test_a_loss_that_was_noticed_elsewhere_ends_the_run_and_nothing_more_is_written(tmp_path):
    fence = Fence()

    def worker(begin):
        yield reported(begin, 1)
        fence.lost = True
        yield None
        yield reported(begin, 2)
        while True:
            yield None

    with pytest.raises(RunHeldError):
        drive(tmp_path, worker, size=1, fence=fence)
    assert [event.seq for event in read_events(tmp_path, Reported)] == [1]


def test_a_lease_that_cannot_be_renewed_costs_the_checkpoint_and_not_the_run(tmp_path):
    class Unsure(Fence):
        def check(self):
            self.num_checks += 1
            if self.num_checks == 2:
                raise StorageError("the lease could not be renewed")

    (tmp_path / "checkpoint_000001").mkdir()
    run, events, _ = drive(tmp_path, one_checkpoint, fence=Unsure())
    assert run.phase == Finished("complete")
    assert run.checkpoints == ()
    assert [e.error for e in events if isinstance(e, CommitFailed)] == ["StorageError: the lease could not be renewed"]


def test_a_preemption_stops_all_ranks_at_one_report_with_a_deadline_on_the_wall_clock(tmp_path):
    """And a report is released to the attempt that waits for it, not to another."""
    received = {0: [], 1: []}

    def worker(begin):
        seen = received[begin.rank]
        while not seen or not isinstance(seen[-1], StopAt):
            message = yield None
            if message is not None:
                seen.append(message)
            if isinstance(message, Hold):
                yield WorkerHeld(begin.attempt, begin.rank, begin.rank, asks=begin.rank == 0, num_checks=2)
        yield WorkerReturned(begin.attempt, begin.rank, 3, stopped=True)

    def before(controller):
        controller.request_preemption(30.0)
        controller.release_report(1, 4, save=True)
        controller.release_report(2, 5)

    run, events, _ = drive(tmp_path, worker, before=before)
    assert run.phase.ending == "preempted"
    notice = PreemptionNotice((), 1_000_000_030.0)
    assert received[0] == received[1] == [ReleaseReport(4, True), Hold(), StopAt(3, True, notice, 2)]
    times = [event.at for event in events if isinstance(event, Timestamp)]
    assert all(later - sooner >= 0.01 for sooner, later in pairwise(times))


@pytest.mark.parametrize(("ending", "is_raised"), [("failed", False), ("complete", True)])
def test_a_lease_that_cannot_be_checked_at_the_end_does_not_hide_the_failure_of_the_run(tmp_path, ending, is_raised):
    class Unsure(Fence):
        def check(self):
            self.num_checks += 1
            if self.num_checks == 2:
                raise StorageError("no answer")

    def worker(begin):
        if ending == "failed":
            raise RuntimeError("SIGKILL")
        yield WorkerReturned(begin.attempt, begin.rank, 0)

    if is_raised:
        with pytest.raises(StorageError, match="no answer"):
            drive(tmp_path, worker, fence=Unsure())
    else:
        assert drive(tmp_path, worker, fence=Unsure())[0].phase.ending == "failed"


def answers(begin, message):
    if isinstance(message, SampleStacks):
        frames = (StackFrame("train", "train_fn", "train.py:41", is_user_code=True),)
        return StacksSampled(
            begin.attempt, begin.rank, message.number, frames, "time.sleep", process_status=ProcessStatus("S")
        )
    return None


def test_silent_ranks_are_sampled_and_reported_and_their_stacks_are_written(tmp_path):
    """Time is the fake clock's: both stand for two minutes, then go on."""

    def worker(begin):
        yield reported(begin, 1)
        message = None
        for _ in range(1200):
            message = yield answers(begin, message)
        yield reported(begin, 2)
        yield WorkerReturned(begin.attempt, begin.rank, 2)

    run, _, _ = drive(tmp_path, worker, extensions=[HangWatch(None, "warn", "/storage")])
    assert run.phase == Finished("complete")
    (suspected,) = read_events(tmp_path, HangSuspected)
    assert suspected.failure.message.startswith("ranks 0 and 1 have been stuck at train.py:41 in train_fn (time.sleep)")
    (cleared,) = read_events(tmp_path, HangCleared)
    assert cleared.after_s > 30
    stacks = RunLayout(tmp_path).stacks(1)
    assert "> train.py:41 in train_fn" in stacks.read_text()
    assert stacks.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(("action", "num_groups"), [("restart", 3), ("fail", 1)])
def test_a_hang_is_retried_within_the_budget_or_ends_the_run(tmp_path, action, num_groups):
    """The ranks do not even answer; the engine knows that one of them is stopped."""

    def worker(begin):
        yield reported(begin, 1)
        while True:
            yield None

    watch = HangWatch(5.0, action, "/storage")
    run, _, engine = drive(tmp_path, worker, max_failures=2, extensions=[watch], conditions={1: ProcessStatus("T")})
    assert run.phase.ending == "failed"
    assert run.phase.failures[0].kind == "hang"
    assert "rank 1 is stopped by a signal" in run.phase.failures[0].message
    assert len(engine.groups) == num_groups
