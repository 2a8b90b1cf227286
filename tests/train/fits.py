"""Runs of a function on this machine, as most tests of this folder start them, and what its workers share."""

import inspect
from pathlib import Path
from typing import Any

import numpy as np

from paceline import train
from paceline.train import Checkpoint, DataParallelTrainer, FailureConfig, Result, RunConfig, ScalingConfig

RUN_OPTIONS = inspect.signature(RunConfig).parameters.keys()


def fit_in(
    path: Path | str,
    function: Any,
    num_workers: int | ScalingConfig = 2,
    *,
    config=None,
    name="run",
    max_failures=0,
    environment=None,
    trainer=DataParallelTrainer,
    **options,
) -> Result:
    """Trains a function in the run `run` below a path. Options are those of RunConfig and of the trainer."""
    run_options = {"failure_config": FailureConfig(max_failures)}
    run_options |= {option: options.pop(option) for option in [*options] if option in RUN_OPTIONS}
    made = trainer(
        function,
        train_loop_config=config,
        scaling_config=num_workers if isinstance(num_workers, ScalingConfig) else ScalingConfig(num_workers),
        run_config=RunConfig(name=name, storage_path=path, **run_options),
        **options,
    )
    if environment is not None:
        made = made.replace_arguments(environment=environment)
    return made.fit()


def count_up(until, at=None, then=None, rank=1):
    """A train function that counts from its last checkpoint, and calls `then` at a number on the first attempt."""

    def function():
        me = train.get_context().get_world_rank()
        last = train.get_checkpoint()
        start = last.to_dict()["i"] + 1 if last else 0
        for i in range(start, until):
            train.report({"i": i, "start": start}, checkpoint=Checkpoint.from_dict({"i": i, "weights": np.full(9, i)}))
            if i == at and start == 0 and me == rank:
                then()

    return function


def gather(value: Any) -> list[Any]:
    """In workers of torch: what each of them has, by rank."""
    import torch.distributed as dist

    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found
