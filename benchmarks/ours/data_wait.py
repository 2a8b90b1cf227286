"""Two workers with steps of a fixed length. Arguments: directory, files, milliseconds."""
# ruff: noqa: I001

import json
import sys
import time
from pathlib import Path

import paceline.data
from paceline import train
from paceline.train.torch import TorchTrainer
import torch
from _data import stack_columns


def train_func(config):
    batches = iter(train.get_dataset_shard("train").iter_torch_batches(batch_size=1024))
    waits = []
    torch.distributed.barrier()
    while True:
        began_waiting = time.perf_counter()
        if next(batches, None) is None:
            break
        waits.append(time.perf_counter() - began_waiting)
        if len(waits) == 1:
            began = time.perf_counter()
        time.sleep(config["step_s"])
    rank = train.get_context().get_world_rank()
    result = {"waits": waits, "took": time.perf_counter() - began}
    Path(config["directory"], f"rank_{rank}.json").write_text(json.dumps(result))


directory, files, step_ms = sys.argv[1:]
TorchTrainer(
    train_func,
    train_loop_config={"directory": directory, "step_s": float(step_ms) / 1000},
    scaling_config=train.ScalingConfig(num_workers=2),
    run_config=train.RunConfig(name="run", storage_path=directory),
    datasets={"train": paceline.data.read_parquet(files).map_batches(stack_columns, batch_format="numpy")},
).fit()
