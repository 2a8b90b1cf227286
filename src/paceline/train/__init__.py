"""The training API: trainers, configurations, and the functions that a train function calls.

Names are imported on first access, so workers import only what they use.
"""

from typing import TYPE_CHECKING

from paceline._core.errors import (
    CheckpointCorruptError,
    ControllerError,
    PacelineError,
    PreemptionError,
    RayTrainError,
    ReportMismatchError,
    RunExistsError,
    RunHeldError,
    SessionMisuseError,
    StorageError,
    TrainingFailedError,
    TrainingInterrupt,
    WorkerError,
    WorkerGroupError,
)
from paceline._core.lazy_imports import make_lazy_getattr

if TYPE_CHECKING:
    from paceline.train import collective
    from paceline.train.backend import Backend, BackendConfig
    from paceline.train.callbacks import LoggerCallback, TrainingCallback, TrainRunContext, UserCallback
    from paceline.train.checkpoint import Checkpoint
    from paceline.train.config import (
        CheckpointConfig,
        CheckpointStrategy,
        FailureConfig,
        LoggingConfig,
        RunConfig,
        ScalingConfig,
        SyncConfig,
    )
    from paceline.train.driver.datasets import TRAIN_DATASET_KEY, DataConfig
    from paceline.train.driver.validation import ValidationConfig, ValidationFn, ValidationTaskConfig
    from paceline.train.older.functions import load_checkpoint, local_rank, save_checkpoint, world_rank, world_size
    from paceline.train.older.trainer import Trainer
    from paceline.train.reductions import max as max
    from paceline.train.reductions import mean as mean
    from paceline.train.reductions import min as min
    from paceline.train.reductions import sum as sum
    from paceline.train.result import Result
    from paceline.train.resume_proof.proof import ResumeProof, verify_resume
    from paceline.train.session import (
        CheckpointConsistencyMode,
        CheckpointUploadMode,
        PreemptionInfo,
        ReportedCheckpoint,
        ReportedCheckpointStatus,
        TrainContext,
        get_all_reported_checkpoints,
        get_checkpoint,
        get_context,
        get_dataset_shard,
        get_preemption_info,
        report,
        staging_directory,
    )
    from paceline.train.trainer import BaseTrainer, DataParallelTrainer

__all__ = [
    "Backend",
    "BackendConfig",
    "BaseTrainer",
    "Checkpoint",
    "CheckpointConfig",
    "CheckpointConsistencyMode",
    "CheckpointCorruptError",
    "CheckpointStrategy",
    "CheckpointUploadMode",
    "ControllerError",
    "DataConfig",
    "DataParallelTrainer",
    "FailureConfig",
    "LoggerCallback",
    "LoggingConfig",
    "PacelineError",
    "PreemptionError",
    "PreemptionInfo",
    "RayTrainError",
    "ReportMismatchError",
    "ReportedCheckpoint",
    "ReportedCheckpointStatus",
    "Result",
    "ResumeProof",
    "RunConfig",
    "RunExistsError",
    "RunHeldError",
    "ScalingConfig",
    "SessionMisuseError",
    "StorageError",
    "SyncConfig",
    "TRAIN_DATASET_KEY",
    "TrainContext",
    "TrainRunContext",
    "Trainer",
    "TrainingCallback",
    "TrainingFailedError",
    "TrainingInterrupt",
    "UserCallback",
    "ValidationConfig",
    "ValidationFn",
    "ValidationTaskConfig",
    "WorkerError",
    "WorkerGroupError",
    "collective",
    "get_all_reported_checkpoints",
    "get_checkpoint",
    "get_context",
    "get_dataset_shard",
    "get_preemption_info",
    "load_checkpoint",
    "local_rank",
    "report",
    "save_checkpoint",
    "staging_directory",
    "verify_resume",
    "world_rank",
    "world_size",
]

__getattr__ = make_lazy_getattr(
    __name__,
    {
        "paceline.train.backend": ("Backend", "BackendConfig"),
        "paceline.train.callbacks": (
            "LoggerCallback",
            "TrainRunContext",
            "TrainingCallback",
            "UserCallback",
        ),
        "paceline.train.checkpoint": ("Checkpoint",),
        "paceline.train.config": (
            "CheckpointConfig",
            "CheckpointStrategy",
            "FailureConfig",
            "LoggingConfig",
            "RunConfig",
            "ScalingConfig",
            "SyncConfig",
        ),
        "paceline.train.driver.datasets": ("TRAIN_DATASET_KEY", "DataConfig"),
        "paceline.train.older.functions": (
            "load_checkpoint",
            "local_rank",
            "save_checkpoint",
            "world_rank",
            "world_size",
        ),
        "paceline.train.older.trainer": ("Trainer",),
        # Not in `__all__`: `from paceline.train import *` must leave Python's own `max`, `min` and `sum` alone.
        "paceline.train.reductions": ("max", "mean", "min", "sum"),
        "paceline.train.result": ("Result",),
        "paceline.train.resume_proof.proof": ("ResumeProof", "verify_resume"),
        "paceline.train.session": (
            "CheckpointConsistencyMode",
            "CheckpointUploadMode",
            "PreemptionInfo",
            "ReportedCheckpoint",
            "ReportedCheckpointStatus",
            "TrainContext",
            "get_all_reported_checkpoints",
            "get_checkpoint",
            "get_context",
            "get_dataset_shard",
            "get_preemption_info",
            "report",
            "staging_directory",
        ),
        "paceline.train.trainer": ("BaseTrainer", "DataParallelTrainer"),
        "paceline.train.driver.validation": (
            "ValidationConfig",
            "ValidationFn",
            "ValidationTaskConfig",
        ),
    },
    submodules=(
        "collective",
        "huggingface",
        "jax",
        "lightgbm",
        "lightning",
        "loggers",
        "tensorflow",
        "torch",
        "xgboost",
    ),
)
