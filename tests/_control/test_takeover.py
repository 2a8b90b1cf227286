"""A driver paused at every act of a commit, and another that takes over, both of them the real code.

What the first has announced is found by the second; the run, for readers and for a third driver, is what the second
says it is; and nothing that the first does afterwards changes that.
"""

import contextlib
import itertools
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from paceline._control import journal
from paceline._control.events import CheckpointStaged, CheckpointVerified, Committed, DriverStarted, Reported
from paceline._control.journal_snapshot import EventHistory, SnapshotFile, read_snapshot, take_snapshot
from paceline._control.recovery import load_history, recover_run
from paceline._control.step import step
from paceline._core.checkpoint_records import CheckpointRecord, StagedFiles
from paceline._core.errors import RunHeldError
from paceline._engine.messages import WorkerReady, WorkerReturned, WorkersStopped
from paceline._storage import commit
from paceline._storage.files import LocalFiles
from paceline._storage.journal_archive import archive_journal
from paceline._storage.lease import acquire_lease
from paceline._storage.lease_stores import DiskLeaseStore
from paceline._storage.run_layout import RunLayout
from paceline._storage.run_store import DiskRunStore
from paceline.testing import FakeClock


@pytest.fixture(autouse=True)
def without_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr("os.fsync", lambda fd: None)


class Halting(LocalFiles):
    """Calls `halt` before the act of a number, of those that change files."""

    ACTS = frozenset({"make_dir", "write", "copy", "seal", "rename", "sync_dir", "sync_file", "remove", "remove_tree"})

    def __init__(self, at, halt):
        self.left = at
        self.halt = halt

    def __getattribute__(self, name):
        if name in Halting.ACTS:
            self.act()
        return super().__getattribute__(name)

    def act(self):
        self.left -= 1
        if self.left == -1:
            self.halt()

    def remove_tree(self, path):
        """In two acts: a driver may be paused within it."""
        for file in sorted(each for each in path.rglob("*") if each.is_file())[:1]:
            file.unlink()
            self.act()
        super().remove_tree(path)


class HaltingFence:
    """A lease whose checks count as acts, before and after."""

    def __init__(self, lease, files):
        self.lease = lease
        self.files = files
        self.number = lease.number

    def check(self):
        self.files.act()
        self.lease.check()
        self.files.act()

    def raise_if_lost(self):
        self.lease.raise_if_lost()


class Driver:
    """What a driver does to storage, in the order in which the controller does it."""

    def __init__(self, layout, clock, name, *, files=None):
        self.layout = layout
        self.name = name
        self.files = files or LocalFiles()
        self.lease = acquire_lease(
            DiskLeaseStore(layout.lease),
            ttl_s=30,
            clock=clock,
            say=pytest.fail,
            wait=pytest.fail,
            alive=lambda holder: True,
        )
        self.fence = HaltingFence(self.lease, self.files) if files else self.lease
        alone = self.lease.holder.alone
        recovered = recover_run(DiskRunStore(self.files, layout), 0.0, self.fence, in_new_file=not alone)
        self.lease.mark_alone()
        self.recovered = recovered.run
        self.run = recovered.run
        self.journal_file = recovered.journal
        self.take(DriverStarted(1, 0, lease=self.lease.number))
        if self.run.latest:
            self.take(CheckpointVerified(self.run.attempt, self.run.latest.seq))
        self.announced = []

    def take(self, event):
        self.run, _ = step(self.run, event)
        self.journal_file.append(event)
        self.journal_file.flush()

    def staged(self):
        """A checkpoint that waits only for its commit."""
        seq = self.run.latest.seq + 1 if self.run.latest else 1
        attempt = self.run.attempt
        name = self.name or f"checkpoint_{seq:06d}"
        target = self.layout.staged_rank(attempt, seq, 0)
        target.mkdir(parents=True)
        (target / "model").write_text(f"by lease {self.lease.number}")
        parts = StagedFiles(0, commit.stage_in_place(LocalFiles(), target))
        self.take(Reported(attempt, 0, seq, msgspec.Raw(b"{}"), 0.0, "x.py:1", name))
        self.take(CheckpointStaged(attempt, seq, parts))
        return CheckpointRecord(seq, name, attempt, msgspec.Raw(b"{}"), sum(e.size for e in parts.files)), [parts]

    def commit(self, record, parts, files=None):
        files = files or self.files
        fence = HaltingFence(self.lease, files) if isinstance(files, Halting) else self.lease
        commit.commit_checkpoint(files, self.layout, record, parts, world_size=1, created_at=0.0, fence=fence)
        fence.check()
        self.take(Committed(record))
        self.announced.append(record)

    def close(self):
        self.journal_file.abandon()
        self.lease.close()


def seqs_of(run):
    return [(record.seq, record.attempt) for record in run.checkpoints]


