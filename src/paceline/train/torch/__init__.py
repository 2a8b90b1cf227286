"""Training with PyTorch.

Importing this module starts the process that workers fork from, which imports torch in the background. torch itself is
not imported here.
"""

from typing import TYPE_CHECKING

from paceline._core.lazy_imports import make_lazy_getattr
from paceline._engine.local.launchers import prewarm
from paceline.train.torch.config import TorchConfig

if TYPE_CHECKING:
    from paceline.train.torch.acceleration import (
        accelerate,
        accumulate_gradients,
        backward,
        enable_reproducibility,
        get_device,
        get_devices,
        prepare_optimizer,
        unscale_gradients,
    )
    from paceline.train.torch.checkpoint import TorchCheckpoint
    from paceline.train.torch.loader import prepare_data_loader
    from paceline.train.torch.model import prepare_model
    from paceline.train.torch.predictor import TorchPredictor
    from paceline.train.torch.sharded import ShardedCheckpoint
    from paceline.train.torch.trainer import TorchTrainer

__all__ = [
    "ShardedCheckpoint",
    "TorchCheckpoint",
    "TorchConfig",
    "TorchPredictor",
    "TorchTrainer",
    "accelerate",
    "accumulate_gradients",
    "backward",
    "enable_reproducibility",
    "get_device",
    "get_devices",
    "prepare_data_loader",
    "prepare_model",
    "prepare_optimizer",
    "unscale_gradients",
]

__getattr__ = make_lazy_getattr(
    __name__,
    {
        "paceline.train.torch.acceleration": (
            "accelerate",
            "accumulate_gradients",
            "backward",
            "enable_reproducibility",
            "get_device",
            "get_devices",
            "prepare_optimizer",
            "unscale_gradients",
        ),
        "paceline.train.torch.checkpoint": ("TorchCheckpoint",),
        "paceline.train.torch.loader": ("prepare_data_loader",),
        "paceline.train.torch.model": ("prepare_model",),
        "paceline.train.torch.predictor": ("TorchPredictor",),
        "paceline.train.torch.sharded": ("ShardedCheckpoint",),
        "paceline.train.torch.trainer": ("TorchTrainer",),
    },
)

prewarm(*TorchConfig.preload)
