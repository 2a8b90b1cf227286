"""Training with PyTorch.

To import this starts to warm up the process that workers fork from; torch itself it does not import here.
"""

from paceline._engine.local.launch import prewarm
from paceline.train.torch.config import TorchConfig

# First of all: from here on torch is being imported for the workers, while the script goes on importing.
prewarm(*TorchConfig.preload)

from paceline.train.torch.trainer import TorchTrainer  # noqa: E402

__all__ = ["TorchConfig", "TorchTrainer"]
