"""Searches and clones that are kept in an object store: run, killed, continued from elsewhere, read."""

import shutil
import uuid

import pytest
from searching import SCRIPT, Script

from paceline import train, tune
from paceline.train import Checkpoint, DataParallelTrainer, RunConfig
from servers import BUCKET


@pytest.fixture
def spool(tmp_path, monkeypatch):
    monkeypatch.setenv("PACELINE_SPOOL_PATH", str(tmp_path / "spool"))
    return tmp_path / "spool"


@pytest.fixture
def s3_path(s3_environment, spool):
    return f"s3://{BUCKET}/{uuid.uuid4().hex[:8]}"


@pytest.mark.slow
@pytest.mark.parametrize("lost_spool", [pytest.param(False, marks=pytest.mark.chaos), True])
def test_a_search_resumes_from_the_store_after_its_driver_is_killed(tmp_path, s3_path, spool, lost_spool):
    """With the spool lost, as on another machine, what is known is what the store has of journals and checkpoints."""
    with Script(tmp_path, SCRIPT, "plain", s3_path) as script:
        script.kill("00001 3")
        if lost_spool:
            shutil.rmtree(spool)
        done = len(script.steps())
        script.run()
    assert script.steps()[done:] == [("00001", "3"), *(("00002", str(step)) for step in (1, 2, 3))]

    grid = tune.ResultGrid.from_path(f"{s3_path}/search")
    assert [result.metrics["step"] for result in grid] == [3, 3, 3]
    assert grid[1].metrics_dataframe["step"].tolist() == [1, 2, 3]
    assert grid.get_best_result("loss", "min").checkpoint.to_dict() == {"step": 3}
    assert tune.Tuner.can_restore(f"{s3_path}/search")
    assert not tune.Tuner.can_restore(f"{s3_path}/nothing")
    assert len(tune.Tuner.restore(f"{s3_path}/search", print).fit()) == 3


def save_four():
    for i in range(1, 5):
        train.report({"i": i}, checkpoint=Checkpoint.from_dict({"i": i}))


def look_and_save():
    """What it was given, and then a checkpoint of its own."""
    given = train.get_checkpoint()
    assert given is not None
    about = {"path": given.path, "i": given.to_dict()["i"]}
    train.report(about)
    train.report(about, checkpoint=Checkpoint.from_dict({"i": about["i"] + 1}))
    own = train.get_checkpoint()
    assert own is not None
    train.report({**about, "own": own.path})


def fit(function, name, initial=None, **about):
    run_config = RunConfig(name=name, storage_path="search", **about)
    return DataParallelTrainer(function, run_config=run_config, resume_from_checkpoint=initial).fit()


def contents(root):
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def test_in_a_store_the_clone_reads_the_donors_own_objects_and_nothing_is_copied(tmp_path, monkeypatch):
    from fsspec.implementations.dirfs import DirFileSystem
    from fsspec.implementations.local import LocalFileSystem

    monkeypatch.setenv("PACELINE_SPOOL_PATH", str(tmp_path / "spool"))
    kept = {"storage_filesystem": DirFileSystem(str(tmp_path / "store"), LocalFileSystem())}
    donor = fit(save_four, "trial_00000", **kept)
    assert donor.checkpoint is not None
    before = contents(tmp_path / "store/search/trial_00000")
    clone = fit(look_and_save, "trial_00001-1", donor.checkpoint, **kept)
    assert clone.metrics is not None
    assert clone.metrics["path"] == donor.checkpoint.path == "search/trial_00000/attempt_1/checkpoint_000004"
    assert clone.metrics["i"] == 4
    manifests = list((tmp_path / "store/search/trial_00001-1").rglob(".manifest.json"))
    assert [path.parent.name for path in manifests] == ["checkpoint_000002"]
    assert contents(tmp_path / "store/search/trial_00000") == before
