"""Training with TensorFlow and Keras.

Workers start as fresh interpreters, because TensorFlow must not be forked. It is not imported here.
"""

from typing import TYPE_CHECKING

from paceline._core.lazy_imports import make_lazy_getattr
from paceline.train.tensorflow.config import TensorflowConfig

if TYPE_CHECKING:
    from paceline.train.tensorflow.checkpoint import TensorflowCheckpoint
    from paceline.train.tensorflow.config import prepare_dataset_shard
    from paceline.train.tensorflow.predictor import TensorflowPredictor
    from paceline.train.tensorflow.trainer import TensorflowTrainer

__all__ = [
    "TensorflowCheckpoint",
    "TensorflowConfig",
    "TensorflowPredictor",
    "TensorflowTrainer",
    "prepare_dataset_shard",
]

__getattr__ = make_lazy_getattr(
    __name__,
    {
        "paceline.train.tensorflow.checkpoint": ("TensorflowCheckpoint",),
        "paceline.train.tensorflow.config": ("prepare_dataset_shard",),
        "paceline.train.tensorflow.predictor": ("TensorflowPredictor",),
        "paceline.train.tensorflow.trainer": ("TensorflowTrainer",),
    },
    submodules=("keras",),
)
