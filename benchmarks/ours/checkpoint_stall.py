"""Ways to save the same tensors, in turns, in one worker. Arguments: a directory, megabytes, rounds.

Every way begins with a quiet disk, and the time is what the training thread waits. Rank 1 gives no checkpoint.
Old files are deleted all along: a virtual machine takes its time over memory that it has never used, and a cache that
only grows would measure that.
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
    rank, rounds = train.get_context().get_world_rank(), config["rounds"]
    if rank != 0:
        for number in range(1 + rounds):
            for way in ("staged", "snapshot"):
                train.collective.barrier()
                train.report({"round": number, "way": way})
        return
    directory = Path(config["directory"], "by_hand")
    directory.mkdir()
    per_tensor = config["megabytes"] * (1 << 20) // 4 // NUM_TENSORS
    state = {f"layer_{i}": torch.rand(per_tensor) for i in range(NUM_TENSORS)}
    ways = {
        "save_fsync": lambda number: save(state, directory / "state.pt", durable=True),
        "staged": lambda number: staged(state, number),
        "save": lambda number: save(state, directory / "state.pt", durable=False),
        "snapshot": lambda number: snapshot(state, number),
    }
    took = {name: [] for name in ways}
    for number in range(1 + rounds):
        for name, way in ways.items():
            os.sync()
            time.sleep(QUIET_S)
            took[name].append(way(number))
            if name == "snapshot":
                began = time.perf_counter()
                train.get_all_reported_checkpoints()
                took.setdefault("written_after", []).append(time.perf_counter() - began)
    check(state)
    Path(config["directory"], "took.json").write_text(json.dumps(took))


def save(state, path, *, durable):
    began = time.perf_counter()
    torch.save(state, path)  # To a path: to an open file of Python's it takes longer.
    if durable:
        with path.open("rb") as file:
            os.fsync(file.fileno())
    took = time.perf_counter() - began
    path.unlink()
    return took


def staged(state, number):
    train.collective.barrier()
    began = time.perf_counter()
    directory = train.staging_directory()
    torch.save(state, directory / "state.pt")
    train.report({"round": number, "way": "staged"}, checkpoint=Checkpoint.from_directory(directory))
    return time.perf_counter() - began


def snapshot(state, number):
    train.collective.barrier()
    began = time.perf_counter()
    train.report(
        {"round": number, "way": "snapshot"},
        checkpoint=Checkpoint.from_dict(state),
        checkpoint_upload_mode=CheckpointUploadMode.ASYNC,
    )
    return time.perf_counter() - began


def check(state):
    """What was saved is what it was saved from."""
    last = {way.metrics["way"]: way.checkpoint for way in train.get_all_reported_checkpoints()}
    saved = [torch.load(Path(last["staged"].path, "state.pt")), last["snapshot"].to_dict()]
    for again in saved:
        assert again.keys() == state.keys()
        assert all(torch.equal(again[name], state[name]) for name in state)


directory, megabytes, rounds = sys.argv[1:]
TorchTrainer(
    train_func,
    train_loop_config={"directory": directory, "megabytes": int(megabytes), "rounds": int(rounds)},
    scaling_config=train.ScalingConfig(num_workers=2),
    run_config=train.RunConfig(
        name="run",
        storage_path=directory,
        checkpoint_config=train.CheckpointConfig(num_to_keep=2),
    ),
).fit()
