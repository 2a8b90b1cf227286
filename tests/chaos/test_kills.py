"""Kills at random moments, of workers and of the driver: the end is that of an undisturbed run.

The seed is in the name of the test; `make chaos` runs many of them, `make test` a few.
"""

import os
import random
import signal
import subprocess
import sys

import psutil
import pytest

from paceline.train import Result

SCRIPT = """
import os, random, signal, sys, threading
from paceline import train
from paceline.train import Checkpoint, CheckpointUploadMode, DataParallelTrainer
from paceline.train import FailureConfig, RunConfig, ScalingConfig

STEPS = 60

def function(config):
    rank = train.get_context().get_world_rank()
    seed = (config["seed"], config["life"], os.getpid(), rank)
    dice = random.Random(repr(seed))
    if dice.random() < 0.7 and config["deadly"]:
        # At any moment at all: in the middle of a report, an upload, a rename, or the start of the function.
        threading.Timer(dice.random() * 0.15, os.kill, (os.getpid(), signal.SIGKILL)).start()
    last = train.get_checkpoint()
    step, value = (0, 1.0) if last is None else (last.to_dict()["step"], last.to_dict()["value"])
    while step < STEPS:
        step += 1
        value = (value * 1.1 + step) % 97
        checkpoint = None
        if step % 3 == 0:
            checkpoint = Checkpoint.from_dict({"step": step, "value": value, "rank": [rank]})
        mode = CheckpointUploadMode.ASYNC if step % 2 else CheckpointUploadMode.SYNC
        train.report({"step": step, "value": value}, checkpoint=checkpoint, checkpoint_upload_mode=mode)

seed, life, deadly = map(int, sys.argv[1:4])
DataParallelTrainer(
    function,
    train_loop_config={"seed": seed, "life": life, "deadly": deadly},
    scaling_config=ScalingConfig(2),
    run_config=RunConfig(name="run", storage_path="runs", failure_config=FailureConfig(max_failures=40)),
).fit()
"""


def expected():
    values, value = [], 1.0
    for step in range(1, 61):
        value = (value * 1.1 + step) % 97
        values.append(value)
    return values


def survive(tmp_path, seed, processes_in):
    """Run the script, killed again and again, until it ends by itself; then compare."""
    dice = random.Random(seed)
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    for life in range(20):
        driver_dies = life < 3 and dice.random() < 0.7
        with (tmp_path / "err").open("ab") as err:
            process = subprocess.Popen(
                [sys.executable, str(script), str(seed), str(life), str(int(life < 6))],
                cwd=tmp_path,
                stdout=subprocess.DEVNULL,
                stderr=err,
            )
            try:
                process.wait(timeout=dice.uniform(0.4, 1.6) if driver_dies else 60)
            except subprocess.TimeoutExpired:
                os.kill(process.pid, signal.SIGKILL)
                process.wait()
                _, alive = psutil.wait_procs(processes_in(tmp_path), timeout=2)
                assert alive == [], f"left behind after the driver was killed, seed {seed}"
        if process.returncode == 0:
            break
    else:
        pytest.fail(f"seed {seed} did not end: {(tmp_path / 'err').read_text()[-3000:]}")
    result = Result.from_path(tmp_path / "runs" / "run")
    rows = result.metrics_dataframe
    assert rows["step"].tolist() == list(range(1, 61)), f"contiguous, each once, seed {seed}"
    assert rows["value"].tolist() == expected(), f"seed {seed}"
    assert result.checkpoint.to_dict()["value"] == expected()[-1]
    for checkpoint, metrics in result.best_checkpoints:
        checkpoint.verify()
        assert checkpoint.to_dict()["value"] == metrics["value"]


@pytest.mark.parametrize("seed", range(2))
def test_a_run_killed_at_random_moments_ends_as_an_undisturbed_one(tmp_path, seed, processes_in):
    survive(tmp_path, seed, processes_in)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(100, 140))
def test_many_runs_killed_at_random_moments_end_as_undisturbed_ones(tmp_path, seed, processes_in):
    survive(tmp_path, seed, processes_in)
