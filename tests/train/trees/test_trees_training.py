"""One model from two workers, by LightGBM and by XGBoost: how good it is, that all ranks have it, and deaths."""

import importlib
import json
import os
import signal
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

import paceline.data
from paceline import train
from paceline.train import FailureConfig, PreemptionError, RunConfig, ScalingConfig, WorkerGroupError

NUM_ROUNDS = 20
FEATURES = [f"x{number}" for number in range(4)]


def table(num_rows, seed):
    """Rows whose class is a curved function of three features.

    Each has fewer values than XGBoost makes bins: so workers that see only some of the rows find the same bins.
    """
    values = np.random.default_rng(seed).normal(size=(num_rows, len(FEATURES))).round(1)
    label = (values[:, 0] + values[:, 1] * values[:, 2] > 0).astype(np.int64)
    return {**{name: values[:, number] for number, name in enumerate(FEATURES)}, "y": label}


TRAIN, VALID = table(1501, seed=0), table(500, seed=1)


def features(columns):
    return np.column_stack([columns[name] for name in FEATURES])


def describe_library(name, params, **own):
    ours = importlib.import_module(f"paceline.train.{name.lower()}")
    trainer, predictor = getattr(ours, f"{name}Trainer"), getattr(ours, f"{name}Predictor")
    checkpoint, callback = getattr(ours, f"{name}Checkpoint"), ours.RayTrainReportCallback
    return SimpleNamespace(
        name=name, params=params, trainer=trainer, predictor=predictor, checkpoint=checkpoint, callback=callback, **own
    )


def import_lightgbm():
    lightgbm = pytest.importorskip("lightgbm")
    params = {"objective": "binary", "metric": ["auc", "binary_logloss"], "num_leaves": 7, "verbosity": -1}

    def boost(columns):
        """A model of these rows from one process without us, and how good it was after each round."""
        found, rows = {}, lightgbm.Dataset(features(columns), label=columns["y"], feature_name=FEATURES)
        valid = lightgbm.Dataset(features(VALID), label=VALID["y"], reference=rows)
        record = [lightgbm.record_evaluation(found)]
        return lightgbm.train(
            {**params, "num_threads": 1}, rows, NUM_ROUNDS, [valid], ["valid"], callbacks=record
        ), found

    return describe_library(
        "LightGBM",
        params,
        options={},
        loss="valid-binary_logloss",
        boost=boost,
        after_each_round=lambda act: lambda env: act(env.iteration + 1),
        predict=lambda model: model.predict(features(VALID)),
        predict_frame=lambda model, frame: model.predict(frame),
        num_rounds=lambda model: model.num_trees(),
        names=lambda model: model.feature_name(),
        trees=lambda model: model.dump_model()["tree_info"],
        tolerance=0.02,
    )


def import_xgboost():
    xgboost = pytest.importorskip("xgboost", reason="XGBoost is not installed: no training with it was checked")
    params = {"objective": "binary:logistic", "eval_metric": ["auc", "logloss"], "max_depth": 3}

    def matrix(columns):
        return xgboost.DMatrix(features(columns), label=columns["y"], feature_names=FEATURES, nthread=1)

    def boost(columns, **options):
        sets, found = [(matrix(columns), "train"), (matrix(VALID), "valid")], {}
        options = {"num_boost_round": NUM_ROUNDS, "verbose_eval": False, **options}
        return xgboost.train({**params, "nthread": 1}, sets[0][0], evals=sets, evals_result=found, **options), found

    def after_each_round(act):
        class Acting(xgboost.callback.TrainingCallback):
            def after_iteration(self, model, epoch, evals_log):
                act(model.num_boosted_rounds())
                return False

        return Acting()

    return describe_library(
        "XGBoost",
        params,
        options={"verbose_eval": False},
        loss="valid-logloss",
        matrix=matrix,
        boost=boost,
        after_each_round=after_each_round,
        predict=lambda model: model.predict(matrix(VALID)),
        predict_frame=lambda model, frame: model.predict(xgboost.DMatrix(frame, enable_categorical=True)),
        num_rounds=lambda model: model.num_boosted_rounds(),
        names=lambda model: model.feature_names,
        trees=lambda model: model.get_dump(),
        tolerance=1e-6,
    )


IMPORTS = {"lightgbm": import_lightgbm, "xgboost": import_xgboost}


