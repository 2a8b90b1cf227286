"""The names that users import, frozen: adding or removing one is a decision, made here.

They are read in a process of its own, so that importing frameworks leaves these tests alone.
"""

import json
from collections.abc import Callable
from subprocess import CompletedProcess

import pytest

PUBLIC = {
    module: names.split()
    for module, names in {
        "paceline": "__version__ air data init is_initialized shutdown testing train tune",
        "paceline.train": """
            Backend BackendConfig BaseTrainer Checkpoint CheckpointConfig CheckpointConsistencyMode
            CheckpointCorruptError CheckpointStrategy CheckpointUploadMode ControllerError DataConfig
            DataParallelTrainer FailureConfig LoggerCallback LoggingConfig PacelineError PreemptionError
            PreemptionInfo RayTrainError ReportMismatchError ReportedCheckpoint ReportedCheckpointStatus Result
            ResumeProof RunConfig RunExistsError RunHeldError ScalingConfig SessionMisuseError StorageError SyncConfig
            TRAIN_DATASET_KEY TrainContext TrainRunContext Trainer TrainingCallback TrainingFailedError
            TrainingInterrupt UserCallback ValidationConfig ValidationFn ValidationTaskConfig WorkerError
            WorkerGroupError collective get_all_reported_checkpoints get_checkpoint get_context get_dataset_shard
            get_preemption_info load_checkpoint local_rank report save_checkpoint staging_directory verify_resume
            world_rank world_size
        """,
        "paceline.air": "Checkpoint CheckpointConfig FailureConfig Result RunConfig ScalingConfig config session",
        "paceline.air.config": "CheckpointConfig FailureConfig RunConfig ScalingConfig",
        "paceline.air.session": """
            get_checkpoint get_dataset_shard get_experiment_name get_local_rank get_local_world_size get_metadata
            get_node_rank get_trial_dir get_trial_id get_trial_name get_trial_resources get_world_rank get_world_size
            report
        """,
        "paceline.tune": """
            CLIReporter Callback Checkpoint CheckpointConfig Experiment ExperimentAnalysis FailureConfig
            JupyterNotebookReporter PlacementGroupFactory ProgressReporter Result ResultGrid ResumeConfig
            RunConfig Searcher Stopper SyncConfig Trainable Trial TrialScheduler TuneConfig TuneContext
            TuneError Tuner choice create_scheduler create_searcher get_checkpoint get_context grid_search lograndint
            loguniform qlograndint qloguniform qrandint qrandn quniform randint randn register_env
            register_trainable report run run_experiments sample_from uniform with_parameters with_resources
        """,
        "paceline.tune.logger": """
            CSVLoggerCallback JsonLoggerCallback LoggerCallback MLflowLoggerCallback TBXLoggerCallback
            WandbLoggerCallback
        """,
        "paceline.tune.analysis": "ExperimentAnalysis",
        "paceline.tune.experiment": "Experiment Trial list_experiments",
        "paceline.tune.integration.keras": "TuneReportCallback TuneReportCheckpointCallback",
        "paceline.tune.integration.lightning": "TuneCallback TuneReportCallback TuneReportCheckpointCallback",
        "paceline.tune.progress_reporter": "CLIReporter JupyterNotebookReporter ProgressReporter",
        "paceline.tune.registry": """
            get_env_creator get_trainable_cls is_function_trainable register_env register_input register_trainable
            registry_contains_input registry_get_input validate_trainable
        """,
        "paceline.tune.checks": "diagnose_serialization validate_save_restore wait_for_gpu",
        "paceline.tune.schedulers": """
            ASHAScheduler AsyncHyperBandScheduler FIFOScheduler HyperBandForBOHB HyperBandScheduler MedianStoppingRule
            PB2 PopulationBasedTraining PopulationBasedTrainingReplay ResourceChangingScheduler TrialScheduler
            create_scheduler
        """,
        "paceline.tune.search": """
            BasicVariantGenerator ConcurrencyLimiter Repeater Searcher create_searcher grid_search
        """,
        "paceline.tune.search.optuna": "OptunaSearch",
        "paceline.tune.stopper": """
            CombinedStopper ExperimentPlateauStopper FunctionStopper MaximumIterationStopper NoopStopper Stopper
            ThresholdStopper TimeoutStopper TrialPlateauStopper stopper_of
        """,
        "paceline.testing": "At DriverLost FakeClock FakeEngine FakeWorker Faults PHASES",
        "paceline.train.collective": "barrier broadcast_from_rank_zero gather",
        "paceline.train.loggers": """
            AimLoggerCallback CSVLoggerCallback CometLoggerCallback JsonLoggerCallback LoggedCheckpoint LoggedReport
            LoggedRun LoggerCallback MLflowLoggerCallback OpenTelemetryCallback TBXLoggerCallback
            TensorBoardLoggerCallback WandbLoggerCallback setup_mlflow setup_wandb
        """,
        "paceline.train.jax": "JaxConfig JaxPredictor JaxTrainer OrbaxCheckpoint",
        "paceline.train.huggingface.transformers": "RayTrainReportCallback ReportCallback prepare_trainer",
        "paceline.train.lightning": """
            PacelineDDPStrategy PacelineDeepSpeedStrategy PacelineFSDPStrategy PacelineLightningEnvironment
            RayDDPStrategy RayDeepSpeedStrategy RayFSDPStrategy RayLightningEnvironment RayTrainReportCallback
            ReportCallback prepare_trainer
        """,
        "paceline.train.tensorflow": """
            TensorflowCheckpoint TensorflowConfig TensorflowPredictor TensorflowTrainer prepare_dataset_shard
        """,
        "paceline.train.tensorflow.keras": "ReportCheckpointCallback",
        "paceline.train.torch": """
            ShardedCheckpoint TorchCheckpoint TorchConfig TorchPredictor TorchTrainer accelerate accumulate_gradients
            backward enable_reproducibility get_device get_devices prepare_data_loader prepare_model prepare_optimizer
            unscale_gradients
        """,
        "paceline.train.lightgbm": """
            LightGBMCheckpoint LightGBMConfig LightGBMPredictor LightGBMTrainer RayTrainReportCallback ReportCallback
            get_network_params normalize_pandas_for_lightgbm
        """,
        "paceline.train.xgboost": """
            RayTrainReportCallback ReportCallback XGBoostCheckpoint XGBoostConfig XGBoostPredictor XGBoostTrainer
        """,
    }.items()
}

NAMES = """
import importlib, json, sys

modules = {name: importlib.import_module(name) for name in sys.argv[2:]}
missing = [one for module in modules.values() for one in module.__all__ if sys.argv[1] and not hasattr(module, one)]
print(json.dumps([{name: sorted(module.__all__) for name, module in modules.items()}, missing]))
"""


@pytest.mark.parametrize("imports_all", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["listed", "imported"])
def test_public_names_are_those_we_decided_on(
    run_script: Callable[..., CompletedProcess[str]], imports_all: bool
) -> None:
    """To import all of them imports every framework, which takes long."""
    ended = run_script(NAMES, "all" if imports_all else "", *PUBLIC, env={"PACELINE_PREWARM": "0"})
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == [PUBLIC, []]
