"""Deletions have a thread of their own: no commit waits for one, and they pause while a checkpoint is written."""

import os
import queue
import threading

import msgspec
import pytest

from paceline._control.commands import CommitCheckpoint
from paceline._control.events import CheckpointBroken, CheckpointVerified, Committed
from paceline._control.journal import Journal
from paceline._control.storage_thread import LOG_TRIM_INTERVAL_S, CheckpointWork, DeletionThread
from paceline._core.checkpoint_records import CheckpointRecord, StagedFiles
from paceline._storage import commit
from paceline._storage.files import LocalFiles
from paceline._storage.lease import UNFENCED
from paceline._storage.run_layout import RunLayout
from paceline._storage.run_store import DiskRunStore
from paceline.testing import FakeClock

PATIENCE_S = 60


class HeldFiles(LocalFiles):
    """Removes a file only once it may; says of each that it is about to, and that it is gone."""

    def __init__(self):
        self.begun, self.may_remove = queue.SimpleQueue(), threading.Semaphore(0)

    def remove(self, path):
        self.begun.put(path.parent.name)
        assert self.may_remove.acquire(timeout=PATIENCE_S)
        super().remove(path)


class Checkpoints:
    """Commits and deletes as a controller does."""

    def __init__(self, root):
        self.files, self.layout = HeldFiles(), RunLayout(root)
        self.errors = []
        self.deletions = DeletionThread(self.errors.append)
        self.journal = Journal(self.layout.journal)
        self.store = DiskRunStore(self.files, self.layout)
        self.clock = FakeClock()
        self.work = CheckpointWork(self.store, self.journal, UNFENCED, self.clock, self.deletions)

    def commit(self, seq, name=None):
        record = CheckpointRecord(seq, name or f"checkpoint_{seq:06d}", 1, msgspec.Raw(b"{}"), num_bytes=1)
        staged = self.layout.staged_rank(1, seq, 0)
        self.files.make_dir(staged)
        (staged / "model").write_text("x")
        parts = (StagedFiles(0, (self.files.seal(staged / "model", "model"),)),)
        commit_files = self.store.commit
        self.store.commit = lambda *args, **options: (self.clock.advance(1 / 3), commit_files(*args, **options))[1]
        assert self.work.commit(CommitCheckpoint(record, parts), 1) == Committed(record, 0.333333)
        self.store.commit = commit_files
        return record

    def list_names(self):
        return [manifest.record.name for manifest in commit.iter_manifests(self.layout)]

    def close(self):
        for _ in range(100):
            self.files.may_remove.release()
        self.deletions.close()
        self.journal.close()
        assert self.errors == []


@pytest.fixture
def checkpoints(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    yield checkpoints
    checkpoints.close()


def test_a_commit_waits_for_no_deletion_nor_for_the_checkpoint_that_it_replaces(checkpoints):
    first, best = checkpoints.commit(1), checkpoints.commit(2, "best")
    checkpoints.work.delete(first)
    assert checkpoints.files.begun.get(timeout=PATIENCE_S) == "deleted-0-1-1"
    assert checkpoints.list_names() == ["best"], "it is out of the run before its files go"
    assert checkpoints.commit(3, "best") != best
    checkpoints.commit(4, "best")
    assert checkpoints.list_names() == ["best"]
    checkpoints.close()
    assert not checkpoints.layout.trash.exists()


def test_at_most_one_deletion_waits_for_a_save_and_none_is_left_at_the_end(checkpoints):
    records = [checkpoints.commit(seq) for seq in (1, 2, 3)]
    has_looked, has_room = queue.SimpleQueue(), checkpoints.store.has_room
    checkpoints.store.has_room = lambda num_bytes: (has_looked.put(num_bytes), has_room(num_bytes))[1]
    checkpoints.files.may_remove = threading.Semaphore(100)
    checkpoints.deletions.set_saving(True)
    checkpoints.work.delete(records[0])
    assert has_looked.get(timeout=PATIENCE_S) == 2
    assert checkpoints.files.begun.empty(), "it waits for the save"
    checkpoints.work.delete(records[1])
    assert [checkpoints.files.begun.get(timeout=PATIENCE_S) for _ in "ab"] == ["deleted-0-1-1"] * 2
    assert has_looked.get(timeout=PATIENCE_S) == 2
    assert checkpoints.files.begun.empty(), "the next one waits in its place"
    checkpoints.deletions.set_saving(False)
    assert [checkpoints.files.begun.get(timeout=PATIENCE_S) for _ in "ab"] == ["deleted-0-1-2"] * 2
    checkpoints.deletions.set_saving(True)
    checkpoints.work.delete(records[2])
    checkpoints.close()
    assert not checkpoints.layout.trash.exists()


def test_a_deletion_does_not_wait_on_a_disk_that_is_nearly_full(checkpoints, monkeypatch):
    first = checkpoints.commit(1)
    checkpoints.deletions.set_saving(True)
    checkpoints.files.may_remove = threading.Semaphore(100)
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result((1, 1, 9, 1, 1, 9, 9, 9, 0, 255)))
    checkpoints.work.delete(first)
    assert checkpoints.files.begun.get(timeout=PATIENCE_S) == "deleted-0-1-1"
    replaced = checkpoints.commit(2, "best"), checkpoints.commit(3, "best")
    assert [path.name for path in checkpoints.layout.root.iterdir() if path.name == ".trash"] == [], replaced