@pytest.fixture(scope="module", params=IMPORTS)
def library(request):
    return IMPORTS[request.param]()


@pytest.fixture(scope="module")
def lightgbm():
    return import_lightgbm()


@pytest.fixture(scope="module")
def xgboost():
    return import_xgboost()


def dataset(columns):
    return paceline.data.from_arrow(pa.table(columns))


def fit(library, path, *, num_workers=2, max_failures=0, **arguments):
    return library.trainer(
        scaling_config=ScalingConfig(num_workers=num_workers),
        run_config=RunConfig(storage_path=str(path), name="run", failure_config=FailureConfig(max_failures)),
        **{
            "datasets": {"train": dataset(TRAIN), "valid": dataset(VALID)},
            "label_column": "y",
            "params": library.params,
            "num_boost_round": NUM_ROUNDS,
            **library.options,
            **arguments,
        },
    ).fit()


def fit_function(library, path, function, num_workers=2, **arguments):
    config, scaling = RunConfig(storage_path=str(path), name="function"), ScalingConfig(num_workers=num_workers)
    return library.trainer(function, scaling_config=scaling, run_config=config, **arguments).fit()


def act_once(library, marker, rank, num_rounds, act):
    """A callback that acts on a rank after some round, in the first life of the run."""

    def after_round(num_done):
        if train.get_context().get_world_rank() == rank and num_done == num_rounds and not marker.exists():
            marker.touch()
            act()

    return library.after_each_round(after_round)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def refuse():
    raise ArithmeticError("I will not")


@pytest.fixture(scope="module")
def declared(library, tmp_path_factory):
    """The result of a declared training on two workers."""
    return fit(library, tmp_path_factory.mktemp("declared"))


