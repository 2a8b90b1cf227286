"""Validation beside training: in its own process, one at a time, and whatever becomes of it the training goes on."""

import os
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest

from paceline import train
from paceline.train import (
    Checkpoint,
    CheckpointConfig,
    CheckpointConsistencyMode,
    CheckpointUploadMode,
    DataParallelTrainer,
    FailureConfig,
    Result,
    RunConfig,
    ScalingConfig,
    ValidationConfig,
    ValidationTaskConfig,
    WorkerGroupError,
)


@pytest.fixture
def fit(tmp_path):
    def fit(function, validate, num_workers=2, *, name="run", config=None, **run_config):
        if not isinstance(validate, ValidationConfig | None):
            validate = ValidationConfig(validate)
        return DataParallelTrainer(
            function,
            train_loop_config=config,
            scaling_config=ScalingConfig(num_workers),
            run_config=RunConfig(name=name, storage_path=tmp_path, **run_config),
            validation_config=validate,
        ).fit()

    return fit


def wait_for(path):
    """Until another process says so."""
    while not Path(path).exists():
        time.sleep(0.005)


def reports(values, **about):
    for value in values:
        train.report({"value": value}, checkpoint=Checkpoint.from_dict({"value": value}), validation=True, **about)


def doubled(checkpoint):
    return {"doubled": 2 * checkpoint.to_dict()["value"]}


def by_value(result):
    return {metrics["value"]: metrics for _, metrics in result.best_checkpoints}


def test_what_a_validation_returns_is_among_the_metrics_of_the_checkpoint(fit):
    result = fit(lambda: reports([1, 2]), doubled)
    expected = [{"value": 1, "doubled": 2}, {"value": 2, "doubled": 4}]
    assert [metrics for _, metrics in result.best_checkpoints] == expected
    assert [metrics for _, metrics in Result.from_path(result.path).best_checkpoints] == expected
    assert result.metrics == {"value": 2}, "what rank 0 reported, not what was found out about a checkpoint"
