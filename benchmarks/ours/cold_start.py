"""One all-reduce and one report on two workers. Argument: directory of the run."""
# ruff: noqa: I001  The trainer comes first, so that its workers import torch while this script does.

import sys

from paceline import train
from paceline.train.torch import TorchTrainer
import torch


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
