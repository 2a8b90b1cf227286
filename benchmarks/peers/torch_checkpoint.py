"""Saves the same tensors with torch, in turns. Arguments: a directory, `[[megabytes, times], ...]`.

`torch.save`, the same with fsync, and DCP's `async_save`, of which only the time until it returns counts. Each save
starts with an idle disk. The first of each is cold.
"""

import json
import os
import shutil
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

NUM_TENSORS = 16
QUIET_S = 0.2


def save(state, path, *, durable):
    began = time.perf_counter()
    torch.save(state, path)  # To a path: saving to an open file is slower.
    if durable:
        with path.open("rb") as file:
            os.fsync(file.fileno())
    took = time.perf_counter() - began
    path.unlink()
    return took


def save_async(state, path):
    began = time.perf_counter()
    saved = dcp.async_save(state, checkpoint_id=path)
    took = time.perf_counter() - began
    saved.result()
    return took


def check(state, path):
    """Check that the saved state equals the original."""
    again = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    dcp.load(again, checkpoint_id=path)
    assert all(torch.equal(again[name], state[name]) for name in state)


directory, times_by_size = Path(sys.argv[1]), {}
dist.init_process_group("gloo", init_method=f"file://{directory}/meet", rank=0, world_size=1)
for megabytes, times in json.loads(sys.argv[2]):
    per_tensor = megabytes * (1 << 20) // 4 // NUM_TENSORS
    state = {f"layer_{i}": torch.arange(per_tensor, dtype=torch.float32) + i for i in range(NUM_TENSORS)}
    ways = {
        "save_fsync": lambda state=state: save(state, directory / "state.pt", durable=True),
        "save": lambda state=state: save(state, directory / "state.pt", durable=False),
        "dcp_async": lambda state=state: save_async(state, directory / "dcp"),
    }
    times_by_size[megabytes] = took = {name: [] for name in ways}
    for number in range(1 + times):
        for name, way in ways.items():
            os.sync()
            time.sleep(QUIET_S)
            took[name].append(way())
        if number == times:
            check(state, directory / "dcp")
        shutil.rmtree(directory / "dcp")
dist.destroy_process_group()
(directory / "took.json").write_text(json.dumps(times_by_size))
