"""Training with LightGBM.

Importing this module starts the process that workers fork from, which imports LightGBM in the background. LightGBM
itself is not imported here.
"""

from typing import TYPE_CHECKING

from paceline._core.lazy_imports import make_lazy_getattr
from paceline._engine.local.launchers import prewarm
from paceline.train.lightgbm.config import LightGBMConfig

if TYPE_CHECKING:
    from paceline.train.lightgbm.config import get_network_params
    from paceline.train.lightgbm.model import (
        LightGBMCheckpoint,
        LightGBMPredictor,
        RayTrainReportCallback,
        ReportCallback,
        normalize_pandas_for_lightgbm,
    )
    from paceline.train.lightgbm.trainer import LightGBMTrainer

__all__ = [
    "LightGBMCheckpoint",
    "LightGBMConfig",
    "LightGBMPredictor",
    "LightGBMTrainer",
    "RayTrainReportCallback",
    "ReportCallback",
    "get_network_params",
    "normalize_pandas_for_lightgbm",
]

__getattr__ = make_lazy_getattr(
    __name__,
    {
        "paceline.train.lightgbm.config": ("get_network_params",),
        "paceline.train.lightgbm.model": (
            "LightGBMCheckpoint",
            "LightGBMPredictor",
            "RayTrainReportCallback",
            "ReportCallback",
            "normalize_pandas_for_lightgbm",
        ),
        "paceline.train.lightgbm.trainer": ("LightGBMTrainer",),
    },
)

prewarm(*LightGBMConfig.preload)
