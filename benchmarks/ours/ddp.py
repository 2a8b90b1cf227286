"""A small model trained with DDP, in turns. Arguments: a directory, the port of who tells when."""
# ruff: noqa: I001

import itertools
import json
import sys
from pathlib import Path

from paceline import train
from paceline.train.torch import TorchTrainer, prepare_data_loader, prepare_model
import torch
from torch.utils.data import DataLoader

from _ddp import dataset, small_model, train_in_turns


def train_func(config):
    model = prepare_model(small_model())
    loader = prepare_data_loader(DataLoader(dataset(), batch_size=64, shuffle=True))
    steps = train_in_turns(model, itertools.repeat(loader), config["port"], train.report)
    path = Path(config["directory"], f"rank_{train.get_context().get_world_rank()}.json")
    path.write_text(json.dumps({"steps": steps, "threads": torch.get_num_threads()}))


TorchTrainer(
    train_func,
    train_loop_config={"directory": sys.argv[1], "port": int(sys.argv[2])},
    scaling_config=train.ScalingConfig(num_workers=2),
    run_config=train.RunConfig(name="run", storage_path=sys.argv[1]),
).fit()
