"""The runs and the search that each release wrote here, by `tools/make_golden_runs.py`; the tests go on with them.

Only public names are used: a later release goes on with what an earlier one began.
"""

import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import paceline.data
from paceline import train, tune
from paceline.data import FileShuffleConfig
from paceline.data.preprocessors import StandardScaler
from paceline.train import Checkpoint, CheckpointConfig, DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig

HERE = Path(__file__).parent
RELEASES = sorted(path.name for path in HERE.iterdir() if (path / "kinds").is_dir())
NUM_ROWS = 24


def training(config):
    """Four steps with three rows on each rank; saved after the second and the fourth."""
    rank = train.get_context().get_world_rank()
    resumed = train.get_checkpoint()
    state = resumed.to_dict() if resumed is not None else {"step": 0, "weights": np.zeros(4)}
    step, weights = state["step"], state["weights"]
    print(f"rank {rank} begins at step {step}")
    for batch in train.get_dataset_shard("train").iter_batches(batch_size=3):
        step += 1
        weights = weights + step
        if step == 3 and resumed is None and rank == 1 and config["what"] == "fails":
            raise ValueError("the first attempt fails")
        metrics = {
            "step": step,
            "loss": train.mean(step + rank),
            "eval": {"acc": 0.125 * step, "top": {"five": float("inf") if step == 1 else 0.5}},
            "note": "läuft ✓",
            "ids": batch["id"].tolist(),
        }
        # By both: neither goes on before there is a checkpoint.
        saved = Checkpoint.from_dict({"step": step, "weights": weights}) if step % 2 == 0 else None
        train.report(metrics, checkpoint=saved)
        if step == 3 and resumed is None and config["what"] == "waits":
            Path(f"reached-{rank}").touch()
            time.sleep(1000)  # Until it is killed.
    return {"steps": step}


def trainer(storage_path, name, rows, *, what="", max_failures=1):
    return DataParallelTrainer(
        training,
        train_loop_config={"what": what, "lr": 0.1},
        datasets={"train": paceline.data.read_parquet(str(rows), shuffle=FileShuffleConfig(seed=7))},
        scaling_config=ScalingConfig(2),
        run_config=RunConfig(
            name=name,
            storage_path=str(storage_path),
            failure_config=FailureConfig(max_failures=max_failures),
            checkpoint_config=CheckpointConfig(2, "loss", "min"),
        ),
    )


def trial(config):
    """Three steps. That with x=2 fails at its second unless it has a checkpoint, that with x=3 is stopped there."""
    resumed = tune.get_checkpoint()
    first = resumed.to_dict()["step"] if resumed is not None else 0
    for step in range(first + 1, 4):
        if config["x"] == 2 and step == 2 and resumed is None:
            raise ValueError("this one fails")
        metrics = {"loss": config["x"] / step, "score": config["x"] * step + config["y"]}
        tune.report(metrics, checkpoint=tune.Checkpoint.from_dict({"step": step}))


def tuner(storage_path):
    return tune.Tuner(
        trial,
        param_space={"x": tune.grid_search([1, 2, 3]), "y": tune.uniform(0.0, 0.5), "name": tune.choice(["a", "ü"])},
        tune_config=tune.TuneConfig(metric="loss", mode="min", seed=3, max_concurrent_trials=1),
        run_config=tune.RunConfig(name="search", storage_path=str(storage_path), stop={"score": 6}),
    )


def state():
    """One of every kind that a checkpoint holds without a pickle."""
    import torch

    return {
        "array": np.arange(6, dtype=np.float32).reshape(2, 3),
        "times": np.array(["2026-01-01", "NaT"], "datetime64[s]"),
        "tensor": torch.arange(4, dtype=torch.int64),
        "half": torch.tensor([[1.5, -2.0]], dtype=torch.bfloat16),
        "plain": [1, 2.5, float("inf"), None, True, "ü", (1, "two"), b"\x00\xff", {3: "three"}],
    }


def scaler():
    return StandardScaler(columns=["a"]).fit(paceline.data.from_items([{"a": 1.0}, {"a": 2.0}, {"a": 6.0}]))


def write(what, place):
    """In a process of its own, which may be killed."""
    if what == "rows":
        (place / "rows").mkdir()
        for number, ids in enumerate(np.array_split(np.arange(NUM_ROWS), 6)):
            pq.write_table(pa.table({"id": ids}), place / "rows" / f"{number}.parquet")
    elif what == "complete":
        result = trainer(place, "complete", place / "rows", what="fails").fit()
        result.checkpoint.set_metadata({"kept": "for ever"})
    elif what == "interrupted":
        trainer(place, "interrupted", place / "rows", what="waits").fit()
    elif what == "search":
        tuner(place).fit()
    elif what == "state":
        Checkpoint.from_dict(state()).to_directory(place / "state")
        (place / "scaler.json").write_text(scaler().serialize())


if __name__ == "__main__":
    write(sys.argv[1], Path(sys.argv[2]))
