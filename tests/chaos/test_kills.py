"""Kills at random moments, of workers and of the driver: the end is that of an undisturbed run.

The seed is in the name of the test; `make chaos` runs many of them, `make test` a few.
"""

import os
import random
import signal
import subprocess
import sys
import threading

import oracle
import pytest

from paceline.testing import Faults
from paceline.train import Result
from processes import still_running

SCRIPT = """
import sys
from paceline import train
from paceline.testing import Faults
from paceline.train import Checkpoint, CheckpointUploadMode, DataParallelTrainer
from paceline.train import FailureConfig, RunConfig, ScalingConfig

STEPS = 60

def function():
    rank = train.get_context().get_world_rank()
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

Faults(seed=int(sys.argv[1])).kills(8, num_reports=STEPS).applied_to(
    DataParallelTrainer(
        function,
        scaling_config=ScalingConfig(2),
        run_config=RunConfig(name="run", storage_path="runs", failure_config=FailureConfig(max_failures=40)),
    )
).fit()
"""


def expected():
    values, value = [], 1.0
    for step in range(1, 61):
        value = (value * 1.1 + step) % 97
        values.append(value)
    return values


def survive(tmp_path, seed, processes_in, fault_table):
    """Run the script until it ends by itself, its driver killed after random times as well; then compare."""
    faults = Faults(seed=seed).kills(8, num_reports=60)
    dice = random.Random(seed)
    path = tmp_path / "runs" / "run"
    (tmp_path / "script.py").write_text(SCRIPT)
    with fault_table.trying("workers and drivers killed at random moments") as trial:
        for life in range(20):
            dies_after = dice.uniform(0.4, 1.6) if life < 3 and dice.random() < 0.7 else None
            if lived(tmp_path, seed, dies_after) == 0:
                break
            alive = still_running(processes_in(tmp_path))
            assert alive == [], f"left behind after the driver was killed, seed {seed}"
        else:
            pytest.fail(f"seed {seed} did not end: {(tmp_path / 'err').read_text()[-3000:]}")
        result = Result.from_path(path)
        rows = result.metrics_dataframe
        assert rows["step"].tolist() == list(range(1, 61)), f"contiguous, each once, seed {seed}"
        assert rows["value"].tolist() == expected(), f"seed {seed}"
        assert result.checkpoint.to_dict()["value"] == expected()[-1]
        for checkpoint, metrics in result.best_checkpoints:
            checkpoint.verify()
            assert checkpoint.to_dict()["value"] == metrics["value"]
        trial.seconds = oracle.worst_stand(path, faults)


def lived(tmp_path, seed, dies_after):
    """Run the script once, killed after a time unless it ends before, and return its exit code."""
    with (tmp_path / "err").open("ab") as err:
        process = subprocess.Popen(
            [sys.executable, "script.py", str(seed)], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=err
        )
    killer = threading.Timer(dies_after or 60, os.kill, (process.pid, signal.SIGKILL))
    killer.start()
    code = process.wait()
    killer.cancel()
    assert code in (0, -signal.SIGKILL), (tmp_path / "err").read_text()[-3000:]
    return code


@pytest.mark.seeds(40, few=2)
def test_a_run_killed_at_random_moments_ends_as_an_undisturbed_one(tmp_path, seed, processes_in, fault_table):
    survive(tmp_path, seed, processes_in, fault_table)
