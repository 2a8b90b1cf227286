"""Searches on the cluster: trials placed as a whole, refused where they can never fit, continued when lost."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import ray

from paceline import train, tune
from paceline._core.resource_planner import ResourceBundle
from paceline._storage.run_location import RunLocation
from paceline.train import Checkpoint, DataParallelTrainer, RunConfig, ScalingConfig
from paceline.train.display.terminal import Terminal
from paceline.train.driver.run_session import execute_run
from paceline.train.driver.run_spec import RunEnvironment
from paceline.train.driver.trainer_arguments import build_run_spec
from paceline.tune import TuneConfig, Tuner
from paceline.tune.driver import cluster_capacity, search_storage
from paceline.tune.driver.resource_ledger import TrialNeeds
from paceline.tune.driver.search_capacity import open_search_capacity
from paceline.tune.results.report_history import replay_search
from processes import wait_until


def search(path, trainable, space, **config):
    run_config = RunConfig(storage_path=path, name="search")
    return Tuner(trainable, param_space=space, tune_config=TuneConfig(**config), run_config=run_config).fit()


def make_meeting():
    """A function that goes on when four of its kind have come; made here, it travels by value."""

    def meet(config):
        open(os.path.join(config["path"], str(config["x"])), "w").close()
        while len(os.listdir(config["path"])) < 4:
            time.sleep(0.02)
        for step in (1, 2):
            cwd = {"cwd": os.getcwd()}
            tune.report({"score": config["x"] ** 2, "step": step, **cwd}, checkpoint=Checkpoint.from_dict(config))

    return meet


def test_bundles_become_a_placement_group_of_ray():
    group = tune.PlacementGroupFactory([{"CPU": 1}], "SPREAD").to_placement_group()
    try:
        assert group.wait(60)
        assert group.bundle_specs == [{"CPU": 1.0}]
    finally:
        ray.util.remove_placement_group(group)


def test_a_search_fills_the_cluster_and_finds_the_best(tmp_path):
    """Its trials are runs that threads of this process drive at the same time."""
    (tmp_path / "met").mkdir()
    space = {"path": str(tmp_path / "met"), "x": tune.grid_search([3, -1, 2, -4])}
    grid = search(tmp_path, make_meeting(), space, metric="score", mode="min")
    assert not grid.errors, grid.errors
    scores = sorted((result.metrics["score"], result.metrics["step"]) for result in grid)
    assert scores == [(1, 2), (4, 2), (9, 2), (16, 2)]
    assert all(result.checkpoint.to_dict()["x"] == result.config["x"] for result in grid)
    assert [result.metrics["cwd"] for result in grid] == [os.path.join(result.path, "artifacts") for result in grid]
    assert grid.get_best_result().config["x"] == -1


def make_lonely():
    def be_alone(config):
        mark = os.path.join(config["path"], "here")
        if train.get_context().get_world_rank() == 0:
            os.close(os.open(mark, os.O_CREAT | os.O_EXCL))  # raises where another trial has begun
        train.collective.barrier()
        if train.get_context().get_world_rank() == 0:
            os.unlink(mark)
        train.report({"done": 1})

    return be_alone


@pytest.mark.slow
def test_trials_that_could_each_get_half_of_what_they_need_run_one_after_another(tmp_path):
    """Each node has room for one worker: two trials of two, half placed each, would wait for each other for ever."""
    scaling = ScalingConfig(2, resources_per_worker={"CPU": 1.5})
    trainer = DataParallelTrainer(make_lonely(), scaling_config=scaling)
    space = {"train_loop_config": {"path": str(tmp_path), "x": tune.grid_search([1, 2])}}
    grid = search(tmp_path, trainer, space)
    assert not grid.errors, grid.errors
    assert [result.metrics["done"] for result in grid] == [1, 1]


def test_a_trial_that_no_node_could_ever_have_is_refused_at_once(tmp_path):
    trainer = DataParallelTrainer(make_lonely(), scaling_config=ScalingConfig(1, resources_per_worker={"CPU": 3}))
    with pytest.raises(ValueError, match=r"needs 3 cores, and the cluster has 2 nodes with 2 cores each") as refused:
        search(tmp_path, trainer, {})
    assert "each process has to fit on one node" in str(refused.value)
    assert "no autoscaler" in str(refused.value)


def refresh_until(room, condition):
    wait_until(lambda: (room.refresh(), condition())[1])


def fits(room, needs):
    part = room.allocate(needs)
    if part is not None:
        room.release(part)
    return part is not None


@pytest.mark.slow
def test_a_trial_that_waits_for_its_places_says_so_and_keeps_others_out_only_for_a_while(tmp_path, monkeypatch):
    monkeypatch.setattr(cluster_capacity, "_PATIENCE_S", 1e9)
    lines = []
    room = open_search_capacity(RunConfig(storage_path=tmp_path, name="search"), lines.append)
    others = [ray.util.placement_group([{"CPU": 2}], strategy="STRICT_PACK") for _ in range(2)]
    for group in others:
        ray.get(group.ready(), timeout=240)
    scaling = ScalingConfig(2, resources_per_worker={"CPU": 2})
    part = room.allocate(TrialNeeds((ResourceBundle(2), ResourceBundle(2)), True))  # It waits for others.
    config = RunConfig(storage_path=tmp_path, name="trial_00000")
    trainer = DataParallelTrainer(
        make_lonely(), train_loop_config={"path": str(tmp_path)}, scaling_config=scaling, run_config=config
    )
    results = []

    def play():
        asked = build_run_spec(trainer.trainer_arguments, part.make_target(scaling, config))
        results.append(execute_run(asked, Terminal(config.location.layout, 0, 30.0), RunEnvironment()))

    running = threading.Thread(target=play)
    running.start()
    try:
        small = TrialNeeds((ResourceBundle(1),), True)
        refresh_until(room, lambda: any("capacity: requested 2 workers with 2 CPU each" in line for line in lines))
        ray.util.remove_placement_group(others[0])
        refresh_until(room, lambda: any(not node.in_use.num_cpus for node in room._ledger._nodes.values()))
        assert not fits(room, small)
        monkeypatch.setattr(cluster_capacity, "_PATIENCE_S", 0.0)
        refresh_until(room, lambda: fits(room, small))
        ray.util.remove_placement_group(others[1])
        running.join()
        assert results[0].metrics["done"] == 1
    finally:
        for group in others:
            ray.util.remove_placement_group(group)
        running.join()
        room.close()


SCRIPT = """
import os, signal, sys, time
from paceline import tune
from paceline.train import Checkpoint, RunConfig
from paceline.tune import TuneConfig, Tuner

