"""The long sweep on a cluster, for `make chaos`: one fault to a run, everywhere, and kills at random moments.

`test_faults.py` has the short one.
"""

import os
import random

import oracle
import pytest
import test_phases
from lives import Script
from test_driver_loss import NUM_LINES, STEPS

from paceline.testing import Faults
from paceline.train import DataParallelTrainer, ScalingConfig

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]


@pytest.mark.parametrize(("rank", "at"), test_phases.FULL, ids=str)
def test_a_run_with_any_rank_killed_anywhere_ends_as_an_undisturbed_one(rank, at, fit_with, fault_table):
    kind, function = test_phases.choose_trainer(at.phase)
    faults = test_phases.plant_kill(rank, at)
    with fault_table.trying(f"on a cluster, rank killed in {at.phase}") as trial:
        path = fit_with(faults, kind, function)
        assert oracle.causes(path) == [(fault.rank, "killed") for fault, _ in faults.fired(path)], "the cause is named"
        trial.seconds = oracle.worst_stand(path, faults)


@pytest.mark.parametrize("line", range(1, NUM_LINES + 1))
def test_a_driver_killed_after_any_line_of_its_journal(tmp_path, line, cluster, undisturbed, fault_table):
    faults = f"Faults().lose_driver(after={line})"
    script = Script(tmp_path, faults=faults, env={"RAY_ADDRESS": cluster.address}, steps=STEPS)
    with fault_table.trying("on a cluster, driver killed after a journal line"):
        assert script.run_until_it_ends(1) == 1
        assert os.listdir(tmp_path / "tmp") == []
        expected = undisturbed(DataParallelTrainer, oracle.small, STEPS)
        oracle.assert_same(script.path, expected, weights=oracle.weights_of(script.path))


@pytest.mark.parametrize("seed", range(100, 120))
def test_workers_killed_hung_and_preempted_at_random_moments(seed, cluster, fit_with, fault_table):
    """On a node that is not the driver's, where a notice is no end of the run; messages come twice and out of order."""
    import ray

    dice = random.Random(f"cluster {seed}")
    here = ray.get_runtime_context().get_node_id()
    elsewhere = next(node for node in cluster.added if node != here)
    faults = Faults(seed=seed).kills(6, num_reports=24).duplicate("*", times=60).reorder("*", times=60)
    faults = faults.hang(dice.choice((0, 1)), ("step", dice.randint(2, 24)), dice.choice(("asleep", "stopped", "gil")))
    faults = faults.preempt(dice.choice((0, 1)), 20.0, ("step", dice.randint(2, 24)))
    options = {"hang_timeout_s": 3.0, "hang_action": "restart", "max_failures": 40, "unfired": True}
    options["scaling"] = ScalingConfig(2, label_selector={"ray.io/node-id": elsewhere})
    with fault_table.trying("on a cluster, kills, a hang and a preemption at random moments") as trial:
        path = fit_with(faults, steps=24, **options)
        trial.seconds = oracle.worst_stand(path, faults)
