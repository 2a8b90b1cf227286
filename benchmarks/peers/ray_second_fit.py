"""Several small runs in one process. Arguments: a directory, how many."""

import json
import sys
import time
from pathlib import Path

import torch
from ray import train
from ray.train.torch import TorchTrainer


def train_func(config):
    total = torch.ones(1)
    torch.distributed.all_reduce(total)
    train.report({"total": total.item()})
    result = json.dumps({"total": total.item()})
    rank = train.get_context().get_world_rank()
    Path(config["directory"], f"fit_{config['number']}_rank_{rank}.json").write_text(result)


took = []
for number in range(int(sys.argv[2])):
    began = time.perf_counter()
    TorchTrainer(
        train_func,
        train_loop_config={"directory": sys.argv[1], "number": number},
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(name=f"run-{number}", storage_path=sys.argv[1]),
    ).fit()
    took.append(time.perf_counter() - began)
Path(sys.argv[1], "took.json").write_text(json.dumps(took))
