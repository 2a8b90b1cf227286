"""One model of XGBoost from two workers: that it is the model of one process, and that deaths cost no round."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest

xgboost = pytest.importorskip("xgboost", reason="XGBoost is not installed: no training with it was checked")

import paceline.data  # noqa: E402
from paceline import train  # noqa: E402
from paceline.train import FailureConfig, RunConfig, ScalingConfig, WorkerGroupError  # noqa: E402
from paceline.train.xgboost import (  # noqa: E402
    ReportCallback,
    XGBoostCheckpoint,
    XGBoostPredictor,
    XGBoostTrainer,
)

NUM_ROUNDS = 20
PARAMS = {"objective": "binary:logistic", "eval_metric": ["auc", "logloss"], "max_depth": 3}
FEATURES = [f"x{number}" for number in range(4)]


def table(num_rows: int, seed: int) -> dict[str, np.ndarray]:
    """Rows whose class is a curved function of three features.

    Each has fewer values than XGBoost makes bins: so workers that see only some of the rows find the same bins.
    """
    values = np.random.default_rng(seed).normal(size=(num_rows, len(FEATURES))).round(1)
    label = (values[:, 0] + values[:, 1] * values[:, 2] > 0).astype(np.int64)
    return {**{name: values[:, number] for number, name in enumerate(FEATURES)}, "y": label}


TRAIN, VALID = table(1501, seed=0), table(500, seed=1)


def dataset(columns):
    import pyarrow as pa

    return paceline.data.from_arrow(pa.table(columns))


def matrix(columns):
    features = np.column_stack([columns[name] for name in FEATURES])
    return xgboost.DMatrix(features, label=columns["y"], feature_names=FEATURES, nthread=1)


def boosted(columns, **options):
    """A model of all these rows from one process without us, and how good it was after each round."""
    found = {}
    sets = [(matrix(columns), "train"), (matrix(VALID), "valid")]
    asked = {"num_boost_round": NUM_ROUNDS, "evals": sets, "evals_result": found, "verbose_eval": False, **options}
    return xgboost.train({**PARAMS, "nthread": 1}, sets[0][0], **asked), found


def fitted(path: Path, *, max_failures=0, num_workers=2, **arguments):
    return XGBoostTrainer(
        datasets={"train": dataset(TRAIN), "valid": dataset(VALID)},
        label_column="y",
        params=PARAMS,
        verbose_eval=False,
        scaling_config=ScalingConfig(num_workers=num_workers),
        run_config=RunConfig(storage_path=str(path), name="run", failure_config=FailureConfig(max_failures)),
        **{"num_boost_round": NUM_ROUNDS, **arguments},
    ).fit()


@pytest.fixture(scope="module")
def declared(tmp_path_factory):
    """The result of a declared training on two workers."""
    return fitted(tmp_path_factory.mktemp("declared"))


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def refuse():
    raise ValueError("I will not")


class Dies(xgboost.callback.TrainingCallback):
    def __init__(self, rank, marker=None, how=die):
        self.rank, self.marker, self.how = rank, marker, how

    def after_iteration(self, model, epoch, evals_log):
        mine = train.get_context().get_world_rank() == self.rank and model.num_boosted_rounds() == 13
        if mine and not (self.marker and self.marker.exists()):
            if self.marker:
                self.marker.touch()
            self.how()
        return False


def test_two_workers_train_the_model_that_one_process_trains_on_all_the_rows(declared):
    model = XGBoostTrainer.get_model(declared.checkpoint)
    alone, found = boosted(TRAIN)
    assert declared.metrics["valid-auc"] == pytest.approx(found["valid"]["auc"][-1], abs=1e-6)
    assert declared.metrics["valid-auc"] > 0.93
    for part in ("train", "valid"):
        assert declared.metrics[f"{part}-logloss"] == pytest.approx(found[part]["logloss"][-1], abs=1e-6)
    rows = matrix(VALID)
    np.testing.assert_allclose(model.predict(rows), alone.predict(rows), atol=1e-5)
    # A worker's own half of the rows alone would have given another.
    half, _ = boosted({name: values[: len(values) // 2] for name, values in TRAIN.items()})
    assert np.abs(half.predict(rows) - alone.predict(rows)).max() > 0.1


def test_models_are_kept_on_the_way_and_the_last_has_all_rounds(declared):
    kept = [ReportCallback.get_model(checkpoint).num_boosted_rounds() for checkpoint, _ in declared.best_checkpoints]
    assert kept == [*range(2, NUM_ROUNDS + 1, 2)]
    assert len(declared.metrics_dataframe) == NUM_ROUNDS
    model = XGBoostCheckpoint(declared.checkpoint.path).get_model()
    assert model.feature_names == FEATURES


def test_a_predictor_gives_its_model_the_features_by_name(declared):
    rows = {name: VALID[name][:50] for name in ["y", *reversed(FEATURES)]}
    predicted = XGBoostPredictor(declared.checkpoint, keep_columns=["y"])(rows)
    assert list(predicted) == ["y", "predictions"]
    expected = XGBoostTrainer.get_model(declared.checkpoint).predict(matrix({name: VALID[name][:50] for name in VALID}))
    np.testing.assert_array_equal(predicted["predictions"], expected)


def test_a_killed_worker_costs_no_round_and_changes_no_tree(tmp_path, declared):
    """Of the two it is the one with the tracker that they meet at."""
    result = fitted(tmp_path, max_failures=1, callbacks=[Dies(0, tmp_path / "died")])
    assert (tmp_path / "died").exists()
    model = XGBoostTrainer.get_model(result.checkpoint)
    assert model.get_dump() == XGBoostTrainer.get_model(declared.checkpoint).get_dump()


@pytest.mark.parametrize(
    ("how", "said"), [(refuse, "I will not"), (die, "killed by SIGKILL")], ids=["raises", "is killed"]
)
def test_the_rank_that_failed_is_the_cause_and_not_the_one_that_lost_it(tmp_path, how, said):
    with pytest.raises(WorkerGroupError) as caught:
        fitted(tmp_path, callbacks=[Dies(1, how=how)])
    first, second = (line for line in str(caught.value).splitlines() if line.startswith("  rank "))
    assert first.startswith("  rank 1, host ")
    assert said in first
    assert second.startswith("  rank 0: ")
    logs = "".join(log.read_text() for log in (tmp_path / "run" / "logs").rglob("rank_*.log"))
    assert "Exception ignored" not in logs


def test_ranks_stop_early_at_the_same_round_and_the_last_model_knows_its_best(tmp_path):
    result = fitted(tmp_path, num_boost_round=200, early_stopping_rounds=3)
    alone, found = boosted(TRAIN, num_boost_round=200, early_stopping_rounds=3)
    model = XGBoostTrainer.get_model(result.checkpoint)
    assert model.num_boosted_rounds() == len(found["valid"]["logloss"]) < 200
    assert model.best_iteration == alone.best_iteration


def test_of_rounds_that_all_got_better_the_last_is_the_best(tmp_path):
    """Both where we place the early stopping, and where XGBoost does, after the callback that keeps the model."""
    result = fitted(tmp_path / "declared", num_workers=1, num_boost_round=5, early_stopping_rounds=3)
    assert XGBoostTrainer.get_model(result.checkpoint).best_iteration == 4
    assert len(result.metrics_dataframe) == 5

    def train_func():
        sets = [(matrix(TRAIN), "train"), (matrix(VALID), "valid")]
        callbacks = [ReportCallback(frequency=1)]
        xgboost.train(PARAMS, sets[0][0], 5, evals=sets, early_stopping_rounds=3, callbacks=callbacks)

    config = RunConfig(storage_path=str(tmp_path), name="function")
    result = XGBoostTrainer(train_func, scaling_config=ScalingConfig(1), run_config=config).fit()
    assert ReportCallback.get_model(result.checkpoint).best_iteration == 4


def test_all_ranks_have_the_same_model_and_xgboost_gives_them_our_ranks(tmp_path):
    def train_func():
        rows = train.get_dataset_shard("train").materialize().to_pandas()
        own = xgboost.DMatrix(rows.drop("y", axis=1), label=rows["y"])
        callback = ReportCallback({"n": "ones-logloss"}, filename="model.json", frequency=3)
        booster = xgboost.train(PARAMS, own, 4, evals=[(own, "ones")], callbacks=[callback])
        rank = train.get_context().get_world_rank()
        assert xgboost.collective.get_rank() == rank
        (tmp_path / f"{rank}.json").write_bytes(booster.save_raw("json"))

    result = XGBoostTrainer(
        train_func,
        datasets={"train": dataset(TRAIN)},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=str(tmp_path / "runs"), name="run"),
    ).fit()
    assert (tmp_path / "0.json").read_bytes() == (tmp_path / "1.json").read_bytes()
    assert list(result.metrics) == ["n"]
    # The fourth round kept no model, so its metrics come once more with it.
    assert len(result.metrics_dataframe) == 5
    assert ReportCallback.get_model(result.checkpoint, "model.json").num_boosted_rounds() == 4
