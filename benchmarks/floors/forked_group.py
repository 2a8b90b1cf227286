"""What a group of two workers costs at least: fork from a process that has torch, meet, sum up once, end.

Arguments: a directory for the times, how many times. No trainer, no watching, nothing kept.
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
