"""What a worker uploads in the background is what was there when `report()` returned."""

import queue
import shutil
import tempfile
import threading
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest

from paceline._core.system import UsableMemory
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
    assert uploader.begun.get(timeout=60) == 1
    assert uploader.begun.empty()
    uploader.may_continue.set()
    third.join(60)
    assert uploader.list_outcomes() == dict.fromkeys((1, 2, 3), "StagedFiles")
    assert len(uploader._memories) == 2


def test_a_third_save_may_replace_the_one_that_is_not_begun(uploader):
    uploader.save(1)
    assert uploader.begun.get(timeout=60) == 1
    for seq in (2, 3, 4):
        uploader.save(seq, can_skip=True)
    skipped = dict.fromkeys((2, 3), "SaveSkippedError")
    assert uploader.list_outcomes() == {1: "StagedFiles", **skipped, 4: "StagedFiles"}
    assert [uploader.is_staged(seq) for seq in (1, 2, 3, 4)] == [True, False, False, True]


def test_without_memory_for_a_second_state_a_save_waits_or_is_skipped_itself(uploader, monkeypatch):
    monkeypatch.setattr(upload, "usable_memory", lambda: UsableMemory(80_000, 10_000 + 8_000 - 1))
    uploader.save(1)
    assert uploader.begun.get(timeout=60) == 1
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
    assert uploader.begun.get(timeout=60) == 1
    for seq in (1, 2):
        uploader.cancel(seq)
    uploader.save(3)
    assert uploader.list_outcomes() == {3: "StagedFiles"}
    assert [uploader.is_staged(seq) for seq in (1, 2, 3)] == [False, False, True]
