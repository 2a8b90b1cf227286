"""Several small runs in one process. Arguments: a directory, how many."""
# ruff: noqa: I001

import json
import sys
import time
from pathlib import Path

from paceline import train
from paceline.train.torch import TorchTrainer
import torch


def train_func():
    total = torch.ones(1)
    torch.distributed.all_reduce(total)
    train.report({"total": total.item()})


took = []
for number in range(int(sys.argv[2])):
    began = time.perf_counter()
    result = TorchTrainer(
        train_func,
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(name=f"run-{number}", storage_path=sys.argv[1]),
    ).fit()
    took.append(time.perf_counter() - began)
    assert result.metrics == {"total": 2.0}
Path(sys.argv[1], "took.json").write_text(json.dumps(took))
