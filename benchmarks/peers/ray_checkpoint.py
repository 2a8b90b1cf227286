"""Times `report` with a checkpoint, SYNC and ASYNC. Arguments: a directory, `[[megabytes, times], ...]`.

The time includes `torch.save` into a directory. Rank 1 reports no checkpoint. The first of each is cold.
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path

import torch
from ray import train
from ray.train.torch import TorchTrainer

NUM_TENSORS = 16
QUIET_S = 0.2


def report(state, mode, directory):
    began = time.perf_counter()
    path = tempfile.mkdtemp(dir=directory)
    torch.save(state, Path(path, "state.pt"))
    train.report(
        {"mode": mode},
        checkpoint=train.Checkpoint.from_directory(path),
        checkpoint_upload_mode=train.CheckpointUploadMode[mode],
        delete_local_checkpoint_after_upload=True,
    )
    return time.perf_counter() - began


def train_func(config):
    rank, times_by_size = train.get_context().get_world_rank(), {}
    for megabytes, times in config["sizes"]:
        per_tensor = megabytes * (1 << 20) // 4 // NUM_TENSORS
        count = NUM_TENSORS if rank == 0 else 0
        state = {f"layer_{i}": torch.arange(per_tensor, dtype=torch.float32) + i for i in range(count)}
        times_by_size[megabytes] = took = {"SYNC": [], "ASYNC": []}
        for _ in range(1 + times):
            for mode, samples in took.items():
                torch.distributed.barrier()
                if rank == 0:
                    os.sync()
                    time.sleep(QUIET_S)
                    samples.append(report(state, mode, config["directory"]))
                else:
                    train.report({"mode": mode})
                reported = train.get_all_reported_checkpoints()
        if rank == 0:
            with reported[-1].checkpoint.as_directory() as path:
                again = torch.load(Path(path, "state.pt"))
            assert all(torch.equal(again[name], state[name]) for name in state)
            del again
    if rank == 0:
        Path(config["directory"], "took.json").write_text(json.dumps(times_by_size))


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
