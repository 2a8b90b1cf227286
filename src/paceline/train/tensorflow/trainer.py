"""TensorflowTrainer: a data-parallel trainer whose workers are a TensorFlow cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

from paceline.train.tensorflow.config import TensorflowConfig
from paceline.train.trainer import DataParallelTrainer, TrainerOptions


class TensorflowTrainer(DataParallelTrainer):
    """Trains with TensorFlow on many workers.

    def train_func(config):
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        with strategy.scope():
            model = build_model()
        ...
        train.report({"loss": loss}, checkpoint=checkpoint)

    TensorflowTrainer(train_func, train_loop_config={...}, scaling_config=ScalingConfig(num_workers=4)).fit()
    """

    _default_backend = TensorflowConfig
    _backend_argument = "tensorflow_config"

    def __init__(
        self,
        train_loop_per_worker: Callable[..., Any],
        *,
        tensorflow_config: TensorflowConfig | None = None,
        **arguments: Unpack[TrainerOptions],
    ) -> None:
        super().__init__(train_loop_per_worker, backend_config=tensorflow_config, **arguments)
