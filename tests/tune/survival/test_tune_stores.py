"""Searches that are kept in an object store: run, killed, continued from elsewhere, read."""

import shutil
import signal
import subprocess
import sys
import time
import uuid

import pytest

from paceline import tune
from paceline.train import DataParallelTrainer, RunConfig, StorageError
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
            steps.write(f"{config['x']}.{step} ")
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


def kill_at_a_step(tmp_path, s3_path):
    (tmp_path / "search.py").write_text(SCRIPT)
    with (tmp_path / "out").open("wb") as out:
        driver = subprocess.Popen([sys.executable, "search.py", s3_path], cwd=tmp_path, stdout=out, stderr=out)
        while not (tmp_path / "reached").exists():
            assert driver.poll() is None, (tmp_path / "out").read_text()
            time.sleep(0.02)
        driver.send_signal(signal.SIGKILL)
        driver.wait()


@pytest.mark.parametrize(
    "lost_spool",
    [pytest.param(False, marks=pytest.mark.chaos, id="spool_there"), pytest.param(True, id="spool_lost")],
)
def test_a_search_goes_on_from_the_store_after_its_driver_was_killed(tmp_path, s3_path, spool, run_script, lost_spool):
    """With the spool lost, as on another machine, what is known is what the store has of journals and checkpoints."""
    kill_at_a_step(tmp_path, s3_path)
    if lost_spool:
        shutil.rmtree(spool)
    before = (tmp_path / "steps").read_text().split()
    assert before == ["0.1", "0.2", "0.3", "1.1", "1.2"]
    ended = run_script(SCRIPT, s3_path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == "done 0 2 0"
    assert (tmp_path / "steps").read_text().split()[5:] == ["1.3", "2.1", "2.2", "2.3"]

    grid = tune.ResultGrid.from_path(f"{s3_path}/search")
    assert [result.metrics["step"] for result in grid] == [3, 3, 3]
    assert grid[1].metrics_dataframe["step"].tolist() == [1, 2, 3]
    best = grid.get_best_result("loss", "min")
    assert (best.config, best.checkpoint.to_dict()) == ({"x": 0}, {"step": 3})
    assert tune.Tuner.can_restore(f"{s3_path}/search")
    assert not tune.Tuner.can_restore(f"{s3_path}/nothing")
    assert len(tune.Tuner.restore(f"{s3_path}/search", print).fit()) == 3


def test_in_a_store_too_a_run_is_no_search_and_a_search_no_run(s3_path):
    def once(config=None):
        from paceline import train

        train.report({"loss": 1})

    def tuner(name):
        return tune.Tuner(once, run_config=tune.RunConfig(name=name, storage_path=s3_path))

    DataParallelTrainer(once, run_config=RunConfig(name="run", storage_path=s3_path)).fit()
    with pytest.raises(StorageError, match="holds a run of a trainer, not a search"):
        tuner("run").fit()
    tuner("search").fit()
    with pytest.raises(StorageError, match="holds a search, not a run"):
        DataParallelTrainer(once, run_config=RunConfig(name="search", storage_path=s3_path)).fit()
    assert [result.metrics["loss"] for result in tuner("search").fit()] == [1], "it is as it was"
