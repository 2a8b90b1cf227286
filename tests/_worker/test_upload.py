"""What a worker uploads in the background is what was there when `report()` returned."""

import shutil
import tempfile
import threading
from concurrent.futures import Future
from pathlib import Path

import pytest

from paceline._storage.files import LocalFiles
from paceline._storage.run_layout import RunLayout
from paceline._storage.run_store import DiskRunStore
from paceline._worker.upload import Directory, Uploader


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