def test_a_checkpoint_that_is_held_is_deleted_with_the_next_sync_of_the_journal(checkpoints):
    checkpoints.files.may_remove = threading.Semaphore(100)
    first, is_held = checkpoints.commit(1), queue.SimpleQueue()
    checkpoints.work.is_held = lambda record: (is_held.put(1), True)[1]
    checkpoints.work.delete(first)
    assert is_held.get(timeout=PATIENCE_S)
    assert checkpoints.list_names() == [first.name]
    checkpoints.deletions.submit(lambda: is_held.put(2))
    assert is_held.get(timeout=PATIENCE_S) == 2
    checkpoints.work.is_held = lambda record: False
    checkpoints.work.sync_journal()
    assert checkpoints.files.begun.get(timeout=PATIENCE_S) == "deleted-0-1-1"


def test_a_name_is_not_committed_while_an_older_checkpoint_of_it_is_set_aside(checkpoints):
    """The deletion has seen the older one, and would rename the newer one away."""
    first, order, may_rename = checkpoints.commit(1, "best"), queue.SimpleQueue(), threading.Event()
    rename = checkpoints.files.rename

    def rename_later(source, target):
        if threading.current_thread().name == "paceline-delete":
            order.put("sets aside")
            assert may_rename.wait(PATIENCE_S)
        rename(source, target)

    class Condition(threading.Condition):
        def wait_for(self, predicate, timeout=None):
            if not predicate():
                order.put("waits")
            return super().wait_for(predicate, timeout)

    checkpoints.files.rename, checkpoints.work._names_changed = rename_later, Condition()
    checkpoints.files.may_remove = threading.Semaphore(100)
    checkpoints.work.delete(first)
    assert order.get(timeout=PATIENCE_S) == "sets aside"
    thread = threading.Thread(target=lambda: (checkpoints.commit(2, "best"), order.put("committed")))
    thread.start()
    assert order.get(timeout=PATIENCE_S) == "waits"
    may_rename.set()
    thread.join(PATIENCE_S)
    checkpoints.close()
    assert checkpoints.list_names() == ["best"]


def test_a_checkpoint_is_verified_and_one_that_is_broken_set_aside(checkpoints):
    record = checkpoints.commit(1)
    assert checkpoints.work.verify(2, record) == CheckpointVerified(2, 1)
    (checkpoints.layout.checkpoint(record.name) / "model").write_text("y")
    broken = checkpoints.work.verify(3, record)
    assert isinstance(broken, CheckpointBroken)
    assert (broken.attempt, broken.seq) == (3, 1)
    assert broken.problem.endswith(f"; moved to {checkpoints.layout.quarantine / record.name}")
    assert checkpoints.list_names() == []


def test_logs_are_trimmed_every_few_seconds_and_a_failure_costs_nothing(checkpoints, monkeypatch, caplog):
    clock, trimmed = checkpoints.work._clock, []

    def fail():
        trimmed.append(clock.now())
        raise OSError(5, "no such disk")

    monkeypatch.setattr(checkpoints.store, "trim_logs", fail)
    began = clock.now()
    for after_s in (0.0, LOG_TRIM_INTERVAL_S - 0.125, 0.125, 0.125, LOG_TRIM_INTERVAL_S - 0.125):
        clock.advance(after_s)
        checkpoints.work.sync_journal()
    assert [at - began for at in trimmed] == [LOG_TRIM_INTERVAL_S, 2 * LOG_TRIM_INTERVAL_S]
    assert caplog.messages == ["cannot limit the size of the logs: [Errno 5] no such disk"] * 2


@pytest.mark.parametrize("name", ["set_aside", "remove_replaced"])
def test_what_cannot_be_deleted_costs_no_commit(checkpoints, monkeypatch, caplog, name):
    first = checkpoints.commit(1)

    def fail(*args):
        raise OSError(5, "no such disk")

    monkeypatch.setattr(checkpoints.store, name, fail)
    checkpoints.work.delete(first)
    checkpoints.commit(2)
    checkpoints.close()
    text = {"set_aside": "cannot delete checkpoint_000001", "remove_replaced": "cannot remove what"}[name]
    assert any(message.startswith(text) and "no such disk" in message for message in caplog.messages)
