"""Two slow workers read a dataset. Arguments: directory, files, epochs, megabytes in flight, milliseconds a batch."""
# ruff: noqa: I001

import sys
import time

import paceline.data
from paceline import train
from paceline.train.torch import TorchTrainer
from _data import stack_columns


def train_func(config):
    for _ in range(config["epochs"]):
        for _ in train.get_dataset_shard("train").iter_torch_batches(batch_size=1024):
            time.sleep(config["step_s"])


directory, files, epochs, megabytes, step_ms = sys.argv[1:]
options = paceline.data.ExecutionOptions(
    resource_limits=paceline.data.ExecutionResources(object_store_memory=float(megabytes) * 1e6)
)
TorchTrainer(
    train_func,
    train_loop_config={"epochs": int(epochs), "step_s": float(step_ms) / 1000},
    scaling_config=train.ScalingConfig(num_workers=2),
    run_config=train.RunConfig(name="run", storage_path=directory),
    datasets={"train": paceline.data.read_parquet(files).map_batches(stack_columns, batch_format="numpy")},
    dataset_config=train.DataConfig(execution_options=options),
).fit()
