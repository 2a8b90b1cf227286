"""Two real workers in one TensorFlow cluster: what they find, what they learn, deaths and notices on the way."""

import importlib.util
import json
import os
import signal

import numpy as np
import pytest

from paceline import train
from paceline.data import from_items
from paceline.train import PreemptionError, ScalingConfig, WorkerGroupError
from paceline.train.tensorflow import TensorflowCheckpoint, TensorflowTrainer, prepare_dataset_shard
from paceline.train.tensorflow.keras import ReportCheckpointCallback

# Not imported here: with this module workers would import it before they are told to do so in silence.
pytestmark = pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed")

WEIGHTS = np.array([[2.0], [-1.0], [0.5]])
EPOCHS_BEFORE_THE_KILL, EPOCHS_BEFORE_THE_NOTICE, EPOCHS = 2, 6, 200


def rows(size=128):
    features = np.random.default_rng(0).normal(size=(size, 3)).astype(np.float32)
    return {"x": features, "y": (features @ WEIGHTS).astype(np.float32)}


def dataset():
    return from_items([{"x": x, "y": y} for x, y in zip(*rows().values(), strict=True)])


def train_func(config):
    """A linear model in a loop of one's own. Rank 1 is killed after two epochs, and told to go after six."""
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    context, last = train.get_context(), train.get_checkpoint()
    with strategy.scope():
        if last is not None:
            model = TensorflowCheckpoint(last.path).get_model()
        else:
            model = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(1, use_bias=False)])
            model.compile(tf.keras.optimizers.SGD(0.2, momentum=0.5), "mse")
        start = last.get_metadata()["epoch"] + 1 if last is not None else 0
    shard = train.get_dataset_shard("train").to_tf("x", "y", batch_size=32)
    dataset = strategy.experimental_distribute_dataset(prepare_dataset_shard(shard))

    def step(features, labels):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(features, training=True) - labels) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def distributed_step(features, labels):
        losses = strategy.run(step, args=(features, labels))
        return strategy.reduce(tf.distribute.ReduceOp.MEAN, losses, axis=None)

    for epoch in range(start, EPOCHS):
        losses = [float(distributed_step(features, labels)) for features, labels in dataset]
        checkpoint = None
        if context.get_world_rank() == 0:
            checkpoint = TensorflowCheckpoint.from_model(model)
            checkpoint.set_metadata({"epoch": epoch})
        note(
            config["notes"],
            epoch=epoch,
            start=start,
            losses=losses,
            weights=model.weights[0].numpy().ravel().tolist(),
            cluster=json.loads(os.environ["TF_CONFIG"]),
            num_replicas=strategy.num_replicas_in_sync,
            num_threads=tf.config.threading.get_intra_op_parallelism_threads(),
        )
        train.report({"epoch": epoch, "loss": losses[-1]}, checkpoint=checkpoint)
        if start == 0 and epoch + 1 == EPOCHS_BEFORE_THE_KILL:
            train.collective.barrier()  # To it rank 0 comes when its checkpoint is committed.
            if context.get_world_rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
        if context.get_world_rank() == 1 and epoch + 1 == EPOCHS_BEFORE_THE_NOTICE:
            os.kill(os.getpid(), signal.SIGTERM)


def note(directory, **found):
    with open(f"{directory}/rank_{train.get_context().get_world_rank()}", "a") as file:
        print(json.dumps(found), file=file)


@pytest.fixture(scope="module")
def preempted(tmp_path_factory, fit_in):
    """A run in which a worker was killed, and later told that its machine goes: the result, and notes of both ranks."""
    notes = tmp_path_factory.mktemp("notes")
    scaling = ScalingConfig(2, resources_per_worker={"CPU": 2})
    options = {"config": {"notes": str(notes)}, "max_failures": 1, "datasets": {"train": dataset()}}
    with pytest.raises(PreemptionError) as caught:
        fit_in(tmp_path_factory.mktemp("runs"), train_func, scaling, trainer=TensorflowTrainer, **options)
    found = [[json.loads(line) for line in (notes / f"rank_{rank}").read_text().splitlines()] for rank in (0, 1)]
    return caught.value.result, found


@pytest.mark.slow
def test_two_workers_find_each_other_and_train_one_model_on_the_rows_of_both(preempted):
    _, found = preempted
    first, second = found[0][0]["cluster"], found[1][0]["cluster"]
    assert len(set(first["cluster"]["worker"])) == 2
    assert first["cluster"] == second["cluster"]
    assert [first["task"], second["task"]] == [{"type": "worker", "index": rank} for rank in (0, 1)]
    assert [found[rank][0]["num_replicas"] for rank in (0, 1)] == [2, 2]
    assert found[0][0]["num_threads"] == 2
    for name in ("weights", "losses"):
        assert [each[name] for each in found[0]] == [each[name] for each in found[1]]
    # 32 is the batch of both: 128 rows are four steps, and would be eight if each worker had all of them.
    assert {len(each["losses"]) for each in found[0]} == {4}


@pytest.mark.slow
def test_after_a_kill_the_run_goes_on_from_its_checkpoint_and_learns(preempted):
    result, (found, _) = preempted
    last_start = found[-1]["start"]
    assert last_start == EPOCHS_BEFORE_THE_KILL
    assert next(each["epoch"] for each in found if each["start"] == last_start) == last_start
    before = next(each for each in found if each["epoch"] == last_start - 1)
    after = next(each for each in found if each["epoch"] == last_start)
    assert after["losses"][0] < before["losses"][0]
    np.testing.assert_allclose(found[-1]["weights"], WEIGHTS.ravel(), atol=0.02)
    assert result.metrics["loss"] < 1e-3


