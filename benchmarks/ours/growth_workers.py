"""Small runs in one process. Arguments: a directory, number of workers, number of fits, reports of each worker.

The last fit reports at full speed. `took.json` has the seconds of each fit and the time when all reports had arrived.
"""
# ruff: noqa: I001

import json
import sys
import time
from pathlib import Path

from paceline import train
from paceline.train.torch import TorchTrainer
import torch


def unique_mb():
    sizes_kb = dict(line.split()[:2] for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    return (int(sizes_kb["Private_Clean:"]) + int(sizes_kb["Private_Dirty:"])) * 1024 / 1e6


def train_func(config):
    total = torch.ones(1)
    torch.distributed.all_reduce(total)
    train.report({"total": total.item()})
    if config["reports"]:
        torch.distributed.barrier()
        began = time.time()
        for i in range(config["reports"]):
            train.report({"total": total.item(), "i": i, "loss": 0.25, "rate": 1e-3})
        result = {"began": began, "ended": time.time(), "unique_mb": unique_mb()}
        rank = train.get_context().get_world_rank()
        Path(config["directory"], f"rank_{rank}.json").write_text(json.dumps(result))


directory, workers, fits, reports = sys.argv[1], *map(int, sys.argv[2:])
took = []
for number in range(fits):
    last = number == fits - 1
    began = time.perf_counter()
    result = TorchTrainer(
        train_func,
        train_loop_config={"directory": directory, "reports": reports if last else 0},
        scaling_config=train.ScalingConfig(num_workers=workers),
        run_config=train.RunConfig(name=f"run-{number}", storage_path=directory),
    ).fit()
    took.append(time.perf_counter() - began)
    assert result.metrics["total"] == workers, result.metrics
Path(directory, "took.json").write_text(json.dumps([*took, time.time()]))
