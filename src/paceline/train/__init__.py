"""What a training script imports: trainers, configurations, and what a train function calls.

Each name is loaded when it is first asked for, so that workers load only what they use.
"""

from typing import TYPE_CHECKING

from paceline._core.lazy import on_demand

if TYPE_CHECKING:
    from paceline._core.errors import (
        CheckpointCorruptError,
        ControllerError,
        PacelineError,
        PreemptionError,
        ReportMismatchError,
        RunHeldError,
        StorageError,
        TrainingFailedError,
        WorkerError,
        WorkerGroupError,
    )
    from paceline.train import collective
    from paceline.train.backend import Backend, BackendConfig
    from paceline.train.callbacks import TrainRunContext, UserCallback
    from paceline.train.checkpoint import Checkpoint
    from paceline.train.config import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
    from paceline.train.datasets import DataConfig
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
    from paceline.train.trainer import DataParallelTrainer
    from paceline.train.validation import ValidationConfig, ValidationFn, ValidationTaskConfig

__all__ = [
    "Backend",
    "BackendConfig",
    "Checkpoint",
    "CheckpointConfig",
    "CheckpointConsistencyMode",
    "CheckpointCorruptError",
    "CheckpointUploadMode",
    "ControllerError",
    "DataConfig",
    "DataParallelTrainer",
    "FailureConfig",
    "PacelineError",
    "PreemptionError",
    "PreemptionInfo",
    "ReportMismatchError",
    "ReportedCheckpoint",
    "ReportedCheckpointStatus",
    "Result",
    "ResumeProof",
    "RunConfig",
    "RunHeldError",
    "ScalingConfig",
    "StorageError",
    "TrainContext",
    "TrainRunContext",
    "TrainingFailedError",
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
    "report",
    "staging_directory",
    "verify_resume",
]

__getattr__ = on_demand(
    __name__,
    {
        "paceline._core.errors": (
            "CheckpointCorruptError",
            "ControllerError",
            "PacelineError",
            "PreemptionError",
            "ReportMismatchError",
            "RunHeldError",
            "StorageError",
            "TrainingFailedError",
            "WorkerError",
            "WorkerGroupError",
        ),
        "paceline.train.backend": ("Backend", "BackendConfig"),
        "paceline.train.callbacks": (
            "TrainRunContext",
            "UserCallback",
        ),
        "paceline.train.checkpoint": ("Checkpoint",),
        "paceline.train.config": (
            "CheckpointConfig",
            "FailureConfig",
            "RunConfig",
            "ScalingConfig",
        ),
        "paceline.train.datasets": ("DataConfig",),
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
        "paceline.train.trainer": ("DataParallelTrainer",),
        "paceline.train.validation": (
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
        "tensorflow",
        "torch",
        "xgboost",
    ),
)
