"""Saves the same tensors durably, with ours and without, in turns. Arguments: a directory, `[[megabytes, times], ...]`.

All in one worker and on one filesystem, each with an idle disk. The first save of each size is cold.
"""

import json
import mmap
import os
import shutil
import sys
import time
from pathlib import Path

import torch
from _disk import write_directly

from paceline import train
from paceline.train import Checkpoint
from paceline.train.torch import TorchTrainer

NUM_TENSORS = 16
QUIET_S = 0.2


def train_func(config):
    directory, times_by_size = Path(config["directory"]), {}
    for megabytes, times in config["sizes"]:
        times_by_size[megabytes] = time_saves(directory, megabytes, times)
    (directory / "took.json").write_text(json.dumps(times_by_size))


def time_saves(directory, megabytes, times):
    per_tensor = megabytes * (1 << 20) // 4 // NUM_TENSORS
    state = {f"layer_{i}": torch.arange(per_tensor, dtype=torch.float32) + i for i in range(NUM_TENSORS)}
    source = directory / "source"
    source.mkdir(exist_ok=True)
    torch.save(state, source / "state.pt")
    memory = mmap.mmap(-1, megabytes << 20)
    memory[:] = b"\1" * len(memory)
    ways = {
        "staged": lambda: save_staged(state),
        "save+fsync": lambda: save_bare(state, directory / "bare.pt"),
        "copied": lambda: train.report({"way": "copied"}, checkpoint=Checkpoint.from_directory(source)),
        "copy+fsync": lambda: copy_bare(source, directory / "bare"),
        "state": lambda: train.report({"way": "state"}, checkpoint=Checkpoint.from_dict(state)),
        "disk": lambda: write_directly(memory, directory / "bare.bin"),
    }
    took = {way: [] for way in ways}
    for number in range(1 + times):
        # What goes before leaves its pages, or takes them, so the order changes.
        for way, save in list(ways.items())[:: -1 if number % 2 else 1]:
            os.sync()
            time.sleep(QUIET_S)
            began = time.perf_counter()
            save()
            took[way].append(time.perf_counter() - began)
            remove_bare(directory)
            if way in ("staged", "copied", "state"):
                check(way, state)
    return took


def save_staged(state):
    directory = train.staging_directory()
    torch.save(state, directory / "state.pt")
    train.report({"way": "staged"}, checkpoint=Checkpoint.from_directory(directory))


def save_bare(state, path):
    torch.save(state, path)
    sync(path)


def copy_bare(source, target):
    shutil.copytree(source, target)
    sync(target / "state.pt")


def sync(path):
    with path.open("rb") as file:
        os.fsync(file.fileno())


def remove_bare(directory):
    for path in directory.glob("bare*"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def check(way, state):
    """Check that the saved state equals the original."""
    checkpoint = train.get_checkpoint()
    again = checkpoint.to_dict(verify=False) if way == "state" else torch.load(Path(checkpoint.path, "state.pt"))
    assert all(torch.equal(again[name], state[name]) for name in (*state, *again))


TorchTrainer(
    train_func,
    train_loop_config={"directory": sys.argv[1], "sizes": json.loads(sys.argv[2])},
    run_config=train.RunConfig(
        name="run", storage_path=sys.argv[1], checkpoint_config=train.CheckpointConfig(num_to_keep=1)
    ),
).fit()
