"""Trains, saves every step, kills a worker and resumes.

Arguments: a directory, the rank to kill, after how many seconds, and what to train: `tensor` or `ddp`.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn

from paceline import train
from paceline.train import Checkpoint
from paceline.train.torch import TorchTrainer, prepare_model

LOST_AT, LAST = 5, 10


def train_func(config):
    directory, rank = Path(config["directory"]), train.get_context().get_world_rank()
    step, weights = 0, torch.zeros(1000)
    model = optimizer = None
    if config["what"] == "ddp":
        model = prepare_model(nn.Linear(256, 256))
        optimizer = torch.optim.Adam(model.parameters())
    restored = train.get_checkpoint()
    if restored is not None:
        state = restored.to_dict()
        step, weights = state["step"], state["weights"]
        if model is not None:
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
    began_from = step
    while step < LAST:
        step += 1
        if model is not None:
            optimizer.zero_grad()
            model(torch.ones(8, 256)).mean().backward()
            optimizer.step()
        total = torch.ones(1000)
        torch.distributed.all_reduce(total)
        weights += total
        if restored is not None and step == began_from + 1:
            result = {"at": time.time(), "from": began_from}
            (directory / f"restored_{rank}.json").write_text(json.dumps(result))
        if restored is None and step == LOST_AT:
            time.sleep(config["after_s"])
        state = {"step": step, "weights": weights}
        if model is not None:
            state |= {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        train.report({"step": step}, checkpoint=Checkpoint.from_dict(state))
        if restored is None and step == LOST_AT and rank == config["victim"]:
            (directory / "lost.json").write_text(json.dumps({"at": time.time(), "step": step}))
            os.kill(os.getpid(), signal.SIGKILL)
    (directory / f"rank_{rank}.json").write_text(json.dumps({"weight": weights.mean().item()}))


directory, victim, after_s, what = sys.argv[1:]
TorchTrainer(
    train_func,
    train_loop_config={"directory": directory, "victim": int(victim), "after_s": float(after_s), "what": what},
    scaling_config=train.ScalingConfig(num_workers=2),
    run_config=train.RunConfig(
        name="run",
        storage_path=directory,
        failure_config=train.FailureConfig(max_failures=1),
    ),
).fit()
