"""What a worker uploads in the background is what was there when `report()` returned."""

import os
import queue
import shutil
import tempfile
import threading
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from paceline._core.system import UsableMemory
from paceline._storage import file_writer, save_meter
from paceline._storage.files import LocalFiles
from paceline._storage.run_layout import RunLayout
from paceline._storage.run_store import DiskRunStore
from paceline._storage.state import read_state
from paceline._worker import upload
from paceline._worker.upload import Directory, SaveSkippedError, State, Uploader


@pytest.fixture(params=["here", "elsewhere"])
def place(request, tmp_path):
    if request.param == "here":
        yield tmp_path
        return
    memory = Path("/dev/shm")
    if not memory.is_dir() or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second filesystem")
    place = Path(tempfile.mkdtemp(dir=memory))
    yield place
    shutil.rmtree(place)


@pytest.mark.parametrize("delete", [True, False])
def test_what_is_done_to_a_directory_after_an_async_report_changes_nothing_in_the_checkpoint(delete, place, tmp_path):
    layout = RunLayout(tmp_path / "run")
    layout.root.mkdir()
    uploader = Uploader(LocalFiles(), DiskRunStore(LocalFiles(), layout), 1, 0)
    mine = place / "mine"
    mine.mkdir()
    (mine / "weights").write_text("reported")
    is_changed, outcome, stage = threading.Event(), Future(), uploader._stage
    uploader._stage = lambda *args: is_changed.wait(60) and stage(*args)
    uploader.upload_later(1, "checkpoint_000001", Directory(mine, delete), outcome.set_result)
    assert mine.exists() != delete
    mine.mkdir(exist_ok=True)
    (mine / "weights").write_text("the next step")
    (mine / "new").write_text("x")
    is_changed.set()
    assert [entry.path for entry in outcome.result(60).files] == ["weights"]
    assert (layout.staged_rank(1, 1, 0) / "weights").read_text() == "reported"
    assert (mine / "new").exists()
    assert [path.name for path in place.iterdir() if path != layout.root] == ["mine"]
    uploader.wait()


@pytest.mark.parametrize("is_later", [False, True], ids=["sync", "async"])
def test_a_save_says_what_each_part_took_and_how_many_bytes_it_wrote(is_later, tmp_path, monkeypatch):
    """On a disk where a write takes a second and a sync ten, by a clock that nothing else moves.

    A directory of ours is moved, so nothing is written; what the user keeps is copied before an async report returns.
    """
    clock, lock = SimpleNamespace(now=0.0, num_writes=0), threading.Lock()

    def slow_down(call, seconds):
        def slowed(*args):
            with lock:
                clock.now += seconds
                clock.num_writes += call is not fsync
            return call(*args)

        return slowed

    write, pwrite, fsync = os.write, os.pwrite, os.fsync
    for call, seconds in ((write, 1.0), (pwrite, 1.0), (fsync, 10.0)):
        monkeypatch.setattr(os, call.__name__, slow_down(call, seconds))
    monkeypatch.setattr(save_meter, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    layout = RunLayout(tmp_path / "run")
    layout.root.mkdir()
    uploader = Uploader(LocalFiles(), DiskRunStore(LocalFiles(), layout), 1, 0)
    scratch = uploader.scratch_directory()
    (scratch / "weights").write_bytes(bytes(file_writer.MIN_BYTES))
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "weights").write_bytes(b"x" * 1000)
    state = State({"large": np.zeros(3 * file_writer.PIECE_BYTES, np.uint8)})
    for seq, source in enumerate((state, Directory(scratch), Directory(mine)), 1):
        clock.now, clock.num_writes = 0.0, 0
        if is_later:
            outcome = Future()
            uploader.upload_later(seq, f"checkpoint_{seq:06}", source, outcome.set_result)
            staged = outcome.result(60)
        else:
            staged = uploader.upload(seq, f"checkpoint_{seq:06}", source)
        times = staged.times
        assert times.copy_s + times.write_s + times.sync_s == clock.now
        is_copied_before = is_later and seq == 3
        assert (times.copy_s > 0) == is_copied_before
        assert times.write_s == (0 if is_copied_before else clock.num_writes)
        is_written = seq != 2 and not is_copied_before
        assert times.num_bytes == (sum(entry.size for entry in staged.files) if is_written else 0)


