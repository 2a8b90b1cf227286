"""One model of LightGBM from two workers: how good it is, that all ranks have it, and that a kill costs no round."""

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest

import paceline.data
from paceline import train
from paceline.data.exec.processes import shutdown
from paceline.train import FailureConfig, PreemptionError, RunConfig, ScalingConfig, WorkerGroupError

lightgbm = pytest.importorskip("lightgbm")

from paceline.train.lightgbm import (  # noqa: E402
    LightGBMCheckpoint,
    LightGBMPredictor,
    LightGBMTrainer,
    RayTrainReportCallback,
    ReportCallback,
    get_network_params,
)

NUM_ROUNDS = 20
PARAMS = {"objective": "binary", "metric": ["auc", "binary_logloss"], "num_leaves": 7, "verbosity": -1}
FEATURES = [f"x{number}" for number in range(4)]


def table(num_rows: int, seed: int) -> dict[str, np.ndarray]:
    """Rows whose class is a curved function of three features."""
    values = np.random.default_rng(seed).normal(size=(num_rows, len(FEATURES)))
    label = (values[:, 0] + values[:, 1] * values[:, 2] > 0).astype(np.int64)
    return {**{name: values[:, number] for number, name in enumerate(FEATURES)}, "y": label}


TRAIN, VALID = table(1501, seed=0), table(500, seed=1)


def dataset(columns):
    import pyarrow as pa

    return paceline.data.from_arrow(pa.table(columns))


def matrix(columns):
    return np.column_stack([columns[name] for name in FEATURES])


def trainer(
    path: Path, *, num_workers=2, max_failures=0, datasets=None, num_boost_round=NUM_ROUNDS, params=PARAMS, **arguments
):
    return LightGBMTrainer(
        datasets=datasets or {"train": dataset(TRAIN), "valid": dataset(VALID)},
        label_column="y",
        params=params,
        num_boost_round=num_boost_round,
        scaling_config=ScalingConfig(num_workers=num_workers),
        run_config=RunConfig(storage_path=str(path), name="run", failure_config=FailureConfig(max_failures)),
        **arguments,
    )


def trees_of(model) -> str:
    """A model as text, without the one parameter that has to differ between ranks."""
    lines = model.model_to_string().splitlines()
    return "\n".join(line for line in lines if not line.startswith("[local_listen_port:"))


@pytest.fixture(scope="module")
def declared(tmp_path_factory):
    """The result of a declared training on two workers."""
    return trainer(tmp_path_factory.mktemp("declared")).fit()


@pytest.fixture(scope="module")
def alone():
    """A model of all the rows, from one process without us."""
    rows = lightgbm.Dataset(matrix(TRAIN), label=TRAIN["y"], feature_name=FEATURES)
    found = {}
    valid = lightgbm.Dataset(matrix(VALID), label=VALID["y"], reference=rows)
    record = lightgbm.record_evaluation(found)
    lightgbm.train({**PARAMS, "num_threads": 1}, rows, NUM_ROUNDS, [valid], ["valid"], callbacks=[record])
    return found["valid"]


def test_a_model_from_two_workers_is_good_and_as_good_as_one_from_a_single_process(declared, alone):
    assert declared.metrics["valid-auc"] > 0.93
    assert declared.metrics["valid-auc"] == pytest.approx(alone["auc"][-1], abs=0.01)
    assert declared.metrics["valid-binary_logloss"] == pytest.approx(alone["binary_logloss"][-1], abs=0.02)
    assert set(declared.metrics) == {f"{part}-{name}" for part in ("train", "valid") for name in PARAMS["metric"]}


def test_the_checkpoint_holds_the_model_that_was_measured(declared):
    for model in (
        LightGBMTrainer.get_model(declared.checkpoint),
        RayTrainReportCallback.get_model(declared.checkpoint),
        LightGBMCheckpoint(declared.checkpoint.path).get_model(),
    ):
        assert model.num_trees() == NUM_ROUNDS
        assert model.feature_name() == FEATURES
    predicted = model.predict(matrix(VALID))
    loss = -np.mean(np.log(np.where(VALID["y"], predicted, 1 - predicted)))
    assert loss == pytest.approx(declared.metrics["valid-binary_logloss"], abs=1e-6)


def test_every_round_is_reported_and_every_tenth_of_them_keeps_the_model(declared):
    assert len(declared.metrics_dataframe) == NUM_ROUNDS
    assert len(declared.best_checkpoints) == 10
    first, _ = declared.best_checkpoints[0]
    assert LightGBMTrainer.get_model(first).num_trees() == NUM_ROUNDS // 10


@pytest.fixture
def data_processes_end():
    yield
    shutdown()


