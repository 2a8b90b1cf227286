"""Bad input is refused at once, naming the argument, the value and what is allowed. No process starts."""

import os

import psutil
import pytest

from paceline import train, tune
from paceline.data import ExecutionOptions, ExecutionResources
from paceline.data import range as range_
from paceline.train import (
    CheckpointConfig,
    DataConfig,
    DataParallelTrainer,
    FailureConfig,
    RunConfig,
    ScalingConfig,
    ValidationConfig,
)
from paceline.train.driver.datasets import build_dataset_spec
from paceline.train.driver.execution_target import LocalTarget
from paceline.train.jax import JaxConfig
from paceline.train.lightgbm import LightGBMConfig
from paceline.train.placement_group import PlacementGroupFactory
from paceline.train.torch import TorchConfig, TorchTrainer
from paceline.train.xgboost import XGBoostConfig


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: ScalingConfig(-1), "num_workers must be a non-negative integer or a range such as"),
        (lambda: ScalingConfig(True), "num_workers must be a non-negative integer or a range"),
        (lambda: ScalingConfig((2, 1)), r"num_workers must be .*, got \(2, 1\)"),
        (
            lambda: ScalingConfig(elastic_resize_monitor_interval_s=-1),
            "interval_s must be a non-negative number, got -1",
        ),
        (lambda: ScalingConfig(global_batch_size=0), "global_batch_size must be a positive integer or None, got 0"),
        (lambda: ScalingConfig(3, global_batch_size=8), "global_batch_size must be a multiple of num_workers=3, got 8"),
        (lambda: ScalingConfig(placement_strategy="TIGHT"), "'SPREAD', 'STRICT_PACK' or 'STRICT_SPREAD', got 'TIGHT'"),
        (lambda: ScalingConfig(resources_per_worker={"GPU": 1}), "`use_gpu` is False but `GPU` was found in"),
        (lambda: ScalingConfig(use_gpu=True, resources_per_worker={"GPU": 0}), "remove one of them"),
        (lambda: ScalingConfig(use_gpu=True, resources_per_worker={"GPU": 1.5}), "below 1 or an integer, got 1.5"),
        (lambda: ScalingConfig(resources_per_worker={"special": 1e-5}), "must be 0 or at least 0.0001, got 1e-05"),
        (lambda: ScalingConfig(resources_per_worker={"object_store_memory": 9}), "cannot be reserved: workers share"),
        (lambda: ScalingConfig(label_selector={"zone": "a b"}), "the condition of label 'zone' must be 'a', '!a'"),
        (lambda: ScalingConfig(2, label_selector=[{"a": "b"}]), "label_selector has 1 dicts for num_workers=2"),
        (lambda: ScalingConfig((1, 2), label_selector=[{}, {}]), r"for num_workers=\(1, 2\): pass one dict per worker"),
        (lambda: CheckpointConfig(num_to_keep=0), "num_to_keep must be a positive integer or None, got 0"),
        (lambda: CheckpointConfig(checkpoint_score_order="best"), "must be 'max' or 'min'"),
        (lambda: FailureConfig(-2), "max_failures must be a non-negative integer, or -1 for no limit, got -2"),
        (lambda: FailureConfig(hang_timeout_s=0), "hang_timeout_s must be a positive number or None, got 0"),
        (lambda: FailureConfig(hang_action="kill"), "hang_action must be 'warn', 'restart' or 'fail', got 'kill'"),
        (lambda: RunConfig(name="a/b"), "name must be a valid directory name, got 'a/b'"),
        (lambda: RunConfig(storage_path="/x", storage_filesystem=3), "filesystem must be a pyarrow.fs.FileSystem"),
        (lambda: CheckpointConfig(max_failed_saves=-1), "max_failed_saves must be a non-negative integer or None"),
        (lambda: RunConfig(stop={"loss": "low"}), r"stop\['loss'\] must be a number to reach, got 'low'"),
        (lambda: RunConfig(log_to_file="../out"), "log_to_file must be True, False, the name of a file"),
        (lambda: train.LoggingConfig("loud"), "log_level must be 'DEBUG', 'INFO'"),
        (lambda: ScalingConfig(use_tpu=True), "workers on TPUs are not supported"),
        (lambda: FailureConfig(relax_collectives_on_preemption=True), "all ranks stop at the same report"),
        (lambda: FailureConfig(1, fail_fast=True), "contradict each other"),
        (lambda: DataParallelTrainer(print, metadata={"a": print}), "metadata must be a dict of JSON values: Object"),
        (lambda: RunConfig(callbacks=[print]), "must be a UserCallback, TrainingCallback"),
        (lambda: TorchConfig(init_method="file"), "init_method must be 'env' or 'tcp', got 'file'"),
        (lambda: TorchConfig(timeout_s=0), "timeout_s must be a positive number, got 0"),
        (lambda: ValidationConfig(print, ray_remote_kwargs={"memory": 1}), r"\['memory'\]; the options are num_cpus"),
        (lambda: ValidationConfig(print, ray_remote_kwargs={"num_gpus": 1.5}), "below 1 or an integer, got 1.5"),
        (lambda: ValidationConfig(print, ray_remote_kwargs={"max_retries": -2}), "or -1 for no limit"),
        (lambda: ValidationConfig(print, ray_remote_kwargs={"retry_exceptions": 3}), "must be True, False or a list"),
        (lambda: train.ValidationTaskConfig(timeout_s=float("nan")), "must be a positive number or None, got nan"),
        (lambda: JaxConfig(platform="abacus"), "must be 'cpu', 'cuda', 'rocm', 'tpu' or None, got 'abacus'"),
        (lambda: JaxConfig(initialization_timeout_s=0), "initialization_timeout_s must be a positive integer, got 0"),
        (lambda: JaxConfig(heartbeat_timeout_s=True), "heartbeat_timeout_s must be a positive integer, got True"),
        (lambda: XGBoostConfig(xgboost_communicator="federated"), "communicator must be 'rabit', got 'federated'"),
        (lambda: XGBoostConfig(timeout_s=-1), "timeout_s must be a positive number, got -1"),
        (lambda: LightGBMConfig(tree_learner="feature"), "tree_learner must be 'data' or 'voting', got 'feature'"),
        (lambda: LightGBMConfig(timeout_s=0), "timeout_s must be a positive number, got 0"),
        (lambda: LightGBMConfig(ports=(1, 70000)), r"ports must be .*, got \(1, 70000\)"),
        (lambda: DataParallelTrainer(print, validation_config=print), "Invalid `ValidationConfig` type"),
        (lambda: DataParallelTrainer(3), "train_loop_per_worker must be a function, got 3"),
        (lambda: DataParallelTrainer(lambda a, b: None), "got a function with 2 arguments: a, b"),
        (
            lambda: DataParallelTrainer(lambda c: None, train_loop_config=[1]),
            r"_config must be a dict or None, got \[1\]",
        ),
        (lambda: DataParallelTrainer(print, scaling_config=4), "Invalid `ScalingConfig` type"),
        (lambda: DataParallelTrainer(print, backend_config="torch"), "must be a paceline.train.BackendConfig, got"),
        (lambda: DataParallelTrainer(print, resume_from_checkpoint="x"), "must be a paceline.train.Checkpoint"),
    ],
)
def test_a_wrong_argument_is_refused_where_it_is_given(make, told):
    with pytest.raises(ValueError, match=told):
        make()