class HeldUploader(Uploader):
    """Begins to stage a state, and waits until it may continue."""

    def __init__(self, layout):
        super().__init__(LocalFiles(), DiskRunStore(LocalFiles(), layout), 1, 0)
        self.begun, self.may_continue, self.outcomes = queue.SimpleQueue(), threading.Event(), queue.SimpleQueue()

    def _stage(self, seq, name, frozen):
        self.begun.put(seq)
        assert self.may_continue.wait(60)
        return super()._stage(seq, name, frozen)

    def save(self, seq, **options):
        values = np.full(1000, seq)
        self.upload_later(
            seq, f"checkpoint_{seq}", State({"x": values}), lambda done: self.outcomes.put((seq, done)), **options
        )
        values[:] = -1

    def list_outcomes(self):
        self.may_continue.set()
        self.wait()
        outcomes = dict(self.outcomes.get_nowait() for _ in range(self.outcomes.qsize()))
        staged = {seq: read_state(self._layout.staged_rank(1, seq, 0))["x"] for seq in outcomes if self.is_staged(seq)}
        assert all((values == seq).all() for seq, values in staged.items()), "a save has the values of another"
        return {seq: type(outcome).__name__ for seq, outcome in outcomes.items()}

    def is_staged(self, seq):
        return self._layout.staged_rank(1, seq, 0).exists()


@pytest.fixture
def uploader(tmp_path, monkeypatch):
    layout = RunLayout(tmp_path / "run")
    layout.root.mkdir()
    monkeypatch.setattr(upload, "usable_memory", lambda: UsableMemory(1 << 40, 1 << 40))
    uploader = HeldUploader(layout)
    yield uploader
    uploader.may_continue.set()
    uploader.wait()


def test_a_second_save_waits_in_memory_and_a_third_until_the_first_is_written(uploader):
    for seq in (1, 2):
        uploader.save(seq)
    third = threading.Thread(target=uploader.save, args=(3,))
    third.start()
    assert uploader.begun.get(timeout=240) == 1
    assert uploader.begun.empty()
    uploader.may_continue.set()
    third.join(60)
    assert uploader.list_outcomes() == dict.fromkeys((1, 2, 3), "StagedFiles")
    assert len(uploader._memories) == 2


def test_a_third_save_may_replace_the_one_that_is_not_begun(uploader):
    uploader.save(1)
    assert uploader.begun.get(timeout=240) == 1
    for seq in (2, 3, 4):
        uploader.save(seq, can_skip=True)
    skipped = dict.fromkeys((2, 3), "SaveSkippedError")
    assert uploader.list_outcomes() == {1: "StagedFiles", **skipped, 4: "StagedFiles"}
    assert [uploader.is_staged(seq) for seq in (1, 2, 3, 4)] == [True, False, False, True]


def test_without_memory_for_a_second_state_a_save_waits_or_is_skipped_itself(uploader, monkeypatch):
    monkeypatch.setattr(upload, "usable_memory", lambda: UsableMemory(80_000, 10_000 + 8_000 - 1))
    uploader.save(1)
    assert uploader.begun.get(timeout=240) == 1
    with pytest.raises(SaveSkippedError):
        uploader.save(2, can_skip=True)
    third = threading.Thread(target=uploader.save, args=(3,))
    third.start()
    uploader.may_continue.set()
    third.join(60)
    assert uploader.list_outcomes() == dict.fromkeys((1, 3), "StagedFiles")


def test_a_save_that_another_rank_gave_up_stops_in_the_middle_and_leaves_nothing(uploader):
    for seq in (1, 2):
        uploader.save(seq)
    assert uploader.begun.get(timeout=240) == 1
    for seq in (1, 2):
        uploader.cancel(seq)
    uploader.save(3)
    assert uploader.list_outcomes() == {3: "StagedFiles"}
    assert [uploader.is_staged(seq) for seq in (1, 2, 3)] == [False, False, True]