@pytest.mark.usefixtures("data_processes_end")
def test_a_predictor_gives_the_predictions_of_its_model(declared):
    model = LightGBMTrainer.get_model(declared.checkpoint)
    backwards = {name: VALID[name] for name in reversed(list(VALID))}
    given = {"checkpoint": declared.checkpoint, "keep_columns": ["y"]}
    rows = dataset(backwards).map_batches(LightGBMPredictor, fn_constructor_kwargs=given, concurrency=1).take_all()
    assert [row["y"] for row in rows] == VALID["y"].tolist()
    assert np.allclose([row["predictions"] for row in rows], model.predict(matrix(VALID)))


@pytest.fixture(scope="module")
def by_function(tmp_path_factory):
    """What each rank has after it trained twice in one function, and how the run ended."""
    notes = tmp_path_factory.mktemp("notes")

    def train_func(config):
        rows = train.get_dataset_shard("train").materialize().to_pandas()
        context = train.get_context()
        if context.get_world_rank() != 0:
            LightGBMCheckpoint._write = None  # Rank 0 alone writes models.
        models = []
        for callbacks in ([], [ReportCallback({"auc": "valid-auc"}, frequency=4)]):
            params = {**PARAMS, **get_network_params()}
            part = lightgbm.Dataset(rows.drop("y", axis=1), label=rows["y"])
            valid = lightgbm.Dataset(matrix(VALID), label=VALID["y"], reference=part)
            booster = lightgbm.train(
                params, part, config["rounds"], valid_sets=[valid], valid_names=["valid"], callbacks=callbacks
            )
            models.append(trees_of(booster).replace(params["machines"], "machines"))
        said = {"models": models, "num_rows": len(rows), "params": params, "port": params["local_listen_port"]}
        (Path(config["notes"]) / f"{context.get_world_rank()}.json").write_text(json.dumps(said))

    result = LightGBMTrainer(
        train_func,
        train_loop_config={"rounds": 6, "notes": str(notes)},
        datasets={"train": dataset(TRAIN)},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=str(notes / "runs"), name="run"),
    ).fit()
    return [json.loads((notes / f"{rank}.json").read_text()) for rank in range(2)], result


def test_all_ranks_have_the_same_model_though_none_has_all_rows(by_function):
    (zero, one), _ = by_function
    assert zero["num_rows"] == one["num_rows"] == len(TRAIN["y"]) // 2
    assert zero["models"] == one["models"]
    assert zero["models"][0].count("Tree=") == 6


def test_a_function_trains_twice_each_time_on_a_network_of_its_own(by_function):
    (zero, one), _ = by_function
    assert zero["models"][0] == zero["models"][1]
    assert zero["params"]["machines"] == f"127.0.0.1:{zero['port']},127.0.0.1:{one['port']}"
    assert zero["params"]["num_machines"] == 2
    assert zero["params"]["num_threads"] >= 1


def test_a_function_reports_by_the_names_that_it_chose(by_function):
    _, result = by_function
    assert list(result.metrics) == ["auc"]
    assert len(result.metrics_dataframe) == 6
    kept = [LightGBMTrainer.get_model(checkpoint).num_trees() for checkpoint, _ in result.best_checkpoints]
    assert kept == [4, 6]


class Signalled:
    """A callback that sends a rank a signal after some round, in the first life of the run."""

    order = 40

    def __init__(self, marker: Path, rank: int, num_rounds: int, signum: int = signal.SIGKILL) -> None:
        self.marker, self.rank, self.num_rounds, self.signum = marker, rank, num_rounds, signum

    def __call__(self, env) -> None:
        mine = train.get_context().get_world_rank() == self.rank
        if mine and env.iteration + 1 == self.num_rounds and not self.marker.exists():
            self.marker.write_text(str(env.begin_iteration))
            os.kill(os.getpid(), self.signum)


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """The result of a declared training whose rank 1 was killed after round 13."""
    path = tmp_path_factory.mktemp("killed")
    params = {**PARAMS, "tree": "data_parallel", "pre_partition": True, "n_jobs": 1}  # As callers of Ray have them.
    result = trainer(path, max_failures=1, params=params, callbacks=[Signalled(path / "died", 1, 13)]).fit()
    assert (path / "died").exists()
    return result


def test_a_killed_worker_costs_no_round_and_the_model_has_exactly_those_that_were_asked_for(killed, declared):
    assert LightGBMTrainer.get_model(killed.checkpoint).num_trees() == NUM_ROUNDS
    assert killed.metrics["valid-auc"] == pytest.approx(declared.metrics["valid-auc"], abs=0.01)
    assert killed.metrics["valid-auc"] > 0.93


