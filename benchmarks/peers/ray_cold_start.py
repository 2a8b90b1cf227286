"""One all-reduce and one report on two workers. Argument: a directory for the run and the result."""

import json
import sys
from pathlib import Path

import torch
from ray import train
from ray.train.torch import TorchTrainer


def train_func(config):
    total = torch.ones(1)
    torch.distributed.all_reduce(total)
    train.report({"total": total.item()})
    rank = train.get_context().get_world_rank()
    Path(config["directory"], f"rank_{rank}.json").write_text(json.dumps({"total": total.item()}))


trainer = TorchTrainer(
    train_func,
    train_loop_config={"directory": sys.argv[1]},
    scaling_config=train.ScalingConfig(num_workers=2),
    run_config=train.RunConfig(name="run", storage_path=sys.argv[1]),
)
trainer.fit()
