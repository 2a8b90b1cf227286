"""Loggers of a run's metrics, beside its journal: files, TensorBoard, MLflow, Weights & Biases, OpenTelemetry.

Pass them in `RunConfig(callbacks=[...])`. Each logger is imported on first access, and its dependencies when it is
constructed.
"""

from typing import TYPE_CHECKING

from paceline._core.lazy_imports import make_lazy_getattr

if TYPE_CHECKING:
    from paceline.train.callbacks import LoggedCheckpoint, LoggedReport, LoggedRun, LoggerCallback
    from paceline.train.loggers.mlflow import MLflowLoggerCallback
    from paceline.train.loggers.opentelemetry import OpenTelemetryCallback
    from paceline.train.loggers.report_files import CSVLoggerCallback, JsonLoggerCallback
    from paceline.train.loggers.tensorboard import TBXLoggerCallback, TensorBoardLoggerCallback
    from paceline.train.loggers.wandb import WandbLoggerCallback

__all__ = [
    "CSVLoggerCallback",
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
]

__getattr__ = make_lazy_getattr(
    __name__,
    {
        "paceline.train.callbacks": ("LoggedCheckpoint", "LoggedReport", "LoggedRun", "LoggerCallback"),
        "paceline.train.loggers.mlflow": ("MLflowLoggerCallback",),
        "paceline.train.loggers.opentelemetry": ("OpenTelemetryCallback",),
        "paceline.train.loggers.report_files": ("CSVLoggerCallback", "JsonLoggerCallback"),
        "paceline.train.loggers.tensorboard": ("TBXLoggerCallback", "TensorBoardLoggerCallback"),
        "paceline.train.loggers.wandb": ("WandbLoggerCallback",),
    },
)
