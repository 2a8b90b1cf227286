"""`paceline.air`: the older names, and the metrics that a run fills in by itself on that path."""

import os
import re
import signal
import socket
import sys
import warnings

import pytest

from paceline import air, train
from paceline.air import session
from paceline.train import Checkpoint as ModernCheckpoint
from paceline.train import DataParallelTrainer, Result
from paceline.train.older.trainer_verbs import _import_own_function

FILLED = """
    _time_this_iter_s _timestamp _training_iteration config date done episodes_total experiment_id experiment_tag
    hostname iterations_since_restore node_ip pid should_checkpoint time_since_restore time_this_iter_s time_total_s
    timestamp timesteps_since_restore timesteps_total training_iteration trial_id
"""


def test_a_run_fills_in_its_own_metrics_which_go_on_over_a_restart(fit):
    """A run of four reports, in the middle of which a worker is killed."""

    def function(config):
        checkpoint = session.get_checkpoint()
        start = checkpoint.to_dict()["step"] if checkpoint else 0
        for step in range(start, 4):
            if step == 2 and start == 0 and session.get_world_rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            saved = air.Checkpoint.from_dict({"step": step + 1})
            session.report({"loss": 1 / (step + 1), "lr": config["lr"]}, checkpoint=saved)

    failures = air.FailureConfig(max_failures=1)
    result = fit(function, config={"lr": 0.5, "model": object}, failure_config=failures)
    metrics = result.metrics
    assert set(metrics) == {*FILLED.split(), "loss", "lr"}
    assert (metrics["loss"], metrics["lr"]) == (0.25, 0.5)
    assert metrics["hostname"] == socket.gethostname()
    assert metrics["config"] == {"train_loop_config": {"lr": 0.5, "model": "<class 'object'>"}}
    assert re.fullmatch(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d", metrics["date"])
    assert metrics["pid"] != os.getpid()
    assert (metrics["done"], metrics["should_checkpoint"]) == (True, True)
    assert Result.from_path(result.path).metrics == metrics
    assert result.config == metrics["config"]

    frame = result.metrics_dataframe
    assert frame["training_iteration"].tolist() == frame["_training_iteration"].tolist() == [1, 2, 3, 4]
    assert frame["iterations_since_restore"].tolist() == [1, 2, 1, 2]
    assert frame["time_total_s"].is_monotonic_increasing
    assert frame["time_total_s"][2] >= frame["time_total_s"][1] + frame["time_since_restore"][2] - 1e-6
    assert frame["time_since_restore"][3] < frame["time_total_s"][3]
    assert len(set(frame["trial_id"])) == len(set(frame["experiment_id"])) == 1
    assert len(set(frame["pid"])) == 2
    assert frame["done"].tolist() == [False] * 4

    assert (result.log_dir / "attempt_2" / "rank_1.log").exists()
    assert [metrics["training_iteration"] for _, metrics in result.best_checkpoints] == [1, 2, 3, 4]
    assert result.checkpoint.to_dict() == {"step": 4}
    assert result.get_best_checkpoint("loss", "min").to_dict() == {"step": 4}


def test_a_worker_knows_who_it_is_and_what_it_reports_under_a_filled_in_name_stays(tmp_path, fit):
    def function():
        assert session.get_checkpoint() is None
        numbers = [session.get_node_rank(), session.get_world_size(), session.get_local_world_size()]
        numbers += [session.get_local_rank(), sum(1 for _ in session.get_dataset_shard("train").iter_rows())]
        names = [session.get_experiment_name(), session.get_trial_name(), session.get_trial_dir()]
        names.append(session.get_trial_id())
        resources = session.get_trial_resources().required_resources
        session.report({"numbers": numbers, "names": names, "resources": resources, "done": "nearly"})

    metrics = fit(function, datasets={"train": [1, 2, 3, 4]}).metrics
    assert metrics["done"] == "nearly"
    assert metrics["numbers"] == [0, 2, 2, 0, 2]
    assert metrics["names"] == ["run", "run", str(tmp_path / "run"), metrics["trial_id"]]
    assert metrics["resources"]["CPU"] >= 1
    assert metrics["resources"]["GPU"] == 0
    with pytest.raises(RuntimeError, match="outside of a Paceline training function"):
        session.report({})
    with pytest.raises(TypeError, match="metrics must be a dict"):
        session.report(3)


def test_an_older_argument_is_taken_and_it_is_said_what_it_does_not_do():
    with pytest.warns(UserWarning, match="no CPUs are reserved"):
        air.ScalingConfig(num_workers=2, _max_cpu_fraction_per_node=0.8)
    with pytest.warns(UserWarning, match="trainer_resources="):
        assert air.ScalingConfig({"CPU": 1}, 3).num_workers == 3


def test_older_configurations_are_configurations(tmp_path):
    config = air.RunConfig("run", local_dir=tmp_path, failure_config=air.FailureConfig(fail_fast=True))
    assert isinstance(config, train.RunConfig)
    assert (config.path, config.local_dir) == (tmp_path / "run", str(tmp_path))
    assert config.failure_config.max_failures == 0
    assert air.ScalingConfig(num_workers=3, use_gpu=True).num_gpus_per_worker == 1
    assert air.CheckpointConfig(2, "loss", "min").num_to_keep == 2
    with pytest.raises(TypeError, match="has no argument 'nmae'"):
        air.RunConfig(nmae="x")
    with pytest.raises(ValueError, match="contradict"):
        air.FailureConfig(max_failures=2, fail_fast=True)
    with pytest.raises(ValueError, match="not both"):
        air.RunConfig(local_dir="a", storage_path="b")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        air.RunConfig(verbose=None, stop=None, log_to_file=False)


def fail_once(config):
    before = train.get_checkpoint()
    train.report({"x": 1}, checkpoint=ModernCheckpoint.from_dict({"x": config["x"] if before else 0}))
    if before is None:
        raise ValueError("once")


def test_a_trainer_is_restored_with_the_function_of_that_name_if_it_has_not_changed(tmp_path, fit, monkeypatch):
    with pytest.raises(train.TrainingFailedError):
        fit(fail_once, config={"x": 7})
    with pytest.raises(
        ValueError, match=r"needs train_loop_config, which the run had: x\n\nhint: .*, train_loop_config="
    ):
        DataParallelTrainer.restore(tmp_path / "run")
    trainer = DataParallelTrainer.restore(tmp_path / "run", train_loop_config={"x": 7})
    assert trainer.fit().checkpoint.to_dict() == {"x": 7}
    monkeypatch.setattr(sys.modules[__name__], "fail_once", lambda config: None)
    with pytest.raises(ValueError, match=r"the run's function has changed since: .*fail_once"):
        DataParallelTrainer.restore(tmp_path / "run", train_loop_config={"x": 7})


@pytest.mark.parametrize(
    "name",
    ["os.system", "shutil.rmtree", "this.s", "pytest.main", "no_such.thing", "nothing", "email.mime.audio.MIMEAudio"]
    + [""],
)
def test_a_stored_name_imports_nothing_but_functions_of_the_user(name):
    before = set(sys.modules)
    assert _import_own_function(name) is None
    assert set(sys.modules) == before


def test_a_trainer_is_restored_from_the_path_of_its_run(tmp_path, fit):
    def function():
        fail_once({"x": 1})

    with pytest.raises(train.TrainingFailedError):
        fit(function)
    assert DataParallelTrainer.can_restore(tmp_path / "run")
    assert not DataParallelTrainer.can_restore(tmp_path / "elsewhere")
    trainer = DataParallelTrainer.restore(str(tmp_path / "run"), train_loop_per_worker=function)
    assert trainer.scaling_config.num_workers == 2
    assert trainer.fit().checkpoint.to_dict() == {"x": 1}
    with pytest.raises(ValueError, match=r"needs train_loop_per_worker: the run's function cannot .*<locals>.function"):
        DataParallelTrainer.restore(tmp_path / "run")
    with pytest.raises(ValueError, match="no run at"):
        DataParallelTrainer.restore(tmp_path / "elsewhere", function)
