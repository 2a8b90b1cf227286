"""The names that users import, frozen: adding or removing one is a decision, made here.

They are read in a process of its own, so that importing frameworks leaves these tests alone.
"""

import json
from collections.abc import Callable
from subprocess import CompletedProcess

PUBLIC = {
    "paceline": ["__version__", "air", "data", "init", "testing", "train"],
    "paceline.train": [
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
    ],
    "paceline.testing": ["At", "DriverLost", "FakeClock", "FakeEngine", "FakeWorker", "Faults", "PHASES"],
    "paceline.train.collective": ["barrier", "broadcast_from_rank_zero"],
    "paceline.train.tensorflow": [
        "TensorflowCheckpoint",
        "TensorflowConfig",
        "TensorflowPredictor",
        "TensorflowTrainer",
        "prepare_dataset_shard",
    ],
    "paceline.train.tensorflow.keras": ["ReportCheckpointCallback"],
    "paceline.train.torch": [
        "TorchCheckpoint",
        "TorchConfig",
        "TorchTrainer",
        "enable_reproducibility",
        "get_device",
        "get_devices",
        "prepare_data_loader",
        "prepare_model",
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