def function(config):
    last = tune.get_checkpoint()
    begun = last.to_dict()["step"] if last else 0
    for step in range(begun + 1, 4):
        with open(f"{config['path']}/steps", "a") as steps:
            steps.write(f"{config['x']} {step}\\n")
        tune.report({"step": step, "x": config["x"]}, checkpoint=Checkpoint.from_dict({"step": step}))
        if config["x"] == 1 and step == 2 and begun == 0:
            os.kill(int(open(f"{config['path']}/driver").read()), signal.SIGKILL)
            time.sleep(60)

path = os.getcwd()
with open("driver", "w") as driver:
    driver.write(str(os.getpid()))
grid = Tuner(
    function,
    param_space={"x": tune.grid_search([0, 1, 2]), "path": path},
    tune_config=TuneConfig(max_concurrent_trials=1),
    run_config=RunConfig(name="search", storage_path="searches"),
).fit()
assert not grid.errors, grid.errors
print("steps", sorted((r.metrics["x"], r.metrics["step"]) for r in grid))
"""


@pytest.mark.slow
def test_a_lost_cluster_ends_the_search_and_leaves_its_trials_to_be_continued(cluster, lone_cluster, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT.replace("os.kill(", "open(config['path'] + '/lost', 'w') #"))
    environ = {**os.environ, "RAY_ADDRESS": lone_cluster.address, "PACELINE_CLUSTER_PATIENCE_S": "2"}
    with (tmp_path / "out").open("w+") as out:
        script = subprocess.Popen(
            [sys.executable, "script.py"], cwd=tmp_path, stdout=out, stderr=subprocess.STDOUT, env=environ
        )
        try:
            wait_until(lambda: (tmp_path / "lost").exists() or script.poll() is not None)
            lone_cluster.remove(lone_cluster.added[0])
            assert script.wait(100) == 1, (tmp_path / "out").read_text()
        finally:
            script.kill()
            script.wait()
        assert "is lost: its head has not answered" in (tmp_path / "out").read_text()
    search = replay_search(search_storage.load_past_events(RunLocation(str(tmp_path / "searches"), "search")))
    assert not search.trials_with_status("ERROR")
    first, second, *_ = search.trials.values()
    assert first.status == "TERMINATED"
    assert second.status in ("PENDING", "RUNNING"), "as after the death of a driver"
    assert second.checkpoint.iteration == 2


@pytest.mark.slow
def test_a_killed_drivers_search_is_continued_on_the_cluster(cluster, run_script, tmp_path):
    environ = {"RAY_ADDRESS": cluster.address, "PACELINE_CHDIR_TO_TRIAL_DIR": "0"}
    ended = run_script(SCRIPT, env=environ)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    ended = run_script(SCRIPT, env=environ)
    assert ended.returncode == 0, ended.stderr
    assert f"steps {[(x, 3) for x in range(3)]}" in ended.stdout
    steps = [json.loads(f"[{line.replace(' ', ',')}]") for line in (tmp_path / "steps").read_text().splitlines()]
    assert sorted(x for x, step in steps if step == 1) == [0, 1, 2], "nothing that was committed is run twice"
