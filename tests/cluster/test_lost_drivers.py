"""A driver that is lost, and a cluster that is: nothing is left of the run, and the same script continues it."""

import os
import re
import signal
import subprocess
import sys
import time

from left_over import left

from paceline.train import Result

SCRIPT = """
import os, sys, time
from paceline import train
from paceline.train import Checkpoint, DataParallelTrainer, RunConfig, ScalingConfig

def function(config):
    last = train.get_checkpoint()
    start = last.to_dict()["i"] + 1 if last else 0
    rank = train.get_context().get_world_rank()
    for i in range(start, config["until"]):
        train.report({"i": i})
        train.report({"i": i + 0.5}, checkpoint=Checkpoint.from_dict({"i": i}))
        if i == 5 and rank == 1 and config["signal"]:
            os.kill(config["driver"], config["signal"])
        if i == 5 and rank == 0:
            open("reached", "w").close()
        time.sleep(config["pause"])
    return "returned"

until, signum, pause = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
result = DataParallelTrainer(
    function,
    train_loop_config={"until": until, "signal": signum, "driver": os.getpid(), "pause": pause},
    scaling_config=ScalingConfig(2),
    run_config=RunConfig(name="run", storage_path="runs"),
).fit()
print("value", result.return_value)
"""


def continued(ended, tmp_path, until):
    """The run that another script continued: every report once, from the last checkpoint that was told of."""
    assert ended.returncode == 0, ended.stderr
    assert "value returned" in ended.stdout
    start = int(re.search(r"continues, from checkpoint_(\d+)", ended.stderr).group(1))
    assert start >= 12
    rows = Result.from_path(tmp_path / "runs" / "run").metrics_dataframe["i"].tolist()
    assert rows == [i / 2 for i in range(2 * until)]


def test_a_killed_driver_leaves_nothing_on_the_cluster_and_the_run_continues(cluster, run_script, tmp_path):
    environ = {"RAY_ADDRESS": cluster.address}
    ended = run_script(SCRIPT, "20", str(int(signal.SIGKILL)), "0.02", env=environ)
    killed_at = time.monotonic()
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    while what := left(cluster.name):
        assert time.monotonic() - killed_at < 10, what
        time.sleep(0.05)
    print(f"gone after {time.monotonic() - killed_at:.1f} s")
    continued(run_script(SCRIPT, "20", "0", "0", env=environ), tmp_path, 20)


def test_a_lost_cluster_ends_the_script_with_an_error_and_another_one_continues(
    cluster, lone_cluster, run_script, tmp_path
):
    (tmp_path / "first.py").write_text(SCRIPT)
    environ = {**os.environ, "RAY_ADDRESS": lone_cluster.address, "PACELINE_CLUSTER_PATIENCE_S": "2"}
    with (tmp_path / "out").open("w+") as out:
        script = subprocess.Popen(
            [sys.executable, "first.py", "1000000", "0", "0.02"],
            cwd=tmp_path,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environ,
        )
        try:
            while not (tmp_path / "reached").exists() and script.poll() is None:
                time.sleep(0.05)
            lone_cluster.remove(lone_cluster.added[0])
            assert script.wait(timeout=40) == 1, (tmp_path / "out").read_text()
        finally:
            script.kill()
            script.wait()
    said = (tmp_path / "out").read_text()
    error = said.rpartition("paceline.train.ControllerError: ")[2]
    assert error.startswith(f"ClusterLostError: the Ray cluster at {lone_cluster.address} is gone: "), said
    assert error.endswith(
        "hint: run the script again on a cluster that is there, with the same storage: "
        "it continues from the last checkpoint\n"
    )

    reached = Result.from_path(tmp_path / "runs" / "run").checkpoint.to_dict()["i"]
    ended = run_script(SCRIPT, str(reached + 3), "0", "0", env={"RAY_ADDRESS": cluster.address})
    continued(ended, tmp_path, reached + 3)