def test_an_unknown_argument_is_refused_with_those_that_exist():
    told = r"ScalingConfig\(\) has no argument 'num_worker'; it has num_workers, use_gpu, resources_per_worker"
    with pytest.raises(TypeError, match=told):
        ScalingConfig(num_worker=2)
    with pytest.raises(TypeError, match=told):
        DataParallelTrainer(print, scaling_config={"num_worker": 2})


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"progress_reporter": tune.CLIReporter()}, "is for a search: a single run has no table of trials"),
        ({"checkpoint_config": CheckpointConfig(checkpoint_frequency=2)}, "the train function decides when"),
        ({"checkpoint_config": CheckpointConfig(checkpoint_at_end=True)}, "the train function decides when"),
    ],
)
def test_what_only_a_search_or_a_trainer_of_its_own_does_is_refused_before_the_run(tmp_path, options, told):
    with pytest.raises(ValueError, match=told):
        DataParallelTrainer(print, run_config=RunConfig(storage_path=tmp_path, **options)).fit()
    assert not list(tmp_path.iterdir())


def test_variables_of_the_workers_are_set_and_the_rest_of_an_environment_needs_a_cluster(tmp_path, monkeypatch):
    monkeypatch.setenv("GIVEN_TO_ALL", "driver")

    def fit(environment, num_workers=1):
        run_config = RunConfig(storage_path=tmp_path, worker_runtime_env=environment)
        return DataParallelTrainer(
            lambda: os.environ["GIVEN_TO_ALL"], scaling_config=ScalingConfig(num_workers), run_config=run_config
        ).fit()

    assert fit({"env_vars": {"GIVEN_TO_ALL": "worker"}}).return_value == "worker"
    assert os.environ["GIVEN_TO_ALL"] == "driver"
    with pytest.raises(ValueError, match=r"worker_runtime_env=\.\.\.\) with pip needs a cluster"):
        fit({"pip": ["x"], "env_vars": {}})
    with pytest.raises(ValueError, match="num_workers=0 runs in this process"):
        fit({"env_vars": {"A": "1"}}, num_workers=0)
    with pytest.raises(ValueError, match="env_vars of worker_runtime_env must be a dict of strings"):
        fit({"env_vars": {"A": 1}})


