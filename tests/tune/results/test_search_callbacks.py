"""Callbacks and loggers over many trials, whose runs are driven by threads of one process at once."""

import json
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from recorded_search import RecordedSearch

from paceline import train
from paceline.train import DataParallelTrainer, RunConfig, loggers
from paceline.train.callbacks import TrainingCallback
from paceline.tune.callback import Callback
from paceline.tune.driver.callbacks import SearchCallbacks

NUM_TRIALS, NUM_REPORTS = 4, 5


def train_func(config):
    for step in range(NUM_REPORTS):
        train.report({"value": config["number"] * 100 + step})
    if config["number"] == 3:
        raise ValueError("boom")


def play_at_once(callbacks, directory):
    """A run for each trial, all at once, with what it is given of the search's callbacks; whether each failed."""
    meeting = threading.Barrier(NUM_TRIALS)

    def play(number):
        run_config = callbacks.for_trial(RunConfig(name=f"trial_{number:05d}", storage_path=directory))
        trainer = DataParallelTrainer(train_func, train_loop_config={"number": number}, run_config=run_config)
        meeting.wait()
        try:
            trainer.fit()
        except train.TrainingFailedError:
            return True
        return False

    with ThreadPoolExecutor(NUM_TRIALS) as threads:
        return list(threads.map(play, range(NUM_TRIALS)))


class Alone:
    """Notices when it is called twice at once."""

    def __init__(self):
        self.calls = []
        self.was_disturbed = False
        self._is_called = False

    def note(self, *call):
        self.was_disturbed |= self._is_called
        self._is_called = True
        time.sleep(0.001)  # Long enough for another thread to come in, if it could.
        self.calls.append(call)
        self._is_called = False


class Both(Alone, train.UserCallback, TrainingCallback):
    def after_report(self, run_context, metrics, checkpoint):
        self.note("report", run_context.run_id, metrics[0]["value"])

    def after_exception(self, run_context, worker_exceptions):
        self.note("exception", run_context.run_id, str(worker_exceptions[0]))

    def start_training(self, logdir, config, **info):
        self.note("start", logdir.rsplit("/", 1)[-1], config["number"])

    def finish_training(self, error=False, **info):
        self.note("finish", None, error)


class Several(Alone, train.UserCallback, loggers.LoggerCallback):
    """One object for reports, and one for each trial that it logs."""

    def after_report(self, run_context, metrics, checkpoint):
        self.note("report", run_context.run_id)

    def log_start(self, run):
        self.logged, self.file = [], run.directory / "logged.json"

    def log_report(self, report):
        self.logged.append(report.metrics["value"])

    def log_end(self, failed):
        self.file.write_text(json.dumps(self.logged))


class Raising(train.UserCallback):
    num_calls = 0

    def after_report(self, run_context, metrics, checkpoint):
        self.num_calls += 1
        raise RuntimeError("no more")


def test_trials_at_once_have_loggers_of_their_own_and_callbacks_in_common_of_which_one_is_dropped(tmp_path, caplog):
    both, several, raising = Both(), Several(), Raising()
    own = [loggers.JsonLoggerCallback(), loggers.CSVLoggerCallback(), loggers.TensorBoardLoggerCallback()]
    elsewhere = loggers.JsonLoggerCallback(tmp_path / "logs")
    callbacks = SearchCallbacks([raising, both, *own, elsewhere, several], "search")
    assert play_at_once(callbacks, tmp_path / "search") == [False, False, False, True]
    for number in range(NUM_TRIALS):
        run = f"trial_{number:05d}"
        directory = tmp_path / "search" / run
        values = [number * 100 + step for step in range(NUM_REPORTS)]
        for file in (directory / "result.json", tmp_path / "logs" / run / "result.json"):
            assert [json.loads(line)["value"] for line in file.read_text().splitlines()] == values
        rows = (directory / "progress.csv").read_text().splitlines()
        assert [int(row.rsplit(",", 1)[1]) for row in rows[1:]] == values
        assert len(list(directory.glob("events.out.tfevents.*"))) == 1
        assert json.loads((directory / "logged.json").read_text()) == values
        assert [call[2] for call in both.calls if call[:2] == ("report", run)] == values
        assert ("start", run, number) in both.calls
    assert [call for call in both.calls if call[0] == "exception"] == [("exception", "trial_00003", "boom")]
    assert sorted(call[2] for call in both.calls if call[0] == "finish") == [False, False, False, True]
    assert len(several.calls) == NUM_TRIALS * NUM_REPORTS
    assert not hasattr(several, "logged")
    assert not both.was_disturbed
    assert not several.was_disturbed
    assert raising.num_calls == 1
    (record,) = (record for record in caplog.records if "disabled" in record.message)
    assert record.message == "callback Raising raised and is disabled"
    assert record.exc_info is not None


