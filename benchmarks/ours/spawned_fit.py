"""Several fits of a JaxTrainer, with pauses in which spare interpreters start. Arguments: a directory, how many."""

import json
import sys
import time
from pathlib import Path

from paceline import train
from paceline.train import RunConfig, ScalingConfig
from paceline.train.jax import JaxTrainer

ENOUGH_S = 12.0
"""Spare interpreters start two seconds into a run and import JAX in the background."""


def train_func(config):
    import jax
    from jax.experimental.multihost_utils import process_allgather

    total = process_allgather(jax.numpy.ones(1)).sum()
    train.report({"total": float(total)})
    time.sleep(config["seconds"])


if __name__ == "__main__":
    directory, fits = Path(sys.argv[1]), int(sys.argv[2])
    took = []
    for number in range(fits):
        began = time.perf_counter()
        JaxTrainer(
            train_func,
            train_loop_config={"seconds": 0.0},
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(storage_path=directory, name=f"run-{number}"),
        ).fit()
        took.append(time.perf_counter() - began)
        time.sleep(ENOUGH_S)
    (directory / "took.json").write_text(json.dumps(took))
