"""Two workers read batches of a dataset. Arguments: directory, `tabular` or `images`, files, epochs, shuffle.

With shuffle (1), every epoch is followed by one with the same rows in random order.
"""
# ruff: noqa: I001

import sys

import paceline.data
from paceline import train
from paceline.train.torch import TorchTrainer
import torch
from _data import CASES, write_result, time_epoch


def train_func(config):
    case = CASES[config["case"]]
    epochs = []
    for _ in range(config["epochs"]):
        for name in config["names"]:
            torch.distributed.barrier()
            epochs.append(time_epoch(train.get_dataset_shard(name).iter_torch_batches(batch_size=case.batch_size)))
    write_result(config["directory"], train.get_context().get_world_rank(), epochs)


directory, name, files, epochs, shuffle = sys.argv[1:]
case = CASES[name]
rows = paceline.data.read_parquet(files, columns=list(case.columns))
datasets = {"train": rows.map_batches(case.prepare, batch_format="numpy")}
if int(shuffle):
    datasets["shuffled"] = rows.random_shuffle().map_batches(case.prepare, batch_format="numpy")
TorchTrainer(
    train_func,
    train_loop_config={"directory": directory, "case": name, "epochs": int(epochs), "names": list(datasets)},
    scaling_config=train.ScalingConfig(num_workers=2),
    run_config=train.RunConfig(name="run", storage_path=directory),
    datasets=datasets,
).fit()
