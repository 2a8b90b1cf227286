"""Workers where they were asked to be: devices, labels, strategies, ranks; what is refused, and what is waited for."""

import json
import os
import signal
import threading
import time

import pytest
import ray

from paceline._engine.base import Needs
from paceline._engine.ray.engine import RayEngine
from paceline._engine.ray.look import looked
from paceline._engine.ray.placement import Wanted
from paceline.train import DataParallelTrainer, RunConfig, ScalingConfig, ValidationConfig, get_context


def tell(config):
    """What a worker knows of its place."""
    from paceline._worker.context import current

    context = get_context()
    told = {
        "rank": context.get_world_rank(),
        "local": [context.get_local_rank(), context.get_local_world_size()],
        "node": context.get_node_rank(),
        "gpus": os.environ["CUDA_VISIBLE_DEVICES"],
        "devices": list(current().begin.devices),
        "threads": os.environ["OMP_NUM_THREADS"],
        "raylet": ray_node(),
    }
    with open(os.path.join(config["path"], str(told["rank"])), "w") as file:
        json.dump(told, file)


def ray_node():
    """The node that this worker is on, which its actor was told by Ray."""
    with open(f"/proc/{os.getppid()}/environ") as file:
        variables = dict(each.split("=", 1) for each in file.read().split("\0") if "=" in each)
    return variables.get("RAY_NODE_ID", "")


def told_by(tmp_path, scaling, **options):
    path = tmp_path / f"told-{len(list(tmp_path.iterdir()))}"
    path.mkdir()
    run = RunConfig(storage_path=tmp_path / "runs", **options)
    DataParallelTrainer(tell, train_loop_config={"path": str(path)}, scaling_config=scaling, run_config=run).fit()
    return [json.loads((path / str(rank)).read_text()) for rank in range(scaling.num_workers)]
