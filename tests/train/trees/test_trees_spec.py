"""Trainings that are declared by arguments: what is refused at once, and how rows become a matrix."""

from typing import ClassVar

import numpy as np
import pyarrow as pa
import pytest

import paceline.data
from paceline.train import CheckpointConfig
from paceline.train.lightgbm import LightGBMTrainer
from paceline.train.trees.predictor import TreePredictor
from paceline.train.trees.tables import make_table, merge_categories
from paceline.train.trees.training_spec import BoostingLibrary, make_boosting_spec


class SomeLibrary(BoostingLibrary):
    name = "Some"
    train_kwargs = ("callbacks", "feval")
    reserved_params: ClassVar = {"machines": "we know them"}


def make_spec(**changes):
    arguments = {"datasets": {"valid": 1, "train": 2}, "label_column": "y", "params": {"eta": 1}}
    arguments |= {"num_boost_round": 30, "train_kwargs": {}, "checkpoint_config": CheckpointConfig()}
    return make_boosting_spec(SomeLibrary(), **{**arguments, **changes})


def test_a_spec_lists_the_training_set_first():
    spec = make_spec()
    assert (spec.datasets, spec.num_boost_round, spec.checkpoint_frequency) == (("train", "valid"), 30, 3)
    assert make_spec(num_boost_round=None).num_boost_round == 10
    assert make_spec(num_boost_round=3).checkpoint_frequency == 1


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"datasets": None}, ValueError, "datasets must include 'train'; the datasets are none"),
        ({"label_column": None}, ValueError, "label_column must be the name of a column, got None"),
        ({"params": None}, ValueError, "params must be a dict of parameters for some.train, got None"),
        ({"params": {"machines": ""}}, ValueError, r"'machines'\] cannot be set with SomeTrainer: we know them"),
        ({"num_boost_round": 0}, ValueError, "num_boost_round must be a positive integer, got 0"),
        ({"train_kwargs": {"init_model": 1}}, TypeError, "no argument 'init_model'.*callbacks, feval"),
        ({"train_kwargs": {"callbacks": print}}, ValueError, "callbacks must be a list of callbacks or None, got"),
    ],
)
def test_a_wrong_declaration_is_refused_by_name(changes, error, message):
    with pytest.raises(error, match=message):
        make_spec(**changes)


ROWS = {"train": paceline.data.from_items([{"x": 1.0, "y": 0}])}


@pytest.fixture(scope="module")
def lightgbm():
    """Imported before a test begins, because it changes the environment."""
    return pytest.importorskip("lightgbm")


def declare(**params):
    return {"datasets": ROWS, "label_column": "y", "params": params}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, TypeError, "has nothing to train"),
        ({"train_loop_per_worker": print, "params": {}}, TypeError, "train_loop_per_worker or params, not both"),
        ({"train_loop_config": {}, "params": {}}, TypeError, "train_loop_config only with a train_loop_per_worker"),
        ({**declare(), "epochs": 3}, TypeError, "takes no argument 'epochs'"),
        (declare(machines=1), ValueError, r"params\['machines'\] cannot be set with LightGBMTrainer"),
        (declare(n_estimators=1), ValueError, r"params\['n_estimators'\] cannot be set with LightGBMTrainer"),
        (declare(tree="feature"), ValueError, r"params\['tree'\] must be 'data', .*, got 'feature'"),
        (declare(pre_partition=False), ValueError, r"params\['pre_partition'\] must be True, got False"),
    ],
)
def test_a_trainer_refuses_a_mix_with_a_function_and_our_own_parameters(lightgbm, arguments, error, message):
    with pytest.raises(error, match=message):
        LightGBMTrainer(**arguments)


def test_evaluation_sets_are_whole_on_every_rank_and_no_row_to_train_on_is_left_out(lightgbm):
    trainer = LightGBMTrainer(datasets={**ROWS, "valid": ROWS["train"]}, label_column="y", params={})
    shards = trainer.dataset_config.shards(("train", "valid"))
    assert [(shard.name, shard.mode) for shard in shards] == [("train", "exact"), ("valid", "all")]


def batch(**columns):
    return {name: np.asarray(values) for name, values in columns.items()}


