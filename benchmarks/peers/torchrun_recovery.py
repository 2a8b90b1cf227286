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
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

LOST_AT, LAST = 5, 10

directory, victim, after_s, what = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
dist.init_process_group("gloo")
rank = dist.get_rank()
path = directory / "state.pt"
step, weights = 0, torch.zeros(1000)
model = optimizer = None
if what == "ddp":
    model = DistributedDataParallel(nn.Linear(256, 256))
    optimizer = torch.optim.Adam(model.parameters())
restored = path.exists()
if restored:
    state = torch.load(path)
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
    dist.all_reduce(total)
    weights += total
    if restored and step == began_from + 1:
        result = {"at": time.time(), "from": began_from}
        (directory / f"restored_{rank}.json").write_text(json.dumps(result))
    if not restored and step == LOST_AT:
        time.sleep(after_s)
    if rank == 0:
        state = {"step": step, "weights": weights}
        if model is not None:
            state |= {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        with (directory / "state.pt.part").open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(directory / "state.pt.part", path)
    dist.barrier()
    if not restored and step == LOST_AT and rank == victim:
        (directory / "lost.json").write_text(json.dumps({"at": time.time(), "step": step}))
        os.kill(os.getpid(), signal.SIGKILL)
(directory / f"rank_{rank}.json").write_text(json.dumps({"weight": weights.mean().item()}))
dist.destroy_process_group()
