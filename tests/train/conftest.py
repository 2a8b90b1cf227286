"""Runs of a function on this machine, as most tests of this folder start them."""

import functools
import inspect
from pathlib import Path
from typing import Any

import pytest

from paceline.train import DataParallelTrainer, FailureConfig, Result, RunConfig, ScalingConfig

RUN_OPTIONS = inspect.signature(RunConfig).parameters.keys()


def _fit(
    path: Path,
    function: Any,
    num_workers: int = 2,
    *,
    config=None,
    name="run",
    max_failures=0,
    environment=None,
    trainer=DataParallelTrainer,
    **options,
) -> Result:
    run_options = {"failure_config": FailureConfig(max_failures)}
    run_options |= {option: options.pop(option) for option in [*options] if option in RUN_OPTIONS}
    made = trainer(
        function,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers),
        run_config=RunConfig(name=name, storage_path=path, **run_options),
        **options,
    )
    if environment is not None:
        made = made.replace_arguments(environment=environment)
    return made.fit()


@pytest.fixture(scope="session")
def fit_in():
    """Trains a function in the run `run` below a path. Options are those of RunConfig and of the trainer."""
    return _fit


@pytest.fixture
def fit(tmp_path):
    """The same below `tmp_path`."""
    return functools.partial(_fit, tmp_path)
