"""Models in checkpoints: what is read back, by which Keras, and what is refused; and models applied to datasets."""

import json
import os
import sys
import zipfile

import numpy as np
import pytest

from paceline.train.tensorflow import TensorflowCheckpoint, TensorflowPredictor, prepare_dataset_shard
from paceline.train.tensorflow.checkpoint import _has_stored_code
from paceline.train.tensorflow.keras import ReportCheckpointCallback

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")


@pytest.fixture
def model(tf):
    model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


FEATURES = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)


def test_a_model_comes_back_with_its_weights_and_its_optimizer(model):
    model.fit(FEATURES, FEATURES[:, :1], verbose=0)
    checkpoint = TensorflowCheckpoint.from_model(model)
    loaded = TensorflowCheckpoint(checkpoint.path).get_model()
    np.testing.assert_array_equal(loaded(FEATURES), model(FEATURES))
    assert int(loaded.optimizer.iterations) == 1
    assert not checkpoint.get_model(compile=False).compiled
    path = checkpoint.path
    del checkpoint
    assert not os.path.exists(path), "made outside a worker, it goes with its object"


@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file")
def test_files_that_keras_wrote_become_checkpoints(model, tmp_path):
    model.save(tmp_path / "mine.keras")
    model.save(tmp_path / "mine.h5")
    for make, name in ((TensorflowCheckpoint.from_keras, "mine.keras"), (TensorflowCheckpoint.from_h5, "mine.h5")):
        # Of an HDF5 file Keras 3 does not find the losses again that it knows by name.
        np.testing.assert_array_equal(make(tmp_path / name).get_model(compile=False)(FEATURES), model(FEATURES))


def test_a_saved_model_comes_back_as_what_can_be_called(model, tmp_path):
    model.export(str(tmp_path / "exported"), verbose=False)
    checkpoint = TensorflowCheckpoint.from_saved_model(tmp_path / "exported")
    loaded = checkpoint.get_model()
    np.testing.assert_allclose(loaded.serve(FEATURES), model(FEATURES), rtol=1e-6)
    predicted = TensorflowPredictor(checkpoint.path, feature_columns="x")({"x": FEATURES, "id": [7, 8]})
    np.testing.assert_allclose(predicted["predictions"], model(FEATURES), rtol=1e-6)
    assert predicted["id"] == [7, 8]


def test_layers_of_ones_own_are_named_and_code_that_is_stored_in_a_file_is_not_run(tf):
    class Doubled(tf.keras.layers.Layer):
        def call(self, x):
            return 2 * x

    model = tf.keras.Sequential([tf.keras.Input((2,)), Doubled()])
    loaded = TensorflowCheckpoint.from_model(model).get_model(custom_objects={"Doubled": Doubled})
    np.testing.assert_array_equal(loaded(FEATURES), 2 * FEATURES)
    model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Lambda(lambda x: x + 1)])
    checkpoint = TensorflowCheckpoint.from_model(model)
    with pytest.raises(ValueError, match=r"model\.keras has a Lambda layer"):
        checkpoint.get_model()


@pytest.mark.parametrize(
    ("config", "stored"),
    [
        ({"function": ["4wEA", None, None]}, True),
        ({"function": "abs", "function_type": "lambda"}, True),
        ({"function": {"class_name": "__lambda__"}}, True),
        ({"function": "relu", "function_type": "function"}, False),
    ],
)
def test_stored_code_is_seen_however_it_is_written(config, stored):
    assert _has_stored_code({"layers": [{"class_name": "Lambda", "config": config}]}) is stored


def test_a_model_of_keras_2_asks_for_the_keras_that_reads_it(model, tmp_path, monkeypatch):
    model.save(tmp_path / "new.keras")
    with zipfile.ZipFile(tmp_path / "new.keras") as new, zipfile.ZipFile(tmp_path / "old.keras", "w") as old:
        for name in new.namelist():
            if name != "metadata.json":
                old.writestr(name, new.read(name))
        old.writestr("metadata.json", json.dumps({"keras_version": "2.15.0"}))
    monkeypatch.setitem(sys.modules, "tf_keras", None)
    with pytest.raises(ImportError, match=r"(?s)a model of Keras 2\.15\.0 needs tf_keras.*paceline\[tensorflow\]"):
        TensorflowCheckpoint.from_keras(tmp_path / "old.keras").get_model()


def test_models_of_tf_keras_come_back_and_call_the_same_callback(tf, monkeypatch):
    tf_keras = pytest.importorskip("tf_keras", reason="tf_keras is not installed: its models were not checked")
    model = tf_keras.Sequential([tf_keras.Input((2,)), tf_keras.layers.Dense(1)])
    loaded = TensorflowCheckpoint.from_model(model).get_model()
    np.testing.assert_array_equal(loaded(FEATURES), model(FEATURES))
    assert isinstance(loaded, tf_keras.Model)
    seen = []
    monkeypatch.setattr(ReportCheckpointCallback, "_on_event", lambda self, event, logs: seen.append((event, *logs)))
    for keras in (tf.keras, tf_keras):
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        callback = ReportCheckpointCallback("epoch_end", ["train_batch_end", "epoch_end"])
        model.fit(FEATURES, np.ones((len(FEATURES), 1)), batch_size=len(FEATURES), verbose=0, callbacks=[callback])
    assert seen == [("train_batch_end", "loss"), ("epoch_end", "loss")] * 2


def test_what_is_no_model_is_refused(tmp_path):
    with pytest.raises(ValueError, match="dir_path must be a SavedModel"):
        TensorflowCheckpoint.from_saved_model(tmp_path)
    with pytest.raises(ValueError, match="file_path must be a file"):
        TensorflowCheckpoint.from_keras(tmp_path / "none.keras")
    with pytest.raises(ValueError, match=r"neither model\.keras nor"):
        TensorflowCheckpoint.from_directory(tmp_path).get_model()


def test_a_shard_is_not_divided_again(tf):
    prepared = prepare_dataset_shard(tf.data.Dataset.range(3))
    policy = prepared.options().experimental_distribute.auto_shard_policy
    assert policy == tf.data.experimental.AutoShardPolicy.OFF
    assert [int(number) for number in prepared] == [0, 1, 2]
    with pytest.raises(TypeError, match=r"must be a tf\.data\.Dataset"):
        prepare_dataset_shard([1, 2])


def test_a_callback_is_one_of_keras_and_has_only_the_hooks_it_needs(tf, monkeypatch):
    monkeypatch.delitem(sys.modules, "tf_keras", raising=False)  # which another test may have brought
    callback = ReportCheckpointCallback(checkpoint_on="train_end")
    assert isinstance(callback, tf.keras.callbacks.Callback)
    assert type(callback).on_epoch_end is not tf.keras.callbacks.Callback.on_epoch_end
    assert type(callback).on_train_batch_end is tf.keras.callbacks.Callback.on_train_batch_end


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"checkpoint_on": "epoch"}, "checkpoint_on must be one of epoch_begin, epoch_end, .*, got 'epoch'"),
        ({"metrics": [1]}, r"metrics must be a name, a list of names or a dict of names, got \[1\]"),
    ],
)
def test_what_a_callback_cannot_do_is_refused(tf, given, message):
    with pytest.raises(ValueError, match=message):
        ReportCheckpointCallback(**given)
