"""The hooks of Ray's loggers in loggers of one run, and the trackers that a train function sets up itself."""

import importlib.util
import json

import pytest

from paceline import train
from paceline.train import Checkpoint, FailureConfig
from paceline.train.callbacks import LoggedReport, LoggedRun, LoggerCallback, TrainRunContext
from paceline.train.loggers import setup_mlflow, setup_wandb
from paceline.train.loggers.trial_hooks import TrialHooksMixin


class Recorder(TrialHooksMixin, LoggerCallback):
    def __init__(self):
        self.calls = []

    def log_trial_start(self, trial):
        self.calls.append(("start", trial.trial_name, trial.config))
        for report in trial.run.past:
            self.log_report(report)

    def log_trial_result(self, iteration, trial, result):
        self.calls.append((iteration, result))

    def on_trial_recover(self, iteration, trials, trial, **info):
        self.calls.append("recover")

    def log_trial_save(self, trial):
        self.calls.append(("save", trial.checkpoint.number))

    def log_trial_end(self, trial, failed=False):
        self.calls.append(("end", failed))


def test_a_run_calls_the_hooks_for_trials_and_a_subclass_changes_what_is_logged(fit):
    class Changed(Recorder):
        def log_trial_result(self, iteration, trial, result):
            super().log_trial_result(iteration, trial, {**result, "extra": 1})

    def function(config):
        train.report({"loss": config["lr"]}, checkpoint=Checkpoint.from_dict({}))

    logger = Changed()
    fit(function, 1, config={"lr": 0.5}, callbacks=[logger])
    started, *calls, ended = logger.calls
    assert (started, ended) == (("start", "run", {"lr": 0.5}), ("end", False))
    assert sorted(calls, key=str) == [("save", 1), (1, {"loss": 0.5, "extra": 1})]


def test_a_report_that_was_made_while_the_tracker_started_is_logged_once(tmp_path):
    reports = [LoggedReport(number, attempt, 0.0, {}) for attempt, number in ((1, 1), (2, 1), (2, 2))]
    context = TrainRunContext("run", None, {}, None, None)
    logger = Recorder()
    logger.log_start(LoggedRun(context, tmp_path, str(tmp_path), True, iter(reports[:2])))
    for report in reports[1:]:
        logger.log_report(report)
    assert logger.calls[1:] == [(1, {}), "recover", (1, {}), (2, {})]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.skipif(importlib.util.find_spec("mlflow") is None, reason="mlflow is not installed: it was not set up")
def test_a_train_function_sets_up_mlflow_on_rank_0_and_a_restart_continues_its_run(fit, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    for name, value in (("MLFLOW_TRACKING_URI", uri), ("_RJEM_MALLOC_CONF", "dirty_decay_ms:500")):
        monkeypatch.setenv(name, value)  # Set by MLflow and by what it imports.

    def function(config):
        options = {"experiment_name": "tries", "create_experiment_if_not_exists": True, "tags": {"of": "me"}}
        mlflow = setup_mlflow(config, tracking_uri=uri, **options)
        is_first = train.get_checkpoint() is None
        mlflow.log_metric("loss", 0.5, step=int(is_first))
        train.report({}, checkpoint=Checkpoint.from_dict({}))
        if is_first and train.get_context().get_world_rank() == 0:
            raise OSError("once")

    fit(function, config={"lr": 0.1, "net": {"width": 8}}, failure_config=FailureConfig(1))
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    (run,) = client.search_runs([client.get_experiment_by_name("tries").experiment_id])
    assert (run.info.run_name, run.data.params, run.data.tags["of"]) == ("run", {"lr": "0.1", "net/width": "8"}, "me")
    assert sorted(point.step for point in client.get_metric_history(run.info.run_id, "loss")) == [0, 1]
    with pytest.raises(ValueError, match="MLflow has no experiment with experiment_id=None or experiment_name='other'"):
        setup_mlflow(tracking_uri=uri, experiment_name="other")


@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="wandb is not installed: it was not set up")
def test_a_train_function_sets_up_wandb_on_rank_0(fit):
    def function(config):
        run = setup_wandb(config, mode="offline", project="tries")
        run.log({"loss": 1})
        return json.dumps([run.name, run.group, run.project, dict(run.config), run.disabled])

    result = fit(function, config={"lr": 0.1})
    assert json.loads(result.return_value) == ["run", "run", "tries", {"lr": 0.1}, False]
    assert len([*result.log_dir.parent.glob("wandb/offline-run-*/*.wandb")]) == 1
