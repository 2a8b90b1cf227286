"""What a report callback of either library decides: which metrics, under which names, with a model or without."""

import pandas
import pytest

from paceline.data import from_items
from paceline.train import CheckpointConfig, RunConfig
from paceline.train.driver.trainer_arguments import _check_for_train
from paceline.train.lightgbm import LightGBMTrainer, normalize_pandas_for_lightgbm
from paceline.train.trees.reports import ModelCheckpoint, TreeReportCallback

METRICS = {"train-auc": 0.9, "valid-auc": 0.8}


class SomeCallback(TreeReportCallback):
    checkpoint_class = ModelCheckpoint
    CHECKPOINT_NAME = "model.txt"


def plan(*metrics, **arguments):
    return SomeCallback(*metrics, **arguments).plan


@pytest.mark.parametrize(
    ("metrics", "selected"),
    [(None, METRICS), ("valid-auc", {"valid-auc": 0.8}), ({"score": "valid-auc"}, {"score": 0.8}), ([], {})],
)
def test_metrics_are_chosen_and_named(metrics, selected):
    assert plan(metrics).select_metrics(METRICS) == selected


def test_metrics_are_postprocessed_and_unknown_ones_refused():
    processed = plan(results_postprocessing_fn=lambda metrics: {"error": 1 - metrics["valid-auc"]})
    assert processed.select_metrics(METRICS) == {"error": pytest.approx(0.2)}
    with pytest.raises(TypeError, match="results_postprocessing_fn must return a dict of metrics, got 3"):
        plan(results_postprocessing_fn=lambda _: 3).select_metrics(METRICS)
    with pytest.raises(KeyError, match="unknown metric 'valid-loss'; the metrics are 'train-auc', 'valid-auc'"):
        plan({"loss": "valid-loss"}).select_metrics(METRICS)


@pytest.mark.parametrize(
    ("frequency", "at_end", "saved"),
    [(0, True, [5]), (0, False, []), (2, True, [2, 4, 5]), (2, False, [2, 4]), (1, False, [1, 2, 3, 4, 5])],
)
def test_the_model_is_saved_every_few_rounds_and_at_the_end(frequency, at_end, saved):
    chosen = plan(frequency=frequency, checkpoint_at_end=at_end)
    assert [n for n in range(1, 6) if chosen.should_checkpoint(n, last=n == 5)] == saved


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"metrics": [3]}, r"metrics must be a name, .*, got \[3\]"),
        ({"metrics": {"a": 1}}, "metrics must be a name, .*, got {'a': 1}"),
        ({"filename": "a/b"}, "filename must be a plain file name, got 'a/b'"),
        ({"filename": ".manifest.json"}, "filename must be a plain file name, got '.manifest.json'"),
        ({"frequency": True}, "frequency must be a non-negative integer, got True"),
        ({"results_postprocessing_fn": 3}, "results_postprocessing_fn must be a function or None, got 3"),
    ],
)
def test_a_wrong_argument_of_a_callback_is_refused_by_name(arguments, message):
    with pytest.raises(ValueError, match=message):
        plan(**arguments)


def test_the_checkpoint_config_says_when_a_declared_model_is_saved():
    def callback_of(trainer):
        return trainer._library.list_callbacks(trainer.boosting_spec)[-1].plan

    trainer = LightGBMTrainer(
        datasets={"train": from_items([{"x": 1, "y": 0}])},
        label_column="y",
        params={},
        run_config=RunConfig(checkpoint_config=CheckpointConfig(checkpoint_frequency=3, checkpoint_at_end=False)),
    )
    assert (callback_of(trainer).frequency, callback_of(trainer).checkpoint_at_end) == (3, False)
    trainer = trainer.replace_arguments(run_config=RunConfig())
    assert (callback_of(trainer).frequency, callback_of(trainer).checkpoint_at_end) == (1, True)
    every_round = RunConfig(checkpoint_config={"checkpoint_frequency": 1})
    _check_for_train(trainer.trainer_arguments.replace(run_config=every_round))


def test_a_frame_is_normalized_for_lightgbm():
    frame = pandas.DataFrame(
        {
            "arrow": pandas.array([1, None], dtype="int64[pyarrow]"),
            "nullable": pandas.array([1, 2], dtype="Int32"),
            "flag": pandas.array([True, False], dtype="boolean"),
            "kind": pandas.Categorical(["a", "b"]),
            "plain": [1.5, 2.5],
        },
        index=[7, 8],
    )
    normal = normalize_pandas_for_lightgbm(frame)
    assert [str(dtype) for dtype in normal.dtypes] == ["float64", "int64", "bool", "category", "float64"]
    assert (normal.index.tolist(), normal["arrow"][7], normal["arrow"].isna().tolist()) == ([7, 8], 1, [False, True])
