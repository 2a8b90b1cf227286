"""Fits an empty function on two workers, ours and Ray Train in turns.

Arguments: a directory, rounds of ours, of Ray Train.
"""
# ruff: noqa: I001

import json
import sys
import time
from pathlib import Path

from paceline import train as our_train
from paceline.train.torch import TorchTrainer as OurTrainer
from _cluster import cluster, make_directory


def noop(config):
    """Only prove that the worker ran."""
    Path(config["proof"]).mkdir(exist_ok=True)
    (Path(config["proof"]) / str(time.monotonic_ns())).touch()


def our_trainer(path):
    return OurTrainer(
        noop,
        train_loop_config={"proof": str(path / "proof")},
        scaling_config=our_train.ScalingConfig(num_workers=2),
        run_config=our_train.RunConfig(name="run", storage_path=str(path)),
    )


def ray_trainer(path):
    from ray import train
    from ray.train.torch import TorchTrainer

    return TorchTrainer(
        noop,
        train_loop_config={"proof": str(path / "proof")},
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(name="run", storage_path=str(path)),
    )


def time_fit(make, path):
    make_directory(path)
    began = time.perf_counter()
    make(path).fit()
    took = time.perf_counter() - began
    num_ran = len(list((path / "proof").iterdir()))
    assert num_ran == 2, f"{num_ran} workers ran"
    return took


directory, rounds, peer_rounds = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
results = {"ours": [], "ray": []}
with cluster():
    # The first fits of a session start processes and import torch; then the session is warm.
    first = {"ours": time_fit(our_trainer, directory / "ours-first")}
    if peer_rounds:
        first["ray"] = time_fit(ray_trainer, directory / "ray-first")
    for number in range(rounds):
        results["ours"].append(time_fit(our_trainer, directory / f"ours-{number}"))
        if number < peer_rounds:
            results["ray"].append(time_fit(ray_trainer, directory / f"ray-{number}"))
Path(directory, "result.json").write_text(json.dumps({**results, "first": first}))
