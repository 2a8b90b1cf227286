"""Training with XGBoost, which is not imported here."""

from typing import TYPE_CHECKING

from paceline._core.lazy_imports import make_lazy_getattr
from paceline.train.xgboost.config import XGBoostConfig

if TYPE_CHECKING:
    from paceline.train.xgboost.model import RayTrainReportCallback, ReportCallback, XGBoostCheckpoint, XGBoostPredictor
    from paceline.train.xgboost.trainer import XGBoostTrainer

__all__ = [
    "RayTrainReportCallback",
    "ReportCallback",
    "XGBoostCheckpoint",
    "XGBoostConfig",
    "XGBoostPredictor",
    "XGBoostTrainer",
]

__getattr__ = make_lazy_getattr(
    __name__,
    {
        "paceline.train.xgboost.model": (
            "XGBoostCheckpoint",
            "XGBoostPredictor",
            "RayTrainReportCallback",
            "ReportCallback",
        ),
        "paceline.train.xgboost.trainer": ("XGBoostTrainer",),
    },
)