@pytest.mark.slow
def test_a_notice_stops_workers_whose_signals_tensorflow_has_taken_with_a_checkpoint(tf, preempted):
    result, (found, _) = preempted
    assert EPOCHS_BEFORE_THE_NOTICE <= result.metrics["epoch"] + 1 < EPOCHS
    assert result.checkpoint.get_metadata()["epoch"] == result.metrics["epoch"]
    model = TensorflowCheckpoint(result.checkpoint.path).get_model()
    np.testing.assert_array_equal(model.weights[0].numpy().ravel(), np.float32(found[-1]["weights"]))


def run_fit(config):
    """What `fit` does by itself on each worker, and then what Keras 3 makes of it under a strategy."""
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    data = rows()

    def model(*layers):
        model = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(1, use_bias=False), *layers])
        model.compile(tf.keras.optimizers.SGD(0.2), "mse", metrics=["mae"])
        return model

    callback = ReportCheckpointCallback(
        checkpoint_on="train_end", report_metrics_on=["epoch_end"], metrics={"error": "mae", "loss": "loss"}
    )
    model().fit(data["x"], data["y"], batch_size=16, epochs=3, verbose=0, callbacks=[callback])
    with strategy.scope():
        distributed = model(tf.keras.layers.BatchNormalization())
    callback = ReportCheckpointCallback(metrics=["loss"])
    callback.set_model(distributed)
    callback.on_epoch_end(3, logs={"loss": 0.5, "other": 1.0})
    distributed.fit(data["x"], data["y"], verbose=0, callbacks=[ReportCheckpointCallback()])


@pytest.fixture(scope="module")
def refused(tmp_path_factory, fit_in):
    """How a run ended whose function calls `fit` of Keras 3 under a strategy over two workers."""
    with pytest.raises(WorkerGroupError) as caught:
        fit_in(tmp_path_factory.mktemp("runs"), run_fit, config={}, trainer=TensorflowTrainer)
    return caught.value


@pytest.mark.slow
def test_a_callback_reports_what_keras_logs_and_the_model(tf, refused):
    result = refused.result
    frame = result.metrics_dataframe
    assert len(frame) == 5, "three epochs, the end of them with a checkpoint, and one with a strategy"
    assert frame["error"].iloc[2] < frame["error"].iloc[0]
    assert frame.columns[frame.iloc[3].notna()].intersection(["error", "loss"]).size == 2
    [(first, _), (last, metrics)] = result.best_checkpoints
    np.testing.assert_allclose(TensorflowCheckpoint(first.path).get_model().weights[0], WEIGHTS, atol=0.2)
    assert metrics == {"loss": 0.5}
    assert len(TensorflowCheckpoint(last.path).get_model().layers) == 2


@pytest.mark.slow
def test_fit_of_keras_3_under_a_strategy_names_the_keras_that_can_and_logs_nothing_else(refused):
    lines = [line for line in str(refused).splitlines() if "tf_keras" in line]
    # One for each rank that failed before the first failure ended it.
    assert len(lines) in (1, 2)
    assert all("PerReplica" in line and "TF_USE_LEGACY_KERAS" in line for line in lines)
    log = "".join(file.read_text() for file in refused.result.log_dir.rglob("rank_*.log"))
    assert "Traceback" in log
    assert "oneDNN" not in log
    assert "INFO" not in log


@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")
def test_a_model_is_fitted_in_the_process_of_the_script(tf, fit):
    def train_func():
        model = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(1, use_bias=False)])
        model.compile(tf.keras.optimizers.SGD(0.2), "mse")
        dataset = prepare_dataset_shard(train.get_dataset_shard("train").to_tf("x", "y", batch_size=16))
        callback = ReportCheckpointCallback("epoch_end", ["train_batch_end", "epoch_end"])
        model.fit(dataset, epochs=2, verbose=0, callbacks=[callback])
        return json.loads(os.environ["TF_CONFIG"])

    result = fit(train_func, 0, trainer=TensorflowTrainer, datasets={"train": dataset()})
    assert len(result.metrics_dataframe) == 2 * (128 // 16 + 1)
    assert len(result.best_checkpoints) == 2
    assert len(result.return_value["cluster"]["worker"]) == 1
    np.testing.assert_allclose(TensorflowCheckpoint(result.checkpoint.path).get_model().weights[0], WEIGHTS, atol=0.1)


@pytest.mark.slow
def test_tf_keras_fits_under_a_strategy(fit, monkeypatch):
    if importlib.util.find_spec("tf_keras") is None:
        pytest.skip("tf_keras is not installed: its fit() under MultiWorkerMirroredStrategy was not checked")
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")

    def train_func():
        import tensorflow as tf

        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        with strategy.scope():
            model = tf.keras.Sequential([tf.keras.layers.Dense(1, use_bias=False, input_shape=(3,))])
            model.compile(tf.keras.optimizers.SGD(0.2), "mse")
        shard = train.get_dataset_shard("train").to_tf("x", "y", batch_size=32)
        model.fit(prepare_dataset_shard(shard), epochs=4, verbose=0, callbacks=[ReportCheckpointCallback()])

    result = fit(train_func, trainer=TensorflowTrainer, datasets={"train": dataset()})
    assert result.metrics["loss"] < 0.05
    assert len(result.best_checkpoints) == 4
