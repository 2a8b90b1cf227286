"""Trains a model with DDP, in turns. Arguments: a directory, the port of the benchmark, `small` or `middle`."""
# ruff: noqa: I001

import itertools
import json
import sys
from pathlib import Path

from paceline import train
from paceline.train.torch import TorchTrainer, prepare_data_loader, prepare_model
import torch
from torch.utils.data import DataLoader

from _ddp import dataset, make_model, train_in_turns


def train_func(config):
    model = prepare_model(make_model(config["model"]))
    loader = prepare_data_loader(DataLoader(dataset(config["model"]), batch_size=64, shuffle=True))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    steps = train_in_turns(model, optimizer, itertools.repeat(loader), config["port"], train.report)
    path = Path(config["directory"], f"rank_{train.get_context().get_world_rank()}.json")
    path.write_text(json.dumps({"steps": steps, "threads": torch.get_num_threads()}))


directory, port, model = sys.argv[1:]
TorchTrainer(
    train_func,
    train_loop_config={"directory": directory, "port": int(port), "model": model},
    scaling_config=train.ScalingConfig(num_workers=2),
    run_config=train.RunConfig(name="run", storage_path=directory),
).fit()
