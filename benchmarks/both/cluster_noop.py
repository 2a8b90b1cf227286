"""`fit()` of nothing on two workers, ours and Ray Train in turns.

Arguments: a directory, rounds of ours, of Ray Train.
"""
# ruff: noqa: I001

import json
import sys
import time
from pathlib import Path

from paceline import train as our_train
from paceline.train.torch import TorchTrainer as OurTrainer
from _cluster import cluster, emptied


def noop(config):
    """Only a proof that it ran."""
    Path(config["proof"]).mkdir(exist_ok=True)
    (Path(config["proof"]) / str(time.monotonic_ns())).touch()


def ours(path):
    return OurTrainer(
        noop,
        train_loop_config={"proof": str(path / "proof")},
        scaling_config=our_train.ScalingConfig(num_workers=2),
        run_config=our_train.RunConfig(name="run", storage_path=str(path)),
    )


def rays(path):
    from ray import train
    from ray.train.torch import TorchTrainer

    return TorchTrainer(
        noop,
        train_loop_config={"proof": str(path / "proof")},
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(name="run", storage_path=str(path)),
    )


def fitted(make, path):
    emptied(path)
    began = time.perf_counter()
    make(path).fit()
    took = time.perf_counter() - began
    num_ran = len(list((path / "proof").iterdir()))
    assert num_ran == 2, f"{num_ran} workers ran"
    return took


directory, rounds, peer_rounds = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
found = {"ours": [], "ray": []}
with cluster():
    # The first ones of a session start processes and import torch in them; the session is warm after that.
    first = {"ours": fitted(ours, directory / "ours-first")}
    if peer_rounds:
        first["ray"] = fitted(rays, directory / "ray-first")
    for number in range(rounds):
        found["ours"].append(fitted(ours, directory / f"ours-{number}"))
        if number < peer_rounds:
            found["ray"].append(fitted(rays, directory / f"ray-{number}"))
Path(directory, "found.json").write_text(json.dumps({**found, "first": first}))
