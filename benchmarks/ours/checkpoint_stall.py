"""Saves the same tensors in several ways, in turns, in one worker. Arguments: a directory, `[[megabytes, times], ...]`.

Each save starts with an idle disk, and the time is how long the training thread waits. Rank 1 reports no checkpoint.
Old files are deleted during the run: memory that a virtual machine uses for the first time is slow, and a growing page
cache would measure that. The first save of each size is cold.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch

from paceline import train
from paceline.train import Checkpoint, CheckpointUploadMode
from paceline.train.torch import TorchTrainer

NUM_TENSORS = 16
QUIET_S = 0.2


def train_func(config):
    rank, times_by_size = train.get_context().get_world_rank(), {}
    for megabytes, times in config["sizes"]:
        if rank == 0:
            times_by_size[megabytes] = time_saves(megabytes, times)
        else:
            for _ in range(1 + times):
                for way in ("staged", "snapshot"):
                    train.collective.barrier()
                    train.report({"way": way})
    if rank == 0:
        Path(config["directory"], "took.json").write_text(json.dumps(times_by_size))


def time_saves(megabytes, times):
    per_tensor = megabytes * (1 << 20) // 4 // NUM_TENSORS
    state = {f"layer_{i}": torch.arange(per_tensor, dtype=torch.float32) + i for i in range(NUM_TENSORS)}
    took = {"staged": [], "snapshot": [], "written_after": []}
    for _ in range(1 + times):
        for way, save in (("staged", save_staged), ("snapshot", save_snapshot)):
            train.collective.barrier()
            os.sync()
            time.sleep(QUIET_S)
            took[way].append(save(state))
        began = time.perf_counter()
        train.get_all_reported_checkpoints()
        took["written_after"].append(time.perf_counter() - began)
    check(state)
    return took


def save_staged(state):
    began = time.perf_counter()
    directory = train.staging_directory()
    torch.save(state, directory / "state.pt")
    train.report({"way": "staged"}, checkpoint=Checkpoint.from_directory(directory))
    return time.perf_counter() - began


def save_snapshot(state):
    began = time.perf_counter()
    train.report(
        {"way": "snapshot"},
        checkpoint=Checkpoint.from_dict(state),
        checkpoint_upload_mode=CheckpointUploadMode.ASYNC,
    )
    return time.perf_counter() - began


def check(state):
    """Check that the saved state equals the original."""
    last = {way.metrics["way"]: way.checkpoint for way in train.get_all_reported_checkpoints()}
    for read in (lambda: torch.load(Path(last["staged"].path, "state.pt")), last["snapshot"].to_dict):
        again = read()
        assert again.keys() == state.keys()
        assert all(torch.equal(again[name], state[name]) for name in state)
        del again


TorchTrainer(
    train_func,
    train_loop_config={"directory": sys.argv[1], "sizes": json.loads(sys.argv[2])},
    scaling_config=train.ScalingConfig(num_workers=2),
    run_config=train.RunConfig(
        name="run",
        storage_path=sys.argv[1],
        checkpoint_config=train.CheckpointConfig(num_to_keep=2),
    ),
).fit()
