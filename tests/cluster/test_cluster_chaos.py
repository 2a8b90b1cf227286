"""The long sweep on a cluster, for `make chaos`: one fault to a run, everywhere, and kills at random moments.

`test_faults.py` has the short one.
"""

import os
import random
import signal

import oracle
import pytest
import test_phases
from lives import Script

from paceline.testing import Faults
from paceline.train import DataParallelTrainer, ScalingConfig

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]

STEPS = 4
NUM_LINES = 1 + 2 + 2 * STEPS + 2 * (STEPS // 2) + STEPS // 2 + 2 + 1
"""Of the journal of an undisturbed run: see tests/chaos/test_driver_loss.py."""


def survive(faults, path, undisturbed, kind=DataParallelTrainer, function=oracle.small, steps=oracle.STEPS, **options):
    result = faults.applied_to(oracle.trainer_of(kind, function, path, steps, **options)).fit()
    oracle.assert_same(result.path, undisturbed(kind, function, steps))
    return result.path


@pytest.mark.parametrize(("rank", "at"), test_phases.FULL, ids=str)
def test_a_run_with_any_rank_killed_anywhere_ends_as_an_undisturbed_one(tmp_path, rank, at, undisturbed, fault_table):
    kind, function = test_phases.kind_for(at.phase)
    faults = test_phases.killed(rank, at)
    with fault_table.trying(f"on a cluster, rank killed in {at.phase}") as trial:
        path = survive(faults, tmp_path, undisturbed, kind, function)
        assert faults.unfired(path) == []
        assert oracle.causes(path) == [(fault.rank, "killed") for fault, _ in faults.fired(path)], "the cause is named"
        trial.seconds = oracle.worst_stand(path, faults)


@pytest.mark.parametrize("line", range(1, NUM_LINES + 1))
def test_a_driver_killed_after_any_line_of_its_journal(tmp_path, line, cluster, undisturbed, fault_table):
    script = Script(
        tmp_path, faults=f"Faults().lose_driver(after={line})", env={"RAY_ADDRESS": cluster.address}, steps=STEPS
    )
    with fault_table.trying("on a cluster, driver killed after a journal line"):
        assert script.lived() == -signal.SIGKILL, script.said
        assert os.listdir(tmp_path / "tmp") == []
        assert script.lived() == 0, script.said
        expected = undisturbed(DataParallelTrainer, oracle.small, STEPS)
        oracle.assert_same(script.path, expected, weights=oracle.weights_of(script.path))


@pytest.mark.parametrize("seed", range(100, 120))
def test_workers_killed_hung_and_preempted_at_random_moments(tmp_path, seed, cluster, undisturbed, fault_table):
    """On a node that is not the driver's, where a notice is no end of the run; messages come twice and out of order."""
    import ray

    dice = random.Random(f"cluster {seed}")
    here = ray.get_runtime_context().get_node_id()
    elsewhere = next(node for node in cluster.added if node != here)
    faults = Faults(seed=seed).kills(6, num_reports=24).duplicate("*", times=60).reorder("*", times=60)
    faults = faults.hang(dice.choice((0, 1)), ("step", dice.randint(2, 24)), dice.choice(("asleep", "stopped", "gil")))
    faults = faults.preempt(dice.choice((0, 1)), 20.0, ("step", dice.randint(2, 24)))
    options = {"hang_timeout_s": 1.0, "hang_action": "restart", "max_failures": 40}
    options["scaling"] = ScalingConfig(2, label_selector={"ray.io/node-id": elsewhere})
    with fault_table.trying("on a cluster, everything at random moments") as trial:
        path = survive(faults, tmp_path, undisturbed, steps=24, **options)
        trial.seconds = oracle.worst_stand(path, faults)
