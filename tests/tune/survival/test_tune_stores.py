"""Searches and clones that are kept in an object store: run, killed, continued from elsewhere, read."""

import shutil
import uuid

import pytest
from searching import Script

from paceline import train, tune
from paceline.train import Checkpoint, DataParallelTrainer, RunConfig
from servers import BUCKET

SCRIPT = """
import sys, time
from pathlib import Path
from paceline import tune

def trial(config):
    last = tune.get_checkpoint()
    start = last.to_dict()["step"] if last else 0
    for step in range(start + 1, 4):
        with open("steps", "a") as steps:
            steps.write(f"{config['x']}.{step}\\n")
        saved = tune.Checkpoint.from_dict({"step": step})
        tune.report({"loss": config["x"] + 1 / step, "step": step, "start": start}, checkpoint=saved)
        if config["x"] == 1 and step == 2 and not start:
            Path("reached").touch()
            time.sleep(100)

tuner = tune.Tuner(
    trial,
    param_space={"x": tune.grid_search([0, 1, 2])},
    tune_config=tune.TuneConfig(metric="loss", mode="min", max_concurrent_trials=1),
    run_config=tune.RunConfig(name="search", storage_path=sys.argv[1]),
)
grid = tuner.fit()
print("done", *[result.metrics["start"] for result in grid])
"""


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
    with Script(tmp_path, SCRIPT, s3_path) as script:
        driver = script.start()
        assert script.wait_until(driver, (tmp_path / "reached").exists), script.said
        driver.kill()
        driver.wait()
        if lost_spool:
            shutil.rmtree(spool)
        assert [step for (step,) in script.steps()] == ["0.1", "0.2", "0.3", "1.1", "1.2"]
        script.run()
    assert script.printed.splitlines()[-1] == "done 0 2 0"
    assert [step for (step,) in script.steps()][5:] == ["1.3", "2.1", "2.2", "2.3"]

    grid = tune.ResultGrid.from_path(f"{s3_path}/search")
    assert [result.metrics["step"] for result in grid] == [3, 3, 3]
    assert grid[1].metrics_dataframe["step"].tolist() == [1, 2, 3]
    best = grid.get_best_result("loss", "min")
    assert (best.config, best.checkpoint.to_dict()) == ({"x": 0}, {"step": 3})
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
