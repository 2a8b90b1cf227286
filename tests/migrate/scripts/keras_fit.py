"""Keras in a `TensorflowTrainer`, with the callback that reports."""

import numpy as np
import tensorflow as tf
from ray.train import ScalingConfig
from ray.train.tensorflow import TensorflowTrainer
from ray.train.tensorflow.keras import ReportCheckpointCallback


def train_func(config):
    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
        model.compile(optimizer="sgd", loss="mse")
    x = np.ones((16, 4), dtype="float32")
    model.fit(x, x.sum(1), epochs=config["epochs"], batch_size=8, verbose=0, callbacks=[ReportCheckpointCallback()])


result = TensorflowTrainer(
    train_func, train_loop_config={"epochs": 2}, scaling_config=ScalingConfig(num_workers=1)
).fit()
assert "loss" in result.metrics
assert result.checkpoint is not None
