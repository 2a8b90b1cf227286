"""Loggers of a run's metrics, beside its journal: files, TensorBoard, MLflow, Weights & Biases, Comet, Aim,
OpenTelemetry.

Pass them in `RunConfig(callbacks=[...])`. Each logger is imported on first access, and its dependencies when it is
constructed.
"""

from typing import TYPE_CHECKING

from paceline._core.lazy_imports import make_lazy_getattr

if TYPE_CHECKING:
    from paceline.train.callbacks import LoggedCheckpoint, LoggedReport, LoggedRun, LoggerCallback
    from paceline.train.loggers.aim import AimLoggerCallback
    from paceline.train.loggers.comet import CometLoggerCallback
    from paceline.train.loggers.mlflow import MLflowLoggerCallback, setup_mlflow
    from paceline.train.loggers.opentelemetry import OpenTelemetryCallback
    from paceline.train.loggers.report_files import CSVLoggerCallback, JsonLoggerCallback
    from paceline.train.loggers.tensorboard import TBXLoggerCallback, TensorBoardLoggerCallback
    from paceline.train.loggers.wandb import WandbLoggerCallback, setup_wandb

__all__ = [
    "AimLoggerCallback",
    "CSVLoggerCallback",
    "CometLoggerCallback",
    "JsonLoggerCallback",
    "LoggedCheckpoint",
    "LoggedReport",
    "LoggedRun",
    "LoggerCallback",
    "MLflowLoggerCallback",
    "OpenTelemetryCallback",
    "TBXLoggerCallback",
    "TensorBoardLoggerCallback",
    "WandbLoggerCallback",
    "setup_mlflow",
    "setup_wandb",
]

__getattr__ = make_lazy_getattr(
    __name__,
    {
        "paceline.train.callbacks": ("LoggedCheckpoint", "LoggedReport", "LoggedRun", "LoggerCallback"),
        "paceline.train.loggers.aim": ("AimLoggerCallback",),
        "paceline.train.loggers.comet": ("CometLoggerCallback",),
        "paceline.train.loggers.mlflow": ("MLflowLoggerCallback", "setup_mlflow"),
        "paceline.train.loggers.opentelemetry": ("OpenTelemetryCallback",),
        "paceline.train.loggers.report_files": ("CSVLoggerCallback", "JsonLoggerCallback"),
        "paceline.train.loggers.tensorboard": ("TBXLoggerCallback", "TensorBoardLoggerCallback"),
        "paceline.train.loggers.wandb": ("WandbLoggerCallback", "setup_wandb"),
    },
)