def test_after_a_kill_boosting_goes_on_from_the_model_that_was_kept(killed, declared):
    # Rounds up to 12 were kept; round 13 alone is trained again.
    assert len(killed.metrics_dataframe) in (NUM_ROUNDS, NUM_ROUNDS + 1)
    twelve = [LightGBMTrainer.get_model(checkpoint).num_trees() for checkpoint, _ in killed.best_checkpoints]
    assert twelve == [2, 4, 6, 8, 10, 12, 14, 16, 18, 20]
    before, after = killed.best_checkpoints[5][0], killed.checkpoint
    begun = LightGBMTrainer.get_model(before).dump_model()["tree_info"]
    assert LightGBMTrainer.get_model(after).dump_model()["tree_info"][:12] == begun


@pytest.mark.parametrize("rank", [0, 1])
def test_the_death_is_the_cause_and_the_connection_it_broke_is_not(tmp_path, rank):
    with pytest.raises(WorkerGroupError) as caught:
        trainer(tmp_path, callbacks=[Signalled(tmp_path / "died", rank, 3)]).fit()
    assert next(iter(caught.value.worker_failures)) == rank
    told = str(caught.value).splitlines()[2]
    assert told.startswith(f"  rank {rank}")
    assert told.endswith("killed by SIGKILL")


def test_a_run_that_is_preempted_keeps_the_model_at_that_round_and_makes_none_twice(tmp_path):
    reporting = ReportCallback(["valid-auc"])  # It keeps no model before the end.
    given = {"num_boost_round": 150, "callbacks": [Signalled(tmp_path / "told", 1, 5, signal.SIGTERM), reporting]}
    with pytest.raises(PreemptionError) as caught:
        trainer(tmp_path, **given).fit()
    num_done = LightGBMTrainer.get_model(caught.value.result.checkpoint).num_trees()
    assert 5 <= num_done < 150
    assert num_done == len(caught.value.result.metrics_dataframe)
    result = trainer(tmp_path, **given).fit()
    assert LightGBMTrainer.get_model(result.checkpoint).num_trees() == 150
    assert len(result.metrics_dataframe) == 150


def test_what_a_callback_raises_on_one_rank_is_the_cause(tmp_path):
    def refuse(env):
        if env.iteration == 2 and train.get_context().get_world_rank() == 1:
            raise ArithmeticError("not like this")

    with pytest.raises(WorkerGroupError) as caught:
        trainer(tmp_path, callbacks=[refuse]).fit()
    assert next(iter(caught.value.worker_failures)) == 1
    assert isinstance(caught.value.__cause__, ArithmeticError)


def test_a_training_that_stops_early_ends_on_all_ranks_and_keeps_its_best_model(tmp_path):
    noise = {**VALID, "y": np.random.default_rng(3).permutation(VALID["y"])}
    datasets = {"train": dataset(TRAIN), "valid": dataset(noise)}
    stop = lightgbm.early_stopping(3, first_metric_only=True, verbose=False)
    result = trainer(tmp_path, datasets=datasets, callbacks=[stop]).fit()
    frame = result.metrics_dataframe
    model = LightGBMTrainer.get_model(result.checkpoint)
    assert len(frame) - 1 < NUM_ROUNDS  # The last report is the one that keeps the best model.
    assert model.num_trees() == int(frame["valid-auc"].to_numpy().argmax()) + 1
    assert model.num_trees() == len(frame) - 1 - 3


@pytest.mark.parametrize("num_rows", [0, 1])
def test_a_worker_without_rows_is_told_so(tmp_path, num_rows):
    few = {name: values[:num_rows] for name, values in TRAIN.items()}
    with pytest.raises(WorkerGroupError, match=r"rank \d's part of the dataset 'train' has no rows"):
        trainer(tmp_path, datasets={"train": dataset(few)}).fit()


def test_training_goes_on_from_a_model_of_another_run_up_to_the_number_of_rounds(declared, tmp_path):
    early, _ = declared.best_checkpoints[6]
    result = trainer(tmp_path, num_workers=1, resume_from_checkpoint=early).fit()
    assert LightGBMTrainer.get_model(early).num_trees() == 14
    assert LightGBMTrainer.get_model(result.checkpoint).num_trees() == NUM_ROUNDS
    assert len(result.metrics_dataframe) == NUM_ROUNDS - 14


def test_a_model_that_has_all_rounds_already_is_refused_with_the_number_to_ask_for(declared, tmp_path):
    with pytest.raises(WorkerGroupError, match="has 20 rounds already") as caught:
        trainer(tmp_path, num_workers=1, resume_from_checkpoint=declared.checkpoint).fit()
    assert "num_boost_round=40" in str(caught.value.__cause__)


def test_in_the_drivers_own_process_there_is_no_network(tmp_path):
    result = LightGBMTrainer(
        get_network_params,
        scaling_config=ScalingConfig(num_workers=0),
        run_config=RunConfig(storage_path=str(tmp_path), name="run"),
    ).fit()
    assert list(result.return_value) == ["num_threads"]
