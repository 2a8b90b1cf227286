"""Times reports of four numbers in the worker, ours and Ray Train in turns.

Arguments: a directory, rounds of ours, of Ray Train, reports of ours in each, of Ray Train.
"""
# ruff: noqa: I001

import json
import sys
import time
from pathlib import Path

from paceline import train as our_train
from paceline.train.torch import TorchTrainer as OurTrainer
from _cluster import cluster, make_directory


def time_reports(report, rank, config):
    took = []
    for i in range(config["count"]):
        before = time.perf_counter()
        report({"i": i, "loss": 0.25, "accuracy": 0.75, "rate": 1e-3})
        took.append(time.perf_counter() - before)
    Path(config["directory"], f"rank_{rank}.json").write_text(json.dumps(took))


def our_function(config):
    time_reports(our_train.report, our_train.get_context().get_world_rank(), config)


def ray_function(config):
    from ray import train

    time_reports(train.report, train.get_context().get_world_rank(), config)


def our_trainer(config):
    return OurTrainer(
        our_function,
        train_loop_config=config,
        scaling_config=our_train.ScalingConfig(num_workers=2),
        run_config=our_train.RunConfig(name="run", storage_path=config["directory"]),
    )


def ray_trainer(config):
    from ray import train
    from ray.train.torch import TorchTrainer

    return TorchTrainer(
        ray_function,
        train_loop_config=config,
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(name="run", storage_path=config["directory"]),
    )


def measure_reports(make, path, count):
    make_directory(path)
    make({"directory": str(path), "count": count}).fit()
    took = [json.loads((path / f"rank_{rank}.json").read_text()) for rank in range(2)]
    assert [len(one) for one in took] == [count, count]
    # The first report finds an empty queue.
    return [seconds for one in took for seconds in one[1:]]


directory, rounds, peer_rounds, count, peer_count = Path(sys.argv[1]), *map(int, sys.argv[2:])
results = {"ours": [], "ray": []}
with cluster():
    for number in range(rounds):
        results["ours"].append(measure_reports(our_trainer, directory / f"ours-{number}", count))
        if number < peer_rounds:
            results["ray"].append(measure_reports(ray_trainer, directory / f"ray-{number}", peer_count))
Path(directory, "result.json").write_text(json.dumps(results))
