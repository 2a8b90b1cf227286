"""The names that users import, frozen: adding or removing one is a decision, made here.

They are read in a process of its own, so that importing frameworks leaves these tests alone.
"""

import json
from collections.abc import Callable
from subprocess import CompletedProcess

PUBLIC = {
    "paceline": ["__version__", "air", "data", "init", "is_initialized", "shutdown", "testing", "train"],
    "paceline.train": [
        "Backend",
        "BackendConfig",
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
        "Trainer",
        "TrainingCallback",
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
        "load_checkpoint",
        "local_rank",
        "report",
        "save_checkpoint",
        "staging_directory",
        "verify_resume",
        "world_rank",
        "world_size",
    ],
    "paceline.air": [
        "Checkpoint",
        "CheckpointConfig",
        "FailureConfig",
        "Result",
        "RunConfig",
        "ScalingConfig",
        "config",
        "session",
    ],
    "paceline.air.config": ["CheckpointConfig", "FailureConfig", "RunConfig", "ScalingConfig"],
    "paceline.air.session": [
        "get_checkpoint",
        "get_dataset_shard",
        "get_experiment_name",
        "get_local_rank",
        "get_local_world_size",
        "get_node_rank",
        "get_trial_dir",
        "get_trial_id",
        "get_trial_name",
        "get_trial_resources",
        "get_world_rank",
        "get_world_size",
        "report",
    ],
    "paceline.testing": ["At", "DriverLost", "FakeClock", "FakeEngine", "FakeWorker", "Faults", "PHASES"],
    "paceline.train.collective": ["barrier", "broadcast_from_rank_zero", "gather"],
    "paceline.train.loggers": [
        "CSVLoggerCallback",
        "JsonLoggerCallback",
        "LoggedReport",
        "LoggedRun",
        "LoggerCallback",
        "MLflowLoggerCallback",
        "TBXLoggerCallback",
        "TensorBoardLoggerCallback",
        "WandbLoggerCallback",
    ],
    "paceline.train.jax": ["JaxConfig", "JaxPredictor", "JaxTrainer", "OrbaxCheckpoint"],
    "paceline.train.huggingface.transformers": ["RayTrainReportCallback", "ReportCallback", "prepare_trainer"],
    "paceline.train.lightning": [
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
    ],
    "paceline.train.tensorflow": [
        "TensorflowCheckpoint",
        "TensorflowConfig",
        "TensorflowPredictor",
        "TensorflowTrainer",
        "prepare_dataset_shard",
    ],
    "paceline.train.tensorflow.keras": ["ReportCheckpointCallback"],
    "paceline.train.torch": [
        "ShardedCheckpoint",
        "TorchCheckpoint",
        "TorchConfig",
        "TorchPredictor",
        "TorchTrainer",
        "accelerate",
        "accumulate_gradients",
        "backward",
        "enable_reproducibility",
        "get_device",
        "get_devices",
        "prepare_data_loader",
        "prepare_model",
        "prepare_optimizer",
        "unscale_gradients",
    ],
    "paceline.train.lightgbm": [
        "LightGBMCheckpoint",
        "LightGBMConfig",
        "LightGBMPredictor",
        "LightGBMTrainer",
        "RayTrainReportCallback",
        "ReportCallback",
        "get_network_params",
    ],
    "paceline.train.xgboost": [
        "RayTrainReportCallback",
        "ReportCallback",
        "XGBoostCheckpoint",
        "XGBoostConfig",
        "XGBoostPredictor",
        "XGBoostTrainer",
    ],
}

NAMES = """
import importlib
import json
import sys

found = {}
for name in sys.argv[1:]:
    module = importlib.import_module(name)
    missing = [public for public in module.__all__ if not hasattr(module, public)]
    found[name] = [sorted(module.__all__), missing]
print(json.dumps(found))
"""


def test_public_names_are_those_we_decided_on(
    run_script: Callable[..., CompletedProcess[str]],
) -> None:
    ended = run_script(NAMES, *PUBLIC, env={"PACELINE_PREWARM": "0"})
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert {module: names for module, (names, _) in found.items()} == PUBLIC
    assert {module: missing for module, (_, missing) in found.items() if missing} == {}
