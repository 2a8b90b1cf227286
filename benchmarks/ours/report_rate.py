"""Reports at a given rate. Arguments: directory, name, number of reports, reports a second (0: full speed)."""
# ruff: noqa: I001

import json
import sys
import time
from array import array
from pathlib import Path

from paceline import train
from paceline.train.torch import TorchTrainer
import torch

AHEAD_S = 0.0005
"""Sleep only if ahead by this much: shorter sleeps overshoot."""


def train_func(config):
    count, interval = config["count"], 1 / config["pace"] if config["pace"] else 0.0
    report, now_ns, now = train.report, time.perf_counter_ns, time.perf_counter
    took = array("q", bytes(8 * count))
    torch.distributed.barrier()
    began_at, began = time.time(), now()
    for i in range(count):
        if interval and (ahead := began + i * interval - now()) > AHEAD_S:
            time.sleep(ahead)
        before = now_ns()
        report({"i": i, "loss": 0.25, "accuracy": 0.75, "rate": 1e-3})
        took[i] = now_ns() - before
    ended_at = time.time()
    directory, rank = Path(config["directory"]), train.get_context().get_world_rank()
    (directory / f"{config['name']}-{rank}.ns").write_bytes(took.tobytes())
    (directory / f"{config['name']}-{rank}.json").write_text(json.dumps({"began": began_at, "ended": ended_at}))


directory, name, count, pace = sys.argv[1:]
TorchTrainer(
    train_func,
    train_loop_config={"directory": directory, "name": name, "count": int(count), "pace": float(pace)},
    scaling_config=train.ScalingConfig(num_workers=2),
    run_config=train.RunConfig(name=name, storage_path=directory),
).fit()
Path(directory, f"{name}-fit.json").write_text(json.dumps({"ended": time.time()}))
