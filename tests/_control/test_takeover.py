"""A driver paused at every act of a commit, and another that takes over, both of them the real code.

What the first has announced is found by the second; the run, for readers and for a third driver, is what the second
says it is; and nothing that the first does afterwards changes that.
"""

import itertools
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from paceline._control import journal
from paceline._control.events import CheckpointStaged, CheckpointVerified, Committed, DriverStarted, Reported
from paceline._control.recovery import load_history, recover_run
from paceline._control.step import step
from paceline._core.checkpoint_records import CheckpointRecord, StagedFiles
from paceline._core.errors import RunHeldError
from paceline._storage import commit
from paceline._storage.files import LocalFiles
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


@pytest.mark.parametrize(
    ("name", "commits"),
    [
        ("last", False),
        *(pytest.param(name, commits, marks=pytest.mark.slow) for name, commits in ((None, False), (None, True))),
        pytest.param("last", True, marks=pytest.mark.slow),
    ],
)
def test_a_driver_that_wakes_at_any_act_of_the_one_that_takes_over_changes_nothing(fresh, name, commits):
    """Paused at each act of its commit, it goes on at each act of the other driver's recovery and first commit.

    Or after all of them: the last of the pairs for each pause.
    """
    num_pairs = num_refused = 0
    for paused_at in itertools.count():
        for woken_at in itertools.count(paused_at % 3, 3):  # a third of the pairs, with each act of both in some
            layout, clock = fresh()
            first = Driver(layout, clock, name)
            first.commit(*first.staged())
            paused, go_on = threading.Event(), threading.Event()

            def pause(paused=paused, go_on=go_on):
                paused.set()
                go_on.wait()

            def commit_late(first=first, paused=paused, pause=pause, paused_at=paused_at):
                try:
                    first.commit(*first.staged(), files=Halting(paused_at, pause))
                except OSError as error:
                    return isinstance(error, RunHeldError)
                finally:
                    paused.set()

            with ThreadPoolExecutor(1) as thread:
                late = thread.submit(commit_late)
                paused.wait()
                if len(first.announced) == 2:
                    assert num_pairs > 50, "many acts, at many acts"
                    assert num_refused > 10
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


def test_a_driver_paused_while_it_opens_the_journal_does_not_cut_the_next_ones(fresh):
    layout, clock = fresh()
    Driver(layout, clock, None).close()
    second = []

    def take_over():
        clock.advance(31)
        second.append(Driver(layout, clock, None))

    for at in itertools.count():
        num_before = len(second)
        with layout.journal.open("ab") as file:
            file.write(b"torn")
        try:
            Driver(layout, clock, None, files=Halting(at, take_over)).close()
        except RunHeldError:
            pass
        if len(second) == num_before:
            break
        assert journal.read_events(layout.journal)[-1].lease == second[-1].lease.number, f"paused before act {at}"
        second[-1].close()
    assert at > 1
