"""The working directory of a trial: its own, so that relative paths of concurrent trials do not mix."""

import os
import sys
from pathlib import Path

import pytest
from tuners import make_tuner

from paceline import train, tune
from paceline.train import DataParallelTrainer


def write_weights(x):
    Path("weights").mkdir(exist_ok=True)
    Path("weights", f"{os.getpid()}").write_text(f"{x}")
    import beside_the_script

    return {"cwd": os.getcwd(), "origin": os.environ.get("TUNE_ORIG_WORKING_DIR"), "x": beside_the_script.X}


def function(config):
    tune.report(write_weights(config["x"]), checkpoint=tune.Checkpoint.from_directory("weights"))


def loop(config):
    train.report(write_weights(config["x"]), checkpoint=tune.Checkpoint("weights"))


class Steps(tune.Trainable):
    def setup(self, config):
        self.x = config["x"]

    def step(self):
        return {**write_weights(self.x), "done": True}

    def save_checkpoint(self, checkpoint_dir):
        return {"x": self.x}


@pytest.fixture
def search(tmp_path, monkeypatch):
    def search(trainable, space, run=None, **tune_config):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", ["", *sys.path])
        Path("beside_the_script.py").write_text("X = 3")
        return make_tuner("searches", trainable, space, run, **tune_config).fit()

    return search


X = tune.grid_search([1, 2])


@pytest.mark.parametrize(
    ("trainable", "space", "files"),
    [
        (function, {"x": X}, 1),
        (Steps, {"x": X}, 1),
        (
            DataParallelTrainer(loop, scaling_config={"num_workers": 2, "resources_per_worker": {"CPU": 0.5}}),
            {"train_loop_config": {"x": X}},
            2,
        ),
    ],
    ids=["function", "class", "trainer"],
)
def test_each_trial_has_a_working_directory_of_its_own(search, tmp_path, trainable, space, files):
    grid = search(trainable, space)
    assert not grid.errors
    for x, result in zip((1, 2), grid, strict=True):
        assert result.metrics["cwd"] == str(tmp_path / "searches" / "search" / f"trial_{x - 1:05d}" / "artifacts")
        assert (result.metrics["origin"], result.metrics["x"]) == (str(tmp_path), 3)
        written = [path.read_text() for path in Path(result.path, "artifacts", "weights").iterdir()]
        assert written == [str(x)] * files
    assert not (tmp_path / "weights").exists()


@pytest.mark.parametrize("by", ["argument", "variable"])
def test_trials_may_share_the_directory_of_the_script(search, tmp_path, monkeypatch, by):
    if by == "variable":
        monkeypatch.setenv("PACELINE_CHDIR_TO_TRIAL_DIR", "0")
    (result,) = search(function, {"x": 1}, chdir_to_trial_dir=by == "variable")
    assert (result.metrics["cwd"], result.metrics["origin"]) == (str(tmp_path), None)


@pytest.mark.parametrize("uploads", [True, False])
def test_artifacts_of_a_search_in_a_store_are_uploaded_if_asked_for_and_else_named(
    search, tmp_path, monkeypatch, uploads
):
    from fsspec.implementations.dirfs import DirFileSystem
    from fsspec.implementations.local import LocalFileSystem

    monkeypatch.setenv("PACELINE_SPOOL_PATH", "spool")
    store = DirFileSystem(str(tmp_path / "store"), LocalFileSystem())
    sync = tune.SyncConfig(sync_artifacts=uploads)
    (result,) = search(function, {"x": 1}, {"storage_filesystem": store, "storage_path": "a", "sync_config": sync})
    assert Path(result.metrics["cwd"]).is_relative_to(tmp_path / "spool")
    in_store = [path.read_text() for path in (tmp_path / "store" / "a" / "search").rglob("artifacts/weights/*")]
    assert in_store == (["1"] if uploads else [])
    (log,) = (tmp_path / "store").rglob("rank_0.log")
    assert ("1 files in the working directory" in log.read_text()) is not uploads
