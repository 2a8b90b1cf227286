"""Training with PyTorch.

Importing this starts to warm up the process that workers fork from; torch itself it does not import.
"""

from paceline._engine.local.launch import prewarm
from paceline.train.torch.config import TorchConfig

# First of all: from here on torch is being imported for the workers, while the script goes on importing.
prewarm(*TorchConfig.preload)

from paceline.train.torch.checkpoint import TorchCheckpoint  # noqa: E402
from paceline.train.torch.devices import get_device, get_devices  # noqa: E402
from paceline.train.torch.loader import prepare_data_loader  # noqa: E402
from paceline.train.torch.model import prepare_model  # noqa: E402
from paceline.train.torch.reproducibility import enable_reproducibility  # noqa: E402
from paceline.train.torch.trainer import TorchTrainer  # noqa: E402

__all__ = [
    "TorchCheckpoint",
    "TorchConfig",
    "TorchTrainer",
    "enable_reproducibility",
    "get_device",
    "get_devices",
    "prepare_data_loader",
    "prepare_model",
]
