"""A worker fails, and continues from its checkpoint; then a second run starts from the result of the first."""

import json
import tempfile
from pathlib import Path

from ray import train
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.data_parallel_trainer import DataParallelTrainer


def loop(config):
    first = 0
    if (checkpoint := train.get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            first = json.loads(Path(folder, "state.json").read_text())["epoch"] + 1
    for epoch in range(first, config["epochs"]):
        if epoch == 2 and first == 0:
            raise RuntimeError("lost")
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "state.json").write_text(json.dumps({"epoch": epoch}))
            train.report({"epoch": epoch, "first": first}, checkpoint=Checkpoint.from_directory(folder))


scaling = ScalingConfig(num_workers=1)
result = DataParallelTrainer(
    loop,
    train_loop_config={"epochs": 4},
    scaling_config=scaling,
    run_config=RunConfig(name="first", failure_config=FailureConfig(max_failures=1)),
).fit()
assert (result.metrics["epoch"], result.metrics["first"]) == (3, 2)

again = DataParallelTrainer(
    loop,
    train_loop_config={"epochs": 6},
    scaling_config=scaling,
    run_config=RunConfig(name="second"),
    resume_from_checkpoint=result.checkpoint,
).fit()
assert [*again.metrics_dataframe["epoch"]] == [4, 5]
