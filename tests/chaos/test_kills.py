"""Kills at random moments, of workers and of the driver: the end is that of an undisturbed run."""

import random
import signal

import oracle
import pytest
from lives import Script

from paceline.testing import Faults
from paceline.train import DataParallelTrainer, Result
from processes import still_running

STEPS = 60


@pytest.mark.seeds(40)
def test_a_run_killed_at_random_moments_ends_as_an_undisturbed_one(
    tmp_path, temporary, seed, undisturbed, processes_in, fault_table
):
    expected = undisturbed(DataParallelTrainer, oracle.small, STEPS)
    faults = f"Faults(seed={seed}).kills(8, num_reports={STEPS})"
    dice = random.Random(seed)
    script = Script(tmp_path, faults=faults, steps=STEPS, max_failures=40, num_to_keep=5)
    with fault_table.trying("workers and drivers killed at random moments") as trial:
        for life in range(20):
            code = script.run(dice.uniform(0.4, 1.6) if life < 3 and dice.random() < 0.7 else None)
            if code == 0:
                break
            assert code == -signal.SIGKILL, script.stderr
            alive = still_running(processes_in(tmp_path), within_s=oracle.GONE_WITHIN_S)
            assert alive == [], "processes are left after the driver was killed"
        else:
            pytest.fail(f"seed {seed} did not end: {script.stderr}")
        oracle.assert_same(script.path, expected, weights=oracle.weights_of(script.path))
        for checkpoint, metrics in Result.from_path(script.path).best_checkpoints:
            checkpoint.verify()
            assert checkpoint.to_dict()["step"] == metrics["step"]
        trial.seconds = oracle.worst_stand(script.path, eval(faults, {"Faults": Faults}))
