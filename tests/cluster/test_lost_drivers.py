"""A lost driver and a lost cluster: nothing of the run is left, and the same script continues it."""

import os

import oracle
import pytest
from left_over import assert_nothing_is_left
from lives import Script

from paceline.train import DataParallelTrainer

pytestmark = pytest.mark.slow


def test_a_killed_driver_leaves_nothing_on_the_cluster_and_the_run_continues(cluster, tmp_path, undisturbed):
    expected = undisturbed(DataParallelTrainer, oracle.small)
    faults = "Faults().lose_driver(after='Committed').lose_all(1, at=('upload', 6))"
    script = Script(tmp_path, faults=faults, env={"RAY_ADDRESS": cluster.address})
    assert script.run_until_it_ends(2, lambda: assert_nothing_is_left(cluster.name)) == 2
    assert "on the Ray cluster at" in script.stderr
    assert os.listdir(tmp_path / "tmp") == []
    oracle.assert_same(script.path, expected, weights=oracle.weights_of(script.path))


def test_a_lost_cluster_ends_the_script_with_an_error_and_another_one_continues(
    cluster, lone_cluster, tmp_path, undisturbed
):
    options = {"steps": 20, "max_failures": 0, "config": {"pace_s": 0.0, "every": 2, "gate": str(tmp_path / "gate")}}
    environ = {"RAY_ADDRESS": lone_cluster.address, "PACELINE_CLUSTER_PATIENCE_S": "2"}
    first = Script(tmp_path, "paced", env=environ, **options)
    process = first.start()
    first.await_lines(20, process)
    lone_cluster.remove(lone_cluster.added[0])
    assert process.wait(100) == 1, first.stderr
    error = first.stderr.rpartition("paceline.train.ControllerError: ")[2]
    assert error.startswith(f"ClusterLostError: the Ray cluster at {lone_cluster.address} is lost: "), first.stderr
    assert error.endswith(
        "hint: run the script again on a running cluster, with the same storage, to continue from the last checkpoint\n"
    )

    (tmp_path / "gate").touch()
    again = Script(tmp_path, "paced", env={"RAY_ADDRESS": cluster.address}, **options)
    assert again.run() == 0, again.stderr
    assert "continues, from checkpoint_" in again.stderr
    expected = undisturbed(DataParallelTrainer, oracle.small, 20)
    oracle.assert_same(again.path, expected, weights=oracle.weights_of(again.path))
