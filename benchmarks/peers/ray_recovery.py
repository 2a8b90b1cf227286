"""Trains, saves every step, kills a worker and resumes. Arguments: a directory, the rank to kill."""

import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import torch
from ray import train
from ray.train.torch import TorchTrainer

LOST_AT, LAST = 3, 4
"""Fewer steps, since each report may take two seconds."""


def train_func(config):
    directory, rank = Path(config["directory"]), train.get_context().get_world_rank()
    step, weights = 0, torch.zeros(1000)
    restored = train.get_checkpoint()
    if restored is not None:
        with restored.as_directory() as path:
            state = torch.load(Path(path, "state.pt"))
        step, weights = state["step"], state["weights"]
    began_from = step
    while step < LAST:
        step += 1
        total = torch.ones(1000)
        torch.distributed.all_reduce(total)
        weights += total
        if restored is not None and step == began_from + 1:
            result = {"at": time.time(), "from": began_from}
            (directory / f"restored_{rank}.json").write_text(json.dumps(result))
        with tempfile.TemporaryDirectory() as path:
            torch.save({"step": step, "weights": weights}, Path(path, "state.pt"))
            train.report({"step": step}, checkpoint=train.Checkpoint.from_directory(path))
        if restored is None and step == LOST_AT and rank == config["victim"]:
            (directory / "lost.json").write_text(json.dumps({"at": time.time(), "step": step}))
            os.kill(os.getpid(), signal.SIGKILL)
    (directory / f"rank_{rank}.json").write_text(json.dumps({"weight": weights.mean().item()}))


TorchTrainer(
    train_func,
    train_loop_config={"directory": sys.argv[1], "victim": int(sys.argv[2])},
    scaling_config=train.ScalingConfig(num_workers=2),
    run_config=train.RunConfig(
        name="run",
        storage_path=sys.argv[1],
        failure_config=train.FailureConfig(max_failures=1),
    ),
).fit()