def test_trials_are_runs_of_one_experiment_or_group_named_after_the_search(tmp_path, monkeypatch):
    for package in ("mlflow", "wandb"):
        (tmp_path / f"{package}.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    mlflow, named = loggers.MLflowLoggerCallback(), loggers.MLflowLoggerCallback(experiment_name="mine")
    wandb, grouped = loggers.WandbLoggerCallback("project"), loggers.WandbLoggerCallback(group="mine", mode="offline")
    callbacks = SearchCallbacks([mlflow, named, wandb, grouped], "search")
    copies = callbacks.for_trial(RunConfig(name="trial_00007", storage_path=tmp_path)).callbacks
    assert [copied.experiment_name for copied in copies[:2]] == ["search", "mine"]
    assert [copied._group for copied in copies[2:]] == ["search", "mine"]
    # Without it, the second run of a process would end the first.
    assert [copied._kwargs["reinit"] for copied in copies[2:]] == ["create_new", "create_new"]
    assert (mlflow.experiment_name, wandb._group, wandb._kwargs) == (None, None, {})

    class Holding(loggers.LoggerCallback):
        def __init__(self):
            self.lock = threading.Lock()

    with pytest.raises(ValueError, match=r"copy the Holding in callbacks for each trial: TypeError.*\n\nhint: open"):
        SearchCallbacks([Holding()], "search")


class Recording(Callback):
    def __init__(self):
        self.calls = []

    def setup(self, stop=None, num_samples=None, total_num_samples=None, **info):
        self.calls.append(("setup", stop, num_samples, total_num_samples))

    def on_step_begin(self, iteration, trials, **info):
        self.calls.append(("step", iteration))

    def on_trial_start(self, iteration, trials, trial, **info):
        self.calls.append(("start", trial.trial_id, len(trials)))

    def on_trial_restore(self, iteration, trials, trial, **info):
        self.calls.append(("restore", trial.trial_id, trial.checkpoint.name))

    def on_trial_result(self, iteration, trials, trial, result, **info):
        self.calls.append(("result", trial.trial_id, result["loss"], result["training_iteration"]))

    def on_trial_save(self, iteration, trials, trial, **info):
        self.calls.append(("save", trial.trial_id, trial.checkpoint.name))

    def on_trial_complete(self, iteration, trials, trial, **info):
        self.calls.append(("complete", trial.trial_id, trial.why))

    def on_trial_error(self, iteration, trials, trial, **info):
        self.calls.append(("error", trial.trial_id, trial.why))

    def on_experiment_end(self, trials, **info):
        self.calls.append(("end", [(trial.status, trial.is_finished(), trial.experiment_tag) for trial in trials]))


def a_search(callbacks):
    recorded = RecordedSearch(callbacks).starts()
    recorded.trial("00000", 0.5, ending=None)
    recorded.reported("00000", loss=0.25, checkpoint=True)
    recorded.ended("00000", "paused", why="others first")
    recorded.began("00000")
    recorded.ended("00000", "stopped", why="plateau")
    recorded.trial("00001", ending="failed", why="ValueError: boom")
    recorded.search_ended()
    return recorded


def test_calls_a_search_callback_for_each_event_of_trials():
    recording = Recording()
    callbacks = SearchCallbacks([recording], "search")
    callbacks.setup(None, 4, 8)
    recorded = a_search(callbacks)
    assert [call for call in recording.calls if call[0] != "step"] == [
        ("setup", None, 4, 8),
        ("start", "00000", 1),
        ("result", "00000", 0.5, 1),
        ("result", "00000", 0.25, 2),
        ("save", "00000", "checkpoint_000002"),
        ("start", "00000", 1),
        ("restore", "00000", "checkpoint_000002"),
        ("complete", "00000", "plateau"),
        ("start", "00001", 2),
        ("error", "00001", "ValueError: boom"),
        ("end", [("TERMINATED", True, "0_lr=0.0"), ("ERROR", True, "1_lr=0.1")]),
    ]
    assert [call[1] for call in recording.calls if call[0] == "step"] == [*range(1, len(recorded.events) + 1)]


def test_drops_a_search_callback_that_raises_and_calls_the_others(caplog):
    class Exiting(Recording):
        def on_trial_result(self, iteration, trials, trial, result, **info):
            raise SystemExit(3)

    exiting, recording = Exiting(), Recording()
    a_search(SearchCallbacks([exiting, recording], "search"))
    assert exiting.calls[-1][0] == "step"
    assert recording.calls[-1][0] == "end"
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "callback Exiting raised and is disabled" in caplog.text


def test_search_callbacks_are_not_called_for_runs(tmp_path):
    class OfRuns(Recording):
        def after_report(self, run_context, metrics, checkpoint):
            self.calls.append(("run", run_context.run_id))

    callbacks = SearchCallbacks([Recording(), OfRuns()], "search")
    (given,) = callbacks.for_trial(RunConfig(name="trial_00000", storage_path=tmp_path)).callbacks
    given.after_report(train.TrainRunContext("trial_00000", None, None, None, None), [{}], None)
    assert callbacks._guarded[1].callback.calls == [("run", "trial_00000")]