def seqs_for_reader(layout):
    """What a reader sees, and that it is whole."""
    run, _ = load_history(DiskRunStore(LocalFiles(), layout))
    for record in run.checkpoints:
        assert commit.find_problem(layout.checkpoint(record.name)) is None
        assert commit.read_manifest(layout.checkpoint(record.name)).record.attempt == record.attempt
    return seqs_of(run)


def judge(layout, clock, first, second, where):
    """The run is the second driver's, whatever the first has done since."""
    recovered = second.recovered.checkpoints
    for record in first.announced:
        assert any(
            (other.seq, other.attempt) == (record.seq, record.attempt)
            or (other.name == record.name and other.seq > record.seq)
            for other in recovered
        ), f"{where}: an announced checkpoint was not found"
    assert seqs_for_reader(layout) == seqs_of(second.run), f"{where}: a reader sees something else"
    started = [event for event in journal.read_events(layout.journal) if isinstance(event, DriverStarted)]
    assert started[-1].lease == second.lease.number
    with pytest.raises(RunHeldError):
        first.lease.check()
    second.close()
    third = Driver(layout, clock, None)
    assert seqs_of(third.recovered) == seqs_of(second.run), f"{where}: the next driver finds something else"
    # Whatever is a checkpoint on storage is one of the run: what came too late is gone.
    assert {m.record.name for m in commit.iter_manifests(layout)} == {r.name for r in third.recovered.checkpoints}
    third.close()


@pytest.fixture
def fresh(tmp_path):
    def make():
        root = tmp_path / "run"
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir()
        return RunLayout(root), FakeClock()

    return make


def commit_next(driver, files):
    driver.commit(*driver.staged(), files=files)


def clear_staging(driver, files):
    """A driver that ends does so. It has staged a checkpoint that the next one can commit."""
    driver.staged()
    commit.clear_staging(files, driver.layout, HaltingFence(driver.lease, files))


@pytest.mark.parametrize(
    ("act", "name", "commits"),
    [
        (commit_next, "last", False),
        (clear_staging, None, False),
        pytest.param(commit_next, None, False, marks=pytest.mark.slow),
        pytest.param(commit_next, None, True, marks=pytest.mark.slow),
        pytest.param(commit_next, "last", True, marks=pytest.mark.slow),
    ],
)
def test_a_driver_that_wakes_at_any_act_of_the_one_that_takes_over_changes_nothing(fresh, act, name, commits):
    """Paused within what it does, it goes on at each act of the other driver's recovery and first commit.

    Or after all of them: the last of the pairs for each pause.
    """
    num_pairs = num_refused = 0
    for paused_at in itertools.count():
        for woken_at in itertools.count(paused_at % 3, 3):  # a third of the pairs, with each act of both in some
            layout, clock = fresh()
            first = Driver(layout, clock, name)
            first.commit(*first.staged())
            paused, go_on, halts = threading.Event(), threading.Event(), []

            def pause(paused=paused, go_on=go_on, halts=halts):
                halts.append("paused")
                paused.set()
                go_on.wait()

            def act_late(first=first, paused=paused, pause=pause, paused_at=paused_at):
                try:
                    act(first, Halting(paused_at, pause))
                except OSError as error:
                    return isinstance(error, RunHeldError)
                finally:
                    paused.set()

            with ThreadPoolExecutor(1) as thread:
                late = thread.submit(act_late)
                paused.wait()
                if not halts:
                    assert num_pairs > 20, "many acts, at many acts"
                    assert num_refused > 5
                    return
                clock.advance(31)

                def wake(go_on=go_on, late=late):
                    go_on.set()
                    late.result()

                try:
                    second = Driver(layout, clock, name, files=Halting(woken_at, wake))
                    if commits:
                        second.commit(*second.staged())
                finally:
                    is_reached = go_on.is_set()
                    go_on.set()
                num_refused += bool(late.result())
            judge(layout, clock, first, second, f"paused before act {paused_at}, woken before {woken_at}")
            first.close()
            num_pairs += 1
            if not is_reached:
                break


def test_the_journal_is_continued_in_place_after_a_driver_that_ended_and_apart_from_one_that_is_paused(fresh):
    layout, clock = fresh()
    Driver(layout, clock, None).close()
    inode = layout.journal.stat().st_ino
    first = Driver(layout, clock, None)
    assert layout.journal.stat().st_ino == inode
    clock.advance(31)
    second = Driver(layout, clock, None)
    before = layout.journal.read_bytes()
    first.staged()
    assert layout.journal.read_bytes() == before, "what the paused one writes, nobody reads"
    assert layout.journal.stat().st_mode & 0o777 == 0o600
    first.close()
    second.close()


