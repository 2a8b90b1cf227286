"""Trains, saves every step, kills a worker and resumes; ours and Ray Train in turns.

Arguments: a directory, rounds of ours, of Ray Train. Rounds alternate between rank 0 and rank 1.
"""
# ruff: noqa: I001

import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

from paceline import train as our_train
from paceline.train.torch import TorchTrainer as OurTrainer
from _cluster import cluster, make_directory
import torch

LOST_AT, LAST = 3, 4


def read_step(checkpoint):
    if checkpoint is None:
        return 0
    with checkpoint.as_directory() as path:
        return int(torch.load(Path(path, "state.pt"))["step"])


def train_and_fail(train, config):
    """The training function of both; only the module `train` differs."""
    directory, rank = Path(config["directory"]), train.get_context().get_world_rank()
    began_from = step = read_step(train.get_checkpoint())
    while step < LAST:
        step += 1
        total = torch.ones(1000)
        torch.distributed.all_reduce(total)
        if began_from and step == began_from + 1:
            result = {"at": time.time(), "from": began_from}
            (directory / f"restored_{rank}.json").write_text(json.dumps(result))
        with tempfile.TemporaryDirectory() as path:
            torch.save({"step": step, "total": total}, Path(path, "state.pt"))
            train.report({"step": step}, checkpoint=train.Checkpoint.from_directory(path))
        if not began_from and step == LOST_AT and rank == config["victim"]:
            (directory / "lost.json").write_text(json.dumps({"at": time.time(), "step": step}))
            os.kill(os.getpid(), signal.SIGKILL)
    (directory / f"rank_{rank}.json").write_text(json.dumps({"step": step}))


def our_function(config):
    train_and_fail(our_train, config)


def ray_function(config):
    from ray import train

    train_and_fail(train, config)


def our_trainer(config):
    return OurTrainer(
        our_function,
        train_loop_config=config,
        scaling_config=our_train.ScalingConfig(num_workers=2),
        run_config=our_train.RunConfig(
            name="run",
            storage_path=config["directory"],
            failure_config=our_train.FailureConfig(max_failures=1),
        ),
    )


def ray_trainer(config):
    from ray import train
    from ray.train.torch import TorchTrainer

    return TorchTrainer(
        ray_function,
        train_loop_config=config,
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(
            name="run",
            storage_path=config["directory"],
            failure_config=train.FailureConfig(max_failures=1),
        ),
    )


def measure_recovery(make, path, victim):
    make_directory(path)
    make({"directory": str(path), "victim": victim}).fit()
    lost = json.loads((path / "lost.json").read_text())
    restored = [json.loads((path / f"restored_{rank}.json").read_text()) for rank in range(2)]
    ended = [json.loads((path / f"rank_{rank}.json").read_text()) for rank in range(2)]
    assert [one["step"] for one in ended] == [LAST, LAST]
    assert restored[0]["from"] == restored[1]["from"], f"the ranks resumed from different steps: {restored}"
    return {"seconds": max(one["at"] for one in restored) - lost["at"], "lost": lost["step"] - restored[0]["from"]}


directory, rounds, peer_rounds = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
results = {"ours": [], "ray": []}
with cluster():
    for number in range(rounds):
        results["ours"].append(measure_recovery(our_trainer, directory / f"ours-{number}", number % 2))
        if number < peer_rounds:
            results["ray"].append(measure_recovery(ray_trainer, directory / f"ray-{number}", number % 2))
Path(directory, "result.json").write_text(json.dumps(results))
