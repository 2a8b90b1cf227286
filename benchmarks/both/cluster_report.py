"""Reports of four numbers, each timed in the worker, ours and Ray Train in turns.

Arguments: a directory, rounds of ours, of Ray Train, reports of ours in each, of Ray Train.
"""
# ruff: noqa: I001

import json
import sys
import time
from pathlib import Path

from paceline import train as our_train
from paceline.train.torch import TorchTrainer as OurTrainer
from _cluster import cluster, emptied


def timed(report, rank, config):
    took = []
    for i in range(config["count"]):
        before = time.perf_counter()
        report({"i": i, "loss": 0.25, "accuracy": 0.75, "rate": 1e-3})
        took.append(time.perf_counter() - before)
    Path(config["directory"], f"rank_{rank}.json").write_text(json.dumps(took))


def our_function(config):
    timed(our_train.report, our_train.get_context().get_world_rank(), config)


def rays_function(config):
    from ray import train

    timed(train.report, train.get_context().get_world_rank(), config)


def ours(config):
    return OurTrainer(
        our_function,
        train_loop_config=config,
        scaling_config=our_train.ScalingConfig(num_workers=2),
        run_config=our_train.RunConfig(name="run", storage_path=config["directory"]),
    )


def rays(config):
    from ray import train
    from ray.train.torch import TorchTrainer

    return TorchTrainer(
        rays_function,
        train_loop_config=config,
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(name="run", storage_path=config["directory"]),
    )


def reported(make, path, count):
    emptied(path)
    make({"directory": str(path), "count": count}).fit()
    took = [json.loads((path / f"rank_{rank}.json").read_text()) for rank in range(2)]
    assert [len(one) for one in took] == [count, count]
    # The first one finds an empty queue.
    return [seconds for one in took for seconds in one[1:]]


directory, rounds, peer_rounds, count, peer_count = Path(sys.argv[1]), *map(int, sys.argv[2:])
found = {"ours": [], "ray": []}
with cluster():
    for number in range(rounds):
        found["ours"].append(reported(ours, directory / f"ours-{number}", count))
        if number < peer_rounds:
            found["ray"].append(reported(rays, directory / f"ray-{number}", peer_count))
Path(directory, "found.json").write_text(json.dumps(found))