@pytest.mark.parametrize("copies", [False, True])
def test_a_driver_paused_while_it_opens_the_journal_does_not_cut_or_replace_the_next_ones(fresh, copies):
    """Unless the one before is known to have ended, it makes a copy."""
    layout, clock = fresh()
    before = Driver(layout, clock, None)
    if not copies:
        before.close()
    second = []

    def take_over():
        clock.advance(31)
        second.append(Driver(layout, clock, None))

    for at in itertools.count():
        num_before = len(second)
        with layout.journal.open("ab") as file:
            file.write(b"torn")
        clock.advance(31)
        try:
            Driver(layout, clock, None, files=Halting(at, take_over)).close()
        except RunHeldError:
            pass
        if len(second) == num_before:
            break
        assert journal.read_events(layout.journal)[-1].lease == second[-1].lease.number, f"paused before act {at}"
        if not copies:
            second[-1].close()
    assert at > 1


def archive(driver, files):
    for event in (WorkerReady(1, 0, 7), WorkerReturned(1, 0, 1), WorkersStopped(1)):
        driver.take(event)
    DiskRunStore(files, driver.layout).archive_journal(HaltingFence(driver.lease, files))


def delete(driver, files):
    record = driver.run.latest
    commit.delete_checkpoint(files, driver.layout, record, HaltingFence(driver.lease, files))


def quarantine(driver, files):
    commit.quarantine_checkpoint(files, driver.layout, driver.run.latest.name, HaltingFence(driver.lease, files))


def commit_in_place(driver, files):
    """As with `NO_UPLOAD`: in a directory that the next attempt uses, too."""
    path = driver.layout.checkpoint("mine")
    path.mkdir(exist_ok=True)
    (path / "model").write_text("the same")
    attempt, seq = driver.run.attempt, driver.run.latest.seq + 1
    parts = StagedFiles(0, commit.stage_in_place(LocalFiles(), path), in_place=True)
    driver.take(Reported(attempt, 0, seq, msgspec.Raw(b"{}"), 0.0, "x.py:1", "mine"))
    driver.take(CheckpointStaged(attempt, seq, parts))
    driver.commit(CheckpointRecord(seq, "mine", attempt, msgspec.Raw(b"{}"), 8), [parts], files=files)


@pytest.mark.parametrize("act", [archive, delete, quarantine, commit_in_place])
def test_a_driver_that_wakes_changes_nothing_that_the_next_one_has_done(fresh, act):
    """Paused before each thing that it does to files, for longer than its lease, and with the same ahead."""
    for at in itertools.count():
        layout, clock = fresh()
        first = Driver(layout, clock, "best")
        first.commit(*first.staged())
        shown, drivers = [], []

        def take_over(layout=layout, clock=clock, shown=shown, drivers=drivers):
            clock.advance(31)
            layout.reports(2, 0).parent.mkdir(parents=True, exist_ok=True)
            layout.reports(2, 0).write_bytes(b"")
            second = Driver(layout, clock, "best")
            for _ in range(2):
                commit_in_place(second, LocalFiles()) if act is commit_in_place else second.commit(*second.staged())
            if act is archive:
                second.take(WorkersStopped(second.run.attempt))
                archive_journal(LocalFiles(), layout.journal, second.lease)
            drivers.append(second)
            shown.append(describe(layout))

        with contextlib.suppress(RunHeldError):
            act(first, Halting(at, take_over))
        if not drivers:
            break
        assert describe(layout) == shown[0], f"paused before act {at}"
        drivers[0].lease.check()
        for driver in (first, *drivers):
            driver.close()
    assert at > 5
    first.close()


def describe(layout):
    """What readers and later drivers find: all of it whole."""
    manifests = list(commit.iter_manifests(layout))
    assert [commit.find_problem(layout.checkpoint(manifest.record.name)) for manifest in manifests] == [None] * len(
        manifests
    )
    return journal.read_events(layout.journal), manifests, sorted(layout.root.glob("reports/*/*"))


def test_a_snapshot_of_a_driver_that_was_taken_over_stands_for_no_line_of_the_next_one(fresh):
    layout, clock = fresh()
    first = Driver(layout, clock, None)
    first.take(WorkerReady(1, 0, 7))
    clock.advance(31)
    second = Driver(layout, clock, None)
    for driver, metrics in ((first, b'{"a":1}'), (second, b'{"b":2}')):
        for seq in range(1, 6):
            driver.take(Reported(driver.run.attempt, 0, seq, msgspec.Raw(metrics), 0.0, "x.py:1"))
    written = first.journal_file
    snapshot = take_snapshot(first.run, EventHistory())
    SnapshotFile(layout, 0).write(snapshot, written.fileno(), written.length, written.num_lines)
    assert layout.snapshot.exists()
    assert layout.journal.stat().st_size >= written.length
    assert read_snapshot(layout) is None
    first.close()
    second.close()
