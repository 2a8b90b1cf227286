"""Bad input is refused at once, naming the argument, the value and what is allowed. No process starts."""

import psutil
import pytest

from paceline.train import CheckpointConfig, DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig, UserCallback
from paceline.train.torch import TorchConfig, TorchTrainer


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
        (lambda: FailureConfig(controller_failure_limit="x"), "controller_failure_limit must be .*, got 'x'"),
        (lambda: ScalingConfig(use_gpu="yes"), "use_gpu must be True or False, got 'yes'"),
        (lambda: ScalingConfig(placement_strategy="TIGHT"), "'SPREAD', 'STRICT_PACK' or 'STRICT_SPREAD', got 'TIGHT'"),
        (lambda: ScalingConfig(resources_per_worker={"GPU": 1}), "`use_gpu` is False but `GPU` was found in"),
        (lambda: ScalingConfig(use_gpu=True, resources_per_worker={"GPU": 0}), "remove one of them"),
        (lambda: ScalingConfig(use_gpu=True, resources_per_worker={"GPU": 1.5}), "below 1 or an integer, got 1.5"),
        (lambda: ScalingConfig(resources_per_worker={"special": 1e-5}), "must be 0 or at least 0.0001, got 1e-05"),
        (lambda: ScalingConfig(resources_per_worker={"object_store_memory": 9}), "cannot be reserved: workers share"),
        (lambda: ScalingConfig(label_selector="a"), "label_selector must be a dict of labels"),
        (lambda: ScalingConfig(label_selector={"zone": "a b"}), "the condition of label 'zone' must be 'a', '!a'"),
        (lambda: ScalingConfig(2, label_selector=[{"a": "b"}]), "label_selector has 1 dicts for num_workers=2"),
        (lambda: ScalingConfig((1, 2), label_selector=[{}, {}]), r"for num_workers=\(1, 2\): pass one dict per worker"),
        (lambda: CheckpointConfig(num_to_keep=0), "num_to_keep must be a positive integer or None, got 0"),
        (lambda: CheckpointConfig(checkpoint_score_order="best"), "must be 'max' or 'min'"),
        (lambda: CheckpointConfig(checkpoint_score_attribute=3), "must be the name of a metric or None, got 3"),
        (lambda: FailureConfig(-2), "max_failures must be a non-negative integer, or -1 for no limit, got -2"),
        (lambda: FailureConfig(hang_timeout_s=0), "hang_timeout_s must be a positive number or None, got 0"),
        (lambda: FailureConfig(hang_action="kill"), "hang_action must be 'warn', 'restart' or 'fail', got 'kill'"),
        (lambda: RunConfig(name="a/b"), "name must be a valid directory name, got 'a/b'"),
        (lambda: RunConfig(storage_path=3), "storage_path must be a path, got 3"),
        (lambda: RunConfig(storage_path="/x", storage_filesystem=3), "filesystem must be a pyarrow.fs.FileSystem"),
        (lambda: CheckpointConfig(max_failed_saves=-1), "max_failed_saves must be a non-negative integer or None"),
        (lambda: RunConfig(storage_filesystem=3), "storage_filesystem needs a storage_path"),
        (lambda: RunConfig(callbacks=[print]), "must be a UserCallback, TrainingCallback"),
        (lambda: TorchConfig(init_method="file"), "init_method must be 'env' or 'tcp', got 'file'"),
        (lambda: TorchConfig(timeout_s=0), "timeout_s must be a positive number, got 0"),
        (lambda: DataParallelTrainer(3), "train_loop_per_worker must be a function, got 3"),
        (lambda: DataParallelTrainer(lambda a, b: None), "got a function with 2 arguments: a, b"),
        (
            lambda: DataParallelTrainer(lambda: None, train_loop_config={"a": 1}),
            "a train_loop_per_worker that takes it",
        ),
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
    ("kind", "argument"),
    [
        (ScalingConfig, "trainer_resources"),
        (CheckpointConfig, "checkpoint_frequency"),
        (FailureConfig, "fail_fast"),
        (RunConfig, "stop"),
    ],
)
def test_arguments_that_ray_train_removed_say_what_to_do_instead(kind, argument):
    with pytest.raises(DeprecationWarning, match=f"{kind.__name__} no longer has the argument '{argument}': "):
        kind(**{argument: 1})


def test_more_gpus_than_exist_is_an_error_before_any_process_starts(monkeypatch, tmp_path):
    monkeypatch.setattr("paceline._engine.local.devices._num_gpus", lambda: 1)
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


def test_the_resources_add_up():
    assert ScalingConfig(3).total_resources == {"CPU": 3.0}
    assert ScalingConfig(2, use_gpu=True).total_resources == {"GPU": 2.0}
    config = ScalingConfig(2, use_gpu=True, resources_per_worker={"CPU": 4, "GPU": 0.5, "special": 1})
    assert config.total_resources == {"CPU": 8.0, "GPU": 1.0, "special": 2.0}
    assert config.additional_resources_per_worker == {"special": 1.0}


def test_making_configs_and_trainers_touches_no_storage(tmp_path):
    path = tmp_path / "not yet"
    DataParallelTrainer(print, run_config=RunConfig(storage_path=path, callbacks=[UserCallback()]))
    assert not path.exists()
