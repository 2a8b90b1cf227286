"""The fields of the public configurations and their defaults, frozen: a field is a decision, made here.

Fields stand in the order in which they may be given by position, where they may.
"""

import dataclasses
import importlib
from typing import Any

import pytest

RUN = """
    name=None storage_path=None failure_config=FailureConfig() checkpoint_config=CheckpointConfig() callbacks=()
    storage_filesystem=None engine=None worker_runtime_env=None detached=False on_stop='raise'
    if_exists=None fork_from=None record_source=True
    stop=None verbose=None progress_reporter=None log_to_file=False sync_config=None logging_config=None
"""
FAILURE = """
    max_failures=0 fail_fast=False max_preemption_failures=-1 controller_failure_limit=-1 hang_timeout_s=None
    hang_action='warn' preemption_grace_s=None relax_collectives_on_preemption=False
"""
CHECKPOINT = """
    num_to_keep=None checkpoint_score_attribute=None checkpoint_score_order='max' checkpoint_frequency=0
    checkpoint_at_end=None max_failed_saves=0 on_backlog='wait'
"""
FIELDS = {
    "paceline.train.ScalingConfig": """
        num_workers=1 use_gpu=False resources_per_worker=None placement_strategy='PACK' accelerator_type=None
        elastic_resize_monitor_interval_s=60.0 global_batch_size=None label_selector=None trainer_resources=None
        use_tpu=False topology=None
    """,
    "paceline.train.RunConfig": RUN,
    "paceline.train.FailureConfig": FAILURE,
    "paceline.train.CheckpointConfig": CHECKPOINT,
    "paceline.tune.config.RunConfig": RUN + " local_dir=None",
    "paceline.tune.config.FailureConfig": FAILURE,
    "paceline.train.LoggingConfig": "log_level='INFO'",
    "paceline.train.SyncConfig": """
        sync_period=300 sync_timeout=1800 sync_artifacts=False sync_artifacts_on_checkpoint=True
    """,
    "paceline.tune.config.CheckpointConfig": CHECKPOINT,
    "paceline.train.ValidationConfig": "fn task_config=ValidationTaskConfig() ray_remote_kwargs={}",
    "paceline.train.ValidationTaskConfig": "fn_kwargs={} timeout_s=None",
    "paceline.train.torch.TorchConfig": "backend=None init_method='env' timeout_s=1800",
    "paceline.train.lightgbm.LightGBMConfig": "tree_learner='data' timeout_s=1800 ports=(20000,32000)",
    "paceline.train.xgboost.XGBoostConfig": "xgboost_communicator='rabit' timeout_s=1800",
}


def _config(name: str) -> Any:
    # Not at the top: importing a framework's module starts warming up a process, which other tests do not need.
    module, _, cls = name.rpartition(".")
    return getattr(importlib.import_module(module), cls)


def describe(field: dataclasses.Field[Any]) -> str:
    default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    return field.name if default is dataclasses.MISSING else f"{field.name}={default!r}".replace(", ", ",")


@pytest.mark.parametrize("name", FIELDS)
def test_fields_and_defaults_are_those_we_decided_on(name: str) -> None:
    assert [describe(field) for field in dataclasses.fields(_config(name))] == FIELDS[name].split()
    assert _config(name).__dataclass_params__.frozen