def test_options_without_effect_are_taken_and_pointed_out(caplog):
    with pytest.warns(UserWarning, match="trainer_resources={'CPU': 2} has no effect here"):
        ScalingConfig(trainer_resources={"CPU": 2})
    with pytest.warns(UserWarning, match=r"train_loop_config has no effect here: <lambda>\(\) takes no argument"):
        trainer = DataParallelTrainer(lambda: None, train_loop_config={"a": 1})
    assert trainer.trainer_arguments.loop_config is None
    scaling = ScalingConfig(1, accelerator_type="A100", resources_per_worker={"CPU": 1, "special": 1})
    for _ in range(2):
        LocalTarget(scaling, RunConfig()).check()
    assert [record.message.split(": ")[1].split("=")[0] for record in caplog.records] == ["special", "accelerator_type"]


def test_a_scaling_config_becomes_bundles_and_comes_back():
    scaling = ScalingConfig(2, use_gpu=True, resources_per_worker={"CPU": 3}, placement_strategy="SPREAD")
    bundles = scaling.as_placement_group_factory()
    assert bundles == PlacementGroupFactory([{"CPU": 3, "GPU": 1}] * 2, "SPREAD")
    back = ScalingConfig.from_placement_group_factory(PlacementGroupFactory([{}, *bundles.bundles], "SPREAD"))
    assert (back.num_workers, back.num_gpus_per_worker, back.num_cpus_per_worker) == (2, 1, 3)
    assert (back.placement_strategy, back.num_tpus_per_worker) == ("SPREAD", 0)


def test_the_options_of_several_datasets_add_up():
    def merge(**limits):
        options = {name: ExecutionOptions(ExecutionResources(cpu=cpu)) for name, cpu in limits.items()}
        return build_dataset_spec({"a": range_(3), "b": range_(3)}, DataConfig(execution_options=options)).options

    assert merge(a=1, b=2).resource_limits.cpu == 3
    assert merge(a=1) is None, "no limit for b"
    with pytest.raises(ValueError, match="unknown dataset 'c' in execution_options; the datasets are 'a', 'b'"):
        merge(c=1)


def test_more_gpus_than_exist_is_an_error_before_any_process_starts(monkeypatch, tmp_path):
    monkeypatch.setattr("paceline._engine.local.devices.count_gpus", lambda: 1)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    before = psutil.Process().children(recursive=True)
    trainer = TorchTrainer(
        lambda: None, scaling_config=ScalingConfig(4, use_gpu=True), run_config=RunConfig(storage_path=tmp_path)
    )
    message = r"(?s)requests 4 GPU\(s\) \(4 workers x 1\), but this machine has 1 GPU\(s\).*\n\nhint: lower num_workers"
    with pytest.raises(ValueError, match=message):
        trainer.fit()
    assert psutil.Process().children(recursive=True) == before
    assert list(tmp_path.iterdir()) == []


def test_configs_may_be_dicts_and_four_means_four_workers():
    trainer = DataParallelTrainer(
        print, scaling_config={"num_workers": 4}, run_config={"name": "x", "failure_config": {"max_failures": 2}}
    )
    assert trainer.scaling_config == ScalingConfig(4)
    assert trainer.run_config.failure_config == FailureConfig(2)


def test_only_numbers_of_workers_that_divide_the_global_batch_are_used():
    assert ScalingConfig((1, 8), global_batch_size=12).sizes == (1, 2, 3, 4, 6)
    assert ScalingConfig((2, 3)).sizes == (2, 3)
    for num_workers, expected in (((2, 3), (True, 2, 3)), (4, (False, 4, 4))):
        config = ScalingConfig(num_workers)
        assert (config.elasticity_enabled, config.min_workers, config.max_workers) == expected


def test_the_resources_add_up():
    assert ScalingConfig((2, 3)).total_resources == ScalingConfig(3).total_resources == {"CPU": 3.0}
    assert ScalingConfig(2, use_gpu=True).total_resources == {"GPU": 2.0}
    config = ScalingConfig(2, use_gpu=True, resources_per_worker={"CPU": 4, "GPU": 0.5, "special": 1})
    assert config.total_resources == {"CPU": 8.0, "GPU": 1.0, "special": 2.0}
    assert config.additional_resources_per_worker == {"special": 1.0}


def test_making_configs_and_trainers_touches_no_storage(tmp_path):
    path = tmp_path / "not yet"
    DataParallelTrainer(print, run_config=RunConfig(storage_path=path, callbacks=[train.UserCallback()]))
    assert not path.exists()
