"""Use an installed Paceline a little: a dataset, a run that loses a worker, a search. For `tools/check_release.py`.

It needs nothing but the core's own dependencies, and fails if something does not work.
"""

import os
import signal
import sys

import numpy as np

import paceline.data
from paceline import train, tune
from paceline.train import Checkpoint, DataParallelTrainer, FailureConfig, Result, RunConfig, ScalingConfig


def train_func(config):
    start, total = 0, 0
    if checkpoint := train.get_checkpoint():
        start = checkpoint.to_dict()["step"]
    shard = train.get_dataset_shard("train")
    for step in range(start, 4):
        total = sum(int(batch["id"].sum()) for batch in shard.iter_batches(batch_size=16))
        checkpoint = Checkpoint.from_dict({"step": step + 1, "weights": np.full(3, step)})
        train.report({"step": step, "total": train.sum(total)}, checkpoint=checkpoint)
        if step == 1 and not os.path.exists(config["mark"]) and train.get_context().get_world_rank() == 1:
            open(config["mark"], "w").close()
            os.kill(os.getpid(), signal.SIGKILL)


def check_data(folder: str) -> None:
    rows = paceline.data.range(100).map(lambda row: {"id": row["id"], "even": row["id"] % 2 == 0})
    rows.write_parquet(f"{folder}/rows")
    again = paceline.data.read_parquet(f"{folder}/rows")
    assert again.count() == 100
    assert [row["id"] for row in again.sort("id", descending=True).take(2)] == [99, 98]
    assert {row["even"]: row["sum(id)"] for row in again.groupby("even").sum("id").take_all()} == {
        False: 2500,
        True: 2450,
    }


def check_run(folder: str) -> None:
    DataParallelTrainer(
        train_func,
        train_loop_config={"mark": f"{folder}/killed"},
        datasets={"train": paceline.data.range(100)},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(name="run", storage_path=folder, failure_config=FailureConfig(max_failures=1)),
    ).fit()
    result = Result.from_path(f"{folder}/run")
    assert os.path.exists(f"{folder}/killed")
    assert result.metrics == {"step": 3, "total": sum(range(100))}, result.metrics
    result.checkpoint.verify()
    assert result.checkpoint.to_dict()["weights"].tolist() == [3.0, 3.0, 3.0]


def check_search(folder: str) -> None:
    tuner = tune.Tuner(
        lambda config: tune.report({"loss": (config["x"] - 2) ** 2}),
        param_space={"x": tune.grid_search([1, 2, 3])},
        tune_config=tune.TuneConfig(metric="loss", mode="min"),
        run_config=RunConfig(name="search", storage_path=folder),
    )
    assert tuner.fit().get_best_result().config == {"x": 2}


if __name__ == "__main__":
    check_data(sys.argv[1])
    check_run(sys.argv[1])
    check_search(sys.argv[1])
    print("smoke test passed")