def test_rows_become_one_matrix_with_the_names_of_its_columns():
    batches = [
        batch(a=np.float32([1, 2]), y=[0, 1], image=np.uint8([[[1, 2]], [[3, 4]]])),
        batch(a=np.float32([]), y=[], image=np.zeros((0, 1, 2), np.uint8)),
        batch(a=np.float32([5]), y=[1], image=np.uint8([[[6, 7]]])),
    ]
    table = make_table(batches, "y", "it")
    assert table.names == ("a", "image_0", "image_1")
    assert table.features.tolist() == [[1, 1, 2], [2, 3, 4], [5, 6, 7]]
    assert table.features.dtype == np.float32
    assert table.labels.tolist() == [0, 1, 1]
    assert make_table([batch(id=[16777217], y=[0])], "y", "it").features.tolist() == [[16777217]], "no float32"


def test_a_checkpoint_that_is_not_there_yet_is_refused_with_a_hint():
    with pytest.raises(
        TypeError,
        match=r"checkpoint must be .*Checkpoint, got None\n\nhint: without one, before the first report: model =",
    ):
        LightGBMTrainer.get_model(None)


def test_the_categories_of_all_workers_follow_those_of_the_model_that_boosting_continues():
    found = [{"word": ["z", "b"]}, {"word": ["a", "k"], "size": [7, 5]}]
    merged = {"word": ["k", "a", "b", "z"], "size": [5, 7]}
    assert merge_categories({"word": ["k"]}, found) == merge_categories({"word": ["k"]}, found[::-1]) == merged
    column = pa.chunked_array([pa.array(["z", None, "b"]).dictionary_encode(), pa.array(["z"]).dictionary_encode()])
    table = make_table([{"word": column, "y": np.zeros(4)}], "y", "it").recode(merged)
    assert np.array_equal(table.features[:, 0], [3, np.nan, 2, 3], equal_nan=True)
    with pytest.raises(ValueError, match="categories of the column 'word' must be texts or numbers, got b'z'"):
        make_table([{"word": pa.chunked_array([pa.array([b"z"]).dictionary_encode()]), "y": [1]}], "y", "it")


@pytest.mark.parametrize(
    ("batches", "error", "message"),
    [
        ([], ValueError, "it has no rows: every worker needs some"),
        ([batch(a=[1], z=[1])], KeyError, "it has no label_column 'y'; the columns are 'a', 'z'"),
        ([batch(y=[1])], ValueError, "it has only the label_column 'y', and no features"),
        ([batch(a=["red"], y=[1])], ValueError, "it: the column 'a' must be numeric, got values of type <U3"),
        ([batch(a=[1], y=["no"])], ValueError, "the column 'y' must be numeric"),
    ],
)
def test_rows_without_labels_or_numbers_are_refused(batches, error, message):
    with pytest.raises(error, match=message):
        make_table(batches, "y", "it")


NOWHERE = "no checkpoint is read here"


class Sums(TreePredictor):
    """A model that adds its features up, each with a weight by its place."""

    names: tuple[str, ...] | None = None

    def _read(self, checkpoint, filename):
        return (checkpoint, filename)

    def _feature_names(self):
        return list(self.names) if self.names else None

    def _predict_matrix(self, matrix):
        return matrix @ 10.0 ** np.arange(matrix.shape[1])


class NamedSums(Sums):
    names = ("b", "image_1", "image_0", "a")


def test_a_predictor_finds_features_by_name_in_any_order_and_within_arrays():
    rows = batch(image=[[3, 2]], other=[9], a=[4], b=[1])
    assert NamedSums(NOWHERE, keep_columns=["other"])(rows) == {"other": [9], "predictions": [4321]}


def test_a_predictor_uses_the_given_feature_columns():
    rows = batch(a=[1], b=[2], c=[3])
    assert Sums(NOWHERE, feature_columns=["c", "a"]).predict(rows)["predictions"].tolist() == [13]
    assert Sums.from_checkpoint(NOWHERE).predict(rows)["predictions"].tolist() == [321]
    assert list(Sums(NOWHERE, feature_columns="c", keep_columns=False)(rows)) == ["predictions"]
    assert list(Sums(NOWHERE)(rows)) == ["a", "b", "c", "predictions"]


def test_a_predictor_takes_a_batch_without_rows_and_names_a_column_that_is_not_there():
    class Refuses(Sums):
        def _predict_matrix(self, matrix):
            assert len(matrix)
            return np.tile(np.float32([1, 2, 3]), (len(matrix), 1))

    empty = Refuses(NOWHERE).predict(batch(a=np.float32([]), image=np.zeros((0, 2))))["predictions"]
    assert (empty.shape, empty.dtype) == ((0, 3), np.float32)
    with pytest.raises(ValueError, match=r"the batch has no column 'a', .*; the columns are 'b'"):
        NamedSums(NOWHERE).predict(batch(b=[1], image=[[1, 2]]))
