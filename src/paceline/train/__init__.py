"""What a training script imports.

from paceline.train import RunConfig, ScalingConfig, report
from paceline.train.torch import TorchTrainer
"""

from paceline._core.errors import (
    CheckpointCorruptError,
    ControllerError,
    PacelineError,
    ReportMismatchError,
    RunHeldError,
    StorageError,
    TrainingFailedError,
    WorkerError,
    WorkerGroupError,
)
from paceline.train import collective
from paceline.train.backend import BackendConfig
from paceline.train.callbacks import TrainRunContext, UserCallback
from paceline.train.checkpoint import Checkpoint
from paceline.train.config import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from paceline.train.result import Result
from paceline.train.session import (
    CheckpointConsistencyMode,
    CheckpointUploadMode,
    ReportedCheckpoint,
    ReportedCheckpointStatus,
    TrainContext,
    get_all_reported_checkpoints,
    get_checkpoint,
    get_context,
    report,
    staging_directory,
)
from paceline.train.trainer import DataParallelTrainer

__all__ = [
    "BackendConfig",
    "Checkpoint",
    "CheckpointConfig",
    "CheckpointConsistencyMode",
    "CheckpointCorruptError",
    "CheckpointUploadMode",
    "ControllerError",
    "DataParallelTrainer",
    "FailureConfig",
    "PacelineError",
    "ReportMismatchError",
    "ReportedCheckpoint",
    "ReportedCheckpointStatus",
    "Result",
    "RunConfig",
    "RunHeldError",
    "ScalingConfig",
    "StorageError",
    "TrainContext",
    "TrainRunContext",
    "TrainingFailedError",
    "UserCallback",
    "WorkerError",
    "WorkerGroupError",
    "collective",
    "get_all_reported_checkpoints",
    "get_checkpoint",
    "get_context",
    "report",
    "staging_directory",
]

# In a traceback or a repr, a class is called by the name that it is imported by.
for _name in __all__:
    if isinstance(_value := globals()[_name], type):
        _value.__module__ = "paceline.train"
del _name, _value
