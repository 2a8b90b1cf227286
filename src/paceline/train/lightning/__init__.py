"""Training with Lightning, inside the train function of a `TorchTrainer`.

Importing this module lets the process that workers fork from preload what Lightning needs. Neither `lightning` nor
torch is imported here. Each worker imports Lightning itself: Lightning records the rank on import, and it comes as two
packages, of which a worker should import only the one its script uses.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from paceline._core.lazy_imports import raise_missing
from paceline._engine.local.launchers import prewarm
from paceline.train.backend import is_installed, require
from paceline.train.lightning.strategy import prepare_trainer
from paceline.train.torch.config import TorchConfig

if TYPE_CHECKING:
    from paceline.train.lightning.lightning_classes import (
        PacelineDDPStrategy,
        PacelineDeepSpeedStrategy,
        PacelineFSDPStrategy,
        PacelineLightningEnvironment,
        RayDDPStrategy,
        RayDeepSpeedStrategy,
        RayFSDPStrategy,
        RayLightningEnvironment,
        RayTrainReportCallback,
        ReportCallback,
    )

__all__ = [
    "PacelineDDPStrategy",
    "PacelineDeepSpeedStrategy",
    "PacelineFSDPStrategy",
    "PacelineLightningEnvironment",
    "RayDDPStrategy",
    "RayDeepSpeedStrategy",
    "RayFSDPStrategy",
    "RayLightningEnvironment",
    "RayTrainReportCallback",
    "ReportCallback",
    "prepare_trainer",
]


def __getattr__(name: str) -> Any:
    # Not cached: which package they are for may become clear only when the train function imports it.
    if name not in __all__:
        raise_missing(__name__, name, __all__)
    return find_class(name)


def find_class(name: str) -> Any:
    """Return our class for the package that is imported; for `lightning` if both or none are."""
    package = "lightning"
    if not sys.modules.get("lightning.pytorch"):
        if sys.modules.get("pytorch_lightning") or (
            not is_installed("lightning") and is_installed("pytorch_lightning")
        ):
            package = "pytorch_lightning"
        else:
            require(f"{__name__}.{name}", ("lightning",), "lightning")
    return getattr(importlib.import_module(f"{__name__}.{package}_classes"), name)


prewarm(
    *TorchConfig.preload,
    "torch._dynamo",
    "torch.distributed.checkpoint",
    "torch.distributed.optim",
    "scipy.optimize",
    "scipy.signal",
    # It imports Transformers if installed, which reads variables that the script may set later.
    *(() if is_installed("transformers") else ("torchmetrics",)),
)
