"""Runs of a function on this machine, as most tests of this folder start them, and what its workers share."""

import inspect
from pathlib import Path
from typing import Any

from paceline.train import DataParallelTrainer, FailureConfig, Result, RunConfig, ScalingConfig

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


def gather(value: Any) -> list[Any]:
    """In workers of torch: what each of them has, by rank."""
    import torch.distributed as dist

    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found
