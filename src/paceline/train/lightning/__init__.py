"""Training with Lightning, inside a train function of a `TorchTrainer`.

To import this lets the process that workers fork from import what Lightning needs, while the script goes on importing.
Neither `lightning` nor torch is imported here. Lightning itself is left to each worker: it takes note of the rank when
it is imported, and comes in two packages of which a worker should have only the one that its script uses.
"""

import importlib
from typing import TYPE_CHECKING, Any

from paceline._engine.local.launch import prewarm
from paceline.train.backend import is_installed
from paceline.train.lightning.packages import home_of_classes
from paceline.train.lightning.prepare import prepare_trainer
from paceline.train.torch.config import TorchConfig

if TYPE_CHECKING:
    from paceline.train.lightning.of_lightning import (
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
    # Not kept here: which package they are for may be clear only later, when the train function has imported it.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(home_of_classes(name)), name)


prewarm(
    *TorchConfig.preload,
    "torch._dynamo",
    "torch.distributed.checkpoint",
    "torch.distributed.optim",
    "scipy.optimize",
    "scipy.signal",
    # It imports Transformers where that is installed, which reads variables that the script may set later.
    *(() if is_installed("transformers") else ("torchmetrics",)),
)
