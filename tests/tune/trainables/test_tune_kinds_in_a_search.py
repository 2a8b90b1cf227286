"""Every kind of trainable in a search."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline import train, tune
from paceline.train import DataParallelTrainer, ScalingConfig
from paceline.tune.integration.train import TuneReportCallback

Search = Callable[..., tune.ResultGrid]


@pytest.fixture
def search(tmp_path: Path) -> Search:
    def run(trainable: Any, param_space: dict[str, Any], **run_config: Any) -> tune.ResultGrid:
        tuner = tune.Tuner(
            trainable,
            param_space=param_space,
            tune_config=tune.TuneConfig(metric="score", mode="max"),
            run_config=tune.RunConfig(name="search", storage_path=tmp_path, **run_config),
        )
        return tuner.fit()

    return run


def scores(grid: tune.ResultGrid) -> list[Any]:
    return sorted(result.metrics["score"] for result in grid if result.metrics is not None)


def test_functions_that_share_an_object(search: Search) -> None:
    def trial(config: dict[str, Any], data: Any) -> dict[str, Any]:
        return {"score": config["x"] * float(data.sum())}

    grid = search(tune.with_parameters(trial, data=np.ones(10)), {"x": tune.grid_search([1, 2, 3])})
    assert scores(grid) == [10.0, 20.0, 30.0]


def test_a_trainer_with_a_space_for_its_config_and_its_workers(search: Search) -> None:
    def loop(config: dict[str, Any]) -> None:
        train.report({"score": config["base"] + config["x"] * train.get_context().get_world_size()})

    trainer = DataParallelTrainer(loop, train_loop_config={"base": 100})
    space = {
        "train_loop_config": {"x": tune.grid_search([1, 5])},
        "scaling_config": {"num_workers": tune.grid_search([1, 2]), "resources_per_worker": {"CPU": 0.5}},
    }
    assert scores(search(trainer, space)) == [101, 102, 105, 110]


class Counts(tune.Trainable):
    def setup(self, config: dict[str, Any]) -> None:
        self.score = config["x"]

    def step(self) -> dict[str, Any]:
        self.score += 1
        return {"score": self.score}

    def save_checkpoint(self, checkpoint_dir: str) -> Any:
        return {"score": self.score}

    def load_checkpoint(self, checkpoint: Any) -> None:
        self.score = checkpoint["score"]


def test_a_class_is_stopped_and_leaves_its_last_checkpoint(search: Search) -> None:
    config = tune.CheckpointConfig(checkpoint_at_end=True)
    grid = search(Counts, {"x": tune.grid_search([10, 20])}, stop={"training_iteration": 3}, checkpoint_config=config)
    assert scores(grid) == [13, 23]
    assert sorted(result.checkpoint.to_dict()["score"] for result in grid if result.checkpoint) == [13, 23]


def test_a_function_that_starts_a_run_and_dies_once(search: Search) -> None:
    def loop(config: dict[str, Any]) -> None:
        checkpoint = train.get_checkpoint()
        start = checkpoint.to_dict()["step"] if checkpoint is not None else 0
        for step in range(start, 3):
            saved = train.Checkpoint.from_dict({"step": step + 1})
            train.report({"score": config["x"] + step, "start": start}, checkpoint=saved)

    def trial(config: dict[str, Any]) -> None:
        trainer = DataParallelTrainer(
            loop,
            train_loop_config=config,
            scaling_config=ScalingConfig(num_workers=2),
            run_config=train.RunConfig(name="inner", callbacks=[TuneReportCallback()]),
        )
        trainer.fit()
        once = Path(tune.get_context().get_trial_dir()) / "once"
        if not once.exists():
            once.touch()
            os._exit(1)

    space = {"x": tune.grid_search([10, 20])}
    grid = search(tune.with_resources(trial, {"cpu": 1}), space, failure_config=tune.FailureConfig(max_failures=1))
    assert scores(grid) == [12, 22]
    assert [result.error for result in grid] == [None, None]
    for result in grid:
        assert [*result.metrics_dataframe["training_iteration"]] == [1, 2, 3]
        assert result.checkpoint is not None
        assert result.checkpoint.to_dict() == {"step": 3}