def test_a_model_from_two_workers_is_as_good_as_one_from_a_single_process_on_all_the_rows(library, declared):
    model = library.trainer.get_model(declared.checkpoint)
    alone, found = library.boost(TRAIN)
    assert declared.metrics["valid-auc"] > 0.93
    for name, values in found["valid"].items():
        assert declared.metrics[f"valid-{name}"] == pytest.approx(values[-1], abs=library.tolerance)
    assert set(declared.metrics) == {f"{part}-{name}" for part in ("train", "valid") for name in found["valid"]}
    predicted = library.predict(model)
    loss = -np.mean(np.log(np.where(VALID["y"], predicted, 1 - predicted)))
    assert loss == pytest.approx(declared.metrics[library.loss], abs=1e-5), "of the kept model"
    if library.name == "XGBoost":
        np.testing.assert_allclose(predicted, library.predict(alone), atol=1e-5)
        # A worker's own half of the rows alone would have given another.
        half, _ = library.boost({name: values[: len(values) // 2] for name, values in TRAIN.items()})
        assert np.abs(library.predict(half) - predicted).max() > 0.1


def test_every_round_is_reported_and_models_are_kept_on_the_way(library, declared):
    assert len(declared.metrics_dataframe) == NUM_ROUNDS
    saved = [library.trainer.get_model(checkpoint) for checkpoint, _ in declared.best_checkpoints]
    assert [library.num_rounds(model) for model in saved] == [*range(2, NUM_ROUNDS + 1, 2)]
    of_callback = library.callback.get_model(declared.checkpoint)
    of_path = library.checkpoint(declared.checkpoint.path).get_model()
    assert library.num_rounds(of_callback) == library.num_rounds(of_path) == NUM_ROUNDS
    assert library.names(of_path) == FEATURES


def test_a_declared_training_is_restored_without_a_function(library, declared):
    arguments = {"label_column": "y", "params": library.params, "datasets": {"train": dataset(TRAIN)}}
    trainer = library.trainer.restore(declared.path, num_boost_round=7, **arguments)
    assert (trainer.boosting_spec.num_boost_round, trainer.scaling_config.num_workers) == (7, 2)
    with pytest.raises(ValueError, match=r"needs train_loop_per_worker: .* cannot be imported: .*BoostingLoop"):
        library.trainer.restore(declared.path)


def test_categories_are_the_same_on_all_ranks_and_known_to_the_model(library, tmp_path):
    pandas = pytest.importorskip("pandas")
    random = np.random.default_rng(0)
    words, sizes = random.choice(["a", "b", "c", "k", "z"], 401), random.choice([5, 7], 401)
    words[-1] = "!"  # Sorts before all others, and only one rank has it.
    y = np.isin(words, ["a", "k"]) & (sizes == 7)
    rows = pa.table({"word": pa.array(words, mask=np.arange(401) % 50 == 1), "size": sizes, "y": y.astype(int)})
    blocks = []
    for block in (rows[:200], rows[200:400], rows[400:]):  # Each has its own categories, in another order.
        encoded = {name: block[name].dictionary_encode() for name in ("word", "size")}
        blocks.append(pa.table({**encoded, "y": block["y"]}))
    params = {**library.params, "max_cat_to_onehot": 10}
    result = fit(library, tmp_path, datasets={"train": paceline.data.from_arrow(blocks)}, params=params)
    predicted = library.predictor(result.checkpoint).predict({"word": words, "size": sizes})["predictions"]
    assert ((predicted > 0.5) == y).mean() > 0.95, "all but the rows whose word is hidden"
    frame = pandas.DataFrame({"word": pandas.Categorical(words), "size": pandas.Categorical(sizes)})
    model = library.trainer.get_model(result.checkpoint)
    assert np.allclose(library.predict_frame(model, frame), predicted), "the library itself knows them too"
    strange = library.predictor(result.checkpoint).predict({"word": ["?", None], "size": [5, 5]})["predictions"]
    assert strange[0] == strange[1], "an unknown category counts as missing"


@pytest.mark.slow
def test_a_killed_worker_costs_no_round_and_boosting_goes_on_from_the_model_that_was_kept(library, declared, tmp_path):
    """Of XGBoost's workers it is the one with the tracker that they meet at."""
    params = {"tree": "data_parallel", "pre_partition": True, "n_jobs": 1}  # As callers of Ray have them.
    params = {**library.params, **(params if library.name == "LightGBM" else {})}
    dying = act_once(library, tmp_path / "died", 1 if library.name == "LightGBM" else 0, 13, die)
    killed = fit(library, tmp_path, max_failures=1, params=params, callbacks=[dying])
    assert (tmp_path / "died").exists()
    # Rounds up to 12 were kept; round 13 alone is trained again.
    assert len(killed.metrics_dataframe) in (NUM_ROUNDS, NUM_ROUNDS + 1)
    saved = [library.trainer.get_model(checkpoint) for checkpoint, _ in killed.best_checkpoints]
    assert [library.num_rounds(model) for model in saved] == [*range(2, NUM_ROUNDS + 1, 2)]
    assert library.trees(saved[-1])[:12] == library.trees(saved[5])
    assert killed.metrics["valid-auc"] == pytest.approx(declared.metrics["valid-auc"], abs=0.01)
    if library.name == "XGBoost":
        assert library.trees(saved[-1]) == library.trees(library.trainer.get_model(declared.checkpoint))


@pytest.mark.parametrize(
    ("rank", "act", "told"),
    [
        pytest.param(0, die, "killed by SIGKILL", marks=pytest.mark.slow),
        (1, die, "killed by SIGKILL"),
        pytest.param(1, refuse, "I will not", marks=pytest.mark.slow),
    ],
)
def test_the_rank_that_failed_is_the_cause_and_not_the_one_that_lost_it(library, tmp_path, rank, act, told):
    with pytest.raises(WorkerGroupError) as caught:
        fit(library, tmp_path, callbacks=[act_once(library, tmp_path / "acted", rank, 3, act)])
    assert next(iter(caught.value.worker_failures)) == rank
    first = str(caught.value).splitlines()[2]
    assert first.startswith(f"  rank {rank}")
    assert told in first
    logs = "".join(log.read_text() for log in (tmp_path / "run" / "logs").rglob("rank_*.log"))
    assert "Exception ignored" not in logs


@pytest.mark.slow
def test_a_run_that_is_preempted_keeps_the_model_at_that_round_and_makes_none_twice(lightgbm, tmp_path):
    noticed = act_once(lightgbm, tmp_path / "noticed", 1, 5, lambda: os.kill(os.getpid(), signal.SIGTERM))
    reporting = lightgbm.callback(["valid-auc"])  # It keeps no model before the end.
    with pytest.raises(PreemptionError) as caught:
        fit(lightgbm, tmp_path, num_boost_round=1500, callbacks=[noticed, reporting])
    num_done = lightgbm.num_rounds(lightgbm.trainer.get_model(caught.value.result.checkpoint))
    assert 5 <= num_done < 1500
    assert num_done == len(caught.value.result.metrics_dataframe)
    result = fit(lightgbm, tmp_path, num_boost_round=num_done + 20, callbacks=[reporting])
    assert lightgbm.num_rounds(lightgbm.trainer.get_model(result.checkpoint)) == num_done + 20
    assert len(result.metrics_dataframe) == num_done + 20


@pytest.mark.slow
def test_lightgbm_that_stops_early_ends_on_all_ranks_and_keeps_its_best_model(lightgbm, tmp_path):
    from lightgbm import early_stopping

    noise = {**VALID, "y": np.random.default_rng(3).permutation(VALID["y"])}
    datasets = {"train": dataset(TRAIN), "valid": dataset(noise)}
    stop = early_stopping(3, first_metric_only=True, verbose=False)
    result = fit(lightgbm, tmp_path, datasets=datasets, callbacks=[stop])
    frame = result.metrics_dataframe
    num_rounds = lightgbm.num_rounds(lightgbm.trainer.get_model(result.checkpoint))
    assert len(frame) - 1 < NUM_ROUNDS  # The last report is the one that keeps the best model.
    assert num_rounds == int(frame["valid-auc"].to_numpy().argmax()) + 1 == len(frame) - 1 - 3


@pytest.mark.slow
def test_xgboost_stops_early_on_all_ranks_and_the_last_model_knows_its_best(xgboost, tmp_path):
    result = fit(xgboost, tmp_path / "early", num_boost_round=200, early_stopping_rounds=3)
    alone, found = xgboost.boost(TRAIN, num_boost_round=200, early_stopping_rounds=3)
    model = xgboost.trainer.get_model(result.checkpoint)
    assert model.num_boosted_rounds() == len(found["valid"]["logloss"]) < 200
    assert model.best_iteration == alone.best_iteration
    # Of rounds that all got better the last is the best, where we place the early stopping, and where XGBoost does.
    result = fit(xgboost, tmp_path, num_workers=1, num_boost_round=5, early_stopping_rounds=3)
    assert xgboost.trainer.get_model(result.checkpoint).best_iteration == 4
    assert len(result.metrics_dataframe) == 5

    def train_func():
        from xgboost import train as boost

        sets = [(xgboost.matrix(TRAIN), "train"), (xgboost.matrix(VALID), "valid")]
        callbacks = [xgboost.callback(frequency=1)]
        boost(xgboost.params, sets[0][0], 5, evals=sets, early_stopping_rounds=3, callbacks=callbacks)

    result = fit_function(xgboost, tmp_path, train_func, num_workers=1)
    assert xgboost.callback.get_model(result.checkpoint).best_iteration == 4


@pytest.mark.parametrize(("early_stopping", "saved"), [(False, [2, 4, 5]), (True, [2, 3])])
def test_xgboost_reports_each_round_once_and_the_last_with_the_model(xgboost, tmp_path, early_stopping, saved):
    def train_func():
        from xgboost import train as boost
        from xgboost.callback import EarlyStopping

        rows, callbacks = xgboost.matrix(TRAIN), [xgboost.callback(frequency=2)]
        if early_stopping:
            # A metric that gets worse. XGBoost shows the round that ends the training to no later callback.
            callbacks.insert(0, EarlyStopping(rounds=2, maximize=True, metric_name="logloss"))
        boost(xgboost.params, rows, 5, evals=[(rows, "train")], callbacks=callbacks)

    result = fit_function(xgboost, tmp_path, train_func, num_workers=0)
    assert len(result.metrics_dataframe) == result.metrics_dataframe["train-logloss"].nunique() == saved[-1]
    models = [xgboost.trainer.get_model(checkpoint) for checkpoint, _ in result.best_checkpoints]
    assert [xgboost.num_rounds(model) for model in models] == saved


@pytest.mark.slow
def test_training_goes_on_from_a_model_of_another_run_up_to_the_number_of_rounds_and_not_beyond(lightgbm, tmp_path):
    first = fit(lightgbm, tmp_path / "first", num_workers=1, num_boost_round=14).checkpoint
    result = fit(lightgbm, tmp_path, num_workers=1, resume_from_checkpoint=first)
    assert lightgbm.num_rounds(lightgbm.trainer.get_model(result.checkpoint)) == NUM_ROUNDS
    assert len(result.metrics_dataframe) == NUM_ROUNDS - 14
    with pytest.raises(WorkerGroupError, match="already has 20 rounds") as caught:
        fit(lightgbm, tmp_path / "all", num_workers=1, resume_from_checkpoint=result.checkpoint)
    assert "num_boost_round=40" in str(caught.value.__cause__)


def test_a_worker_without_rows_is_told_so(lightgbm, tmp_path):
    few = {name: values[:1] for name, values in TRAIN.items()}
    with pytest.raises(WorkerGroupError, match=r"rank \d's part of the dataset 'train' has no rows"):
        fit(lightgbm, tmp_path, datasets={"train": dataset(few)})


@pytest.mark.slow
def test_a_function_trains_lightgbm_twice_each_time_on_a_network_of_its_own(lightgbm, tmp_path):
    def train_func():
        from lightgbm import Dataset
        from lightgbm import train as boost

        from paceline.train.lightgbm import LightGBMCheckpoint, ReportCallback, get_network_params

        rows = train.get_dataset_shard("train").materialize().to_pandas()
        rank, models = train.get_context().get_world_rank(), []
        if rank != 0:
            LightGBMCheckpoint._write = None  # Rank 0 alone writes models.
        for callbacks in ([], [ReportCallback({"auc": "valid-auc"}, frequency=4)]):
            params = {**lightgbm.params, **get_network_params()}
            part = Dataset(rows.drop("y", axis=1), label=rows["y"])
            valid = Dataset(features(VALID), label=VALID["y"], reference=part)
            booster = boost(params, part, 6, valid_sets=[valid], valid_names=["valid"], callbacks=callbacks)
            models.append(booster.dump_model()["tree_info"])
        (tmp_path / f"{rank}.json").write_text(json.dumps([len(rows), models, params]))

    result = fit_function(lightgbm, tmp_path, train_func, datasets={"train": dataset(TRAIN)})
    zero, one = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert zero[0] == one[0] == len(TRAIN["y"]) // 2
    assert zero[1] == one[1], "all ranks have the same model though none has all rows"
    assert zero[1][0] == zero[1][1]
    assert len(zero[1][0]) == 6
    ports = [params["local_listen_port"] for _, _, params in (zero, one)]
    assert zero[2]["machines"] == f"127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}"
    assert (zero[2]["num_machines"], zero[2]["num_threads"] >= 1) == (2, True)
    assert list(result.metrics) == ["auc"], "by the name that the function chose"
    assert len(result.metrics_dataframe) == 6
    saved = [lightgbm.trainer.get_model(checkpoint).num_trees() for checkpoint, _ in result.best_checkpoints]
    assert saved == [4, 6]


def test_in_the_drivers_own_process_lightgbm_has_no_network(lightgbm, tmp_path):
    from paceline.train.lightgbm import get_network_params

    assert list(fit_function(lightgbm, tmp_path, get_network_params, num_workers=0).return_value) == ["num_threads"]


@pytest.mark.slow
def test_all_ranks_of_xgboost_have_the_same_model_and_our_ranks(xgboost, tmp_path):
    def train_func():
        from xgboost import DMatrix, collective
        from xgboost import train as boost

        rows = train.get_dataset_shard("train").materialize().to_pandas()
        own = DMatrix(rows.drop("y", axis=1), label=rows["y"])
        callback = xgboost.callback({"n": "ones-logloss"}, filename="model.json", frequency=3)
        booster = boost(xgboost.params, own, 4, evals=[(own, "ones")], callbacks=[callback])
        rank = train.get_context().get_world_rank()
        assert collective.get_rank() == rank
        (tmp_path / f"{rank}.json").write_bytes(booster.save_raw("json"))

    result = fit_function(xgboost, tmp_path, train_func, datasets={"train": dataset(TRAIN)})
    assert (tmp_path / "0.json").read_bytes() == (tmp_path / "1.json").read_bytes()
    assert list(result.metrics) == ["n"]
    assert len(result.metrics_dataframe) == 4
    assert xgboost.callback.get_model(result.checkpoint, "model.json").num_boosted_rounds() == 4
