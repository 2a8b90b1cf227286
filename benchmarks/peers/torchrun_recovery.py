"""Train, save every step by hand, lose a worker, go on. Arguments: a directory, the rank to lose."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

LOST_AT, LAST = 5, 10

directory, victim = Path(sys.argv[1]), int(sys.argv[2])
dist.init_process_group("gloo")
rank = dist.get_rank()
path = directory / "state.pt"
step, weights = 0, torch.zeros(1000)
restored = path.exists()
if restored:
    state = torch.load(path)
    step, weights = state["step"], state["weights"]
began_from = step
while step < LAST:
    step += 1
    total = torch.ones(1000)
    dist.all_reduce(total)
    weights += total
    if restored and step == began_from + 1:
        said = {"at": time.time(), "from": began_from}
        (directory / f"restored_{rank}.json").write_text(json.dumps(said))
    if rank == 0:
        with (directory / "state.pt.part").open("wb") as file:
            torch.save({"step": step, "weights": weights}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(directory / "state.pt.part", path)
    dist.barrier()
    if not restored and step == LOST_AT and rank == victim:
        (directory / "lost.json").write_text(json.dumps({"at": time.time(), "step": step}))
        os.kill(os.getpid(), signal.SIGKILL)
(directory / f"rank_{rank}.json").write_text(json.dumps({"weight": weights.mean().item()}))
dist.destroy_process_group()
