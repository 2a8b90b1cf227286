"""The same as `cold_start.py`, with imports sorted as formatters do: torch comes first."""

import sys

import torch

from paceline import train
from paceline.train.torch import TorchTrainer


def train_func():
    total = torch.ones(1)
    torch.distributed.all_reduce(total)
    train.report({"total": total.item()})


trainer = TorchTrainer(
    train_func,
    scaling_config=train.ScalingConfig(num_workers=2),
    run_config=train.RunConfig(name="run", storage_path=sys.argv[1]),
)
trainer.fit()
