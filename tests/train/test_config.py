"""Bad input is refused at once, naming the argument, the value and what is allowed. No process starts."""

import psutil
import pytest

from paceline.train import CheckpointConfig, DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig, UserCallback
from paceline.train.torch import TorchConfig, TorchTrainer


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: ScalingConfig(-1), "num_workers=-1 is negative"),
        (lambda: ScalingConfig(True), "num_workers=True is neither a whole number of workers nor"),
        (lambda: ScalingConfig((2, 1)), r"num_workers=\(2, 1\) is not the fewest and the most"),
        (lambda: ScalingConfig(elastic_resize_monitor_interval_s=-1), "elastic_resize_monitor_interval_s=-1 is not"),
        (lambda: ScalingConfig(global_batch_size=0), "global_batch_size=0 is not a whole number of 1 or more"),
        (lambda: ScalingConfig(3, global_batch_size=8), "global_batch_size=8 cannot be divided among num_workers=3"),
        (lambda: FailureConfig(controller_failure_limit="x"), "controller_failure_limit='x' is not 0 or more"),
        (lambda: ScalingConfig(use_gpu="yes"), "use_gpu='yes' is not True or False"),
        (lambda: ScalingConfig(placement_strategy="TIGHT"), "is not one of PACK, SPREAD, STRICT_PACK, STRICT_SPREAD"),
        (lambda: ScalingConfig(resources_per_worker={"GPU": 1}), "`use_gpu` is False but `GPU` was found in"),
        (lambda: ScalingConfig(use_gpu=True, resources_per_worker={"GPU": 0}), "drop one of the two"),
        (lambda: ScalingConfig(use_gpu=True, resources_per_worker={"GPU": 1.5}), "neither below 1 nor a whole number"),
        (lambda: ScalingConfig(resources_per_worker={"special": 1e-5}), "=1e-05 is too little: the least amount is"),
        (lambda: ScalingConfig(resources_per_worker={"object_store_memory": 9}), "cannot be reserved for workers"),
        (lambda: ScalingConfig(label_selector="a"), "label_selector='a' is neither a dict of labels"),
        (lambda: ScalingConfig(label_selector={"zone": "a b"}), "'a b' is not what label 'zone' may be asked to be"),
        (lambda: ScalingConfig(2, label_selector=[{"a": "b"}]), "label_selector has 1 dicts for num_workers=2"),
        (lambda: ScalingConfig((1, 2), label_selector=[{}, {}]), r"for num_workers=\(1, 2\): give one dict for each"),
        (lambda: CheckpointConfig(num_to_keep=0), "num_to_keep=0 is not 1 or more, or None"),
        (lambda: CheckpointConfig(checkpoint_score_order="best"), "neither 'max' nor 'min'"),
        (lambda: CheckpointConfig(checkpoint_score_attribute=3), "is not the name of a metric"),
        (lambda: FailureConfig(-2), "max_failures=-2 is not 0 or more, or -1"),
        (lambda: FailureConfig(hang_timeout_s=0), "hang_timeout_s=0 is not a number of seconds above 0, or None"),
        (lambda: FailureConfig(hang_action="kill"), "hang_action='kill' is not one of warn, restart, fail"),
        (lambda: RunConfig(name="a/b"), "name='a/b' cannot be the name of a directory"),
        (lambda: RunConfig(storage_path=3), "storage_path=3 is not a path"),
        (lambda: RunConfig(storage_path="/x", storage_filesystem=3), "storage_filesystem=3 is neither"),
        (lambda: CheckpointConfig(max_failed_saves=-1), "max_failed_saves=-1 is not 0 or more"),
        (lambda: RunConfig(storage_filesystem=3), "storage_filesystem is given without storage_path"),
        (lambda: RunConfig(callbacks=[print]), "is not a paceline.train.UserCallback"),
        (lambda: TorchConfig(init_method="file"), "init_method='file' is neither"),
        (lambda: TorchConfig(timeout_s=0), "timeout_s=0 is not a number of seconds above 0"),
        (lambda: DataParallelTrainer(3), "train_loop_per_worker=3 is not a function"),
        (lambda: DataParallelTrainer(lambda a, b: None), r"takes 2 arguments \(a, b\): it may take one"),
        (lambda: DataParallelTrainer(lambda: None, train_loop_config={"a": 1}), "takes no argument to receive it"),
        (lambda: DataParallelTrainer(lambda c: None, train_loop_config=[1]), r"train_loop_config=\[1\] is not a dict"),
        (lambda: DataParallelTrainer(print, scaling_config=4), "Invalid `ScalingConfig` type"),
        (lambda: DataParallelTrainer(print, backend_config="torch"), "is not a paceline.train.BackendConfig"),
        (lambda: DataParallelTrainer(print, resume_from_checkpoint="x"), "is not a paceline.train.Checkpoint"),
    ],
)
def test_a_wrong_argument_is_refused_where_it_is_given(make, told):
    with pytest.raises(ValueError, match=told):
        make()


def test_an_unknown_argument_is_refused_with_those_that_exist():
    told = "ScalingConfig has no argument 'num_worker': it has num_workers, use_gpu, resources_per_worker"
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
    message = r"(?s)asks for 4 GPU\(s\) \(4 workers x 1\), and this machine has 1 GPU\(s\).*\n\nhint: lower num_workers"
    with pytest.raises(ValueError, match=message):
        trainer.fit()
    assert psutil.Process().children(recursive=True) == before
    assert list(tmp_path.iterdir()) == []


def test_configs_may_be_dicts_and_four_means_four_workers():
    trainer = DataParallelTrainer(
        print,
        scaling_config={"num_workers": 4},
        run_config={"name": "x", "failure_config": {"max_failures": 2}},
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
