"""One model of XGBoost from two workers. These need XGBoost itself."""

import os
import signal

import numpy as np
import pytest

xgboost = pytest.importorskip("xgboost", reason="XGBoost is not installed: no training with it was checked")

import paceline.data  # noqa: E402
from paceline import train  # noqa: E402
from paceline.train import FailureConfig, RunConfig, ScalingConfig  # noqa: E402
from paceline.train.xgboost import ReportCallback, XGBoostPredictor, XGBoostTrainer  # noqa: E402

PARAMS = {"objective": "binary:logistic", "eval_metric": ["auc", "logloss"], "max_depth": 3}


def dataset(num_rows, seed):
    import pyarrow as pa

    values = np.random.default_rng(seed).normal(size=(num_rows, 4))
    label = (values[:, 0] + values[:, 1] * values[:, 2] > 0).astype(np.int64)
    return paceline.data.from_arrow(pa.table({**{f"x{n}": values[:, n] for n in range(4)}, "y": label}))


class DiesOnce(xgboost.callback.TrainingCallback):
    def __init__(self, marker):
        self.marker = marker

    def after_iteration(self, model, epoch, evals_log):
        mine = train.get_context().get_world_rank() == 1
        if mine and model.num_boosted_rounds() == 13 and not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return False


def test_a_model_from_two_workers_is_good_and_a_kill_costs_no_round(tmp_path):
    result = XGBoostTrainer(
        datasets={"train": dataset(1501, 0), "valid": dataset(500, 1)},
        label_column="y",
        params=PARAMS,
        num_boost_round=20,
        callbacks=[DiesOnce(tmp_path / "died")],
        verbose_eval=False,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=str(tmp_path), name="run", failure_config=FailureConfig(max_failures=1)),
    ).fit()
    assert (tmp_path / "died").exists()
    assert result.metrics["valid-auc"] > 0.93
    model = XGBoostTrainer.get_model(result.checkpoint)
    assert model.num_boosted_rounds() == 20
    rows = dataset(50, 2).take_batch(50)
    predicted = XGBoostPredictor(result.checkpoint)(rows)["predictions"]
    assert np.mean((predicted > 0.5) == rows["y"]) > 0.8


def test_all_ranks_have_the_same_model(tmp_path):
    def train_func():
        rows = train.get_dataset_shard("train").materialize().to_pandas()
        matrix = xgboost.DMatrix(rows.drop("y", axis=1), label=rows["y"])
        booster = xgboost.train(PARAMS, matrix, 5, callbacks=[ReportCallback()])
        rank = train.get_context().get_world_rank()
        assert xgboost.collective.get_rank() == rank
        (tmp_path / f"{rank}.json").write_bytes(booster.save_raw("json"))

    XGBoostTrainer(
        train_func,
        datasets={"train": dataset(600, 0)},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=str(tmp_path / "runs"), name="run"),
    ).fit()
    assert (tmp_path / "0.json").read_bytes() == (tmp_path / "1.json").read_bytes()
