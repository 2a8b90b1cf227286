"""The floor of starting two workers: fork from a process that has imported torch, all-reduce once, exit.

Arguments: a directory for the times, how many times.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

directory, times = Path(sys.argv[1]), int(sys.argv[2])


def worker(rank, number):
    dist.init_process_group("gloo", init_method=f"file://{directory}/meet_{number}", rank=rank, world_size=2)
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == 2
    dist.destroy_process_group()


took = []
for number in range(times):
    began = time.perf_counter()
    pids = []
    for rank in range(2):
        pid = os.fork()
        if pid == 0:
            worker(rank, number)
            os._exit(0)
        pids.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    took.append(time.perf_counter() - began)
    assert codes == [0, 0], codes
(directory / "took.json").write_text(json.dumps(took))
