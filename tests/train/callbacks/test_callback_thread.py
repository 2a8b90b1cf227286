"""Callbacks run on a thread of their own: whatever they do, reports, signals and other callbacks are not delayed."""

import os
import signal
import threading

import pytest
from fits import count_up

from paceline import train
from paceline._control.events import RetentionSet
from paceline._control.run import Run
from paceline.train import Checkpoint, CheckpointConfig, UserCallback
from paceline.train.driver import callback_thread
from paceline.train.driver.callback_thread import CallbackThread
from processes import wait_until


def report_checkpoints(config):
    """Report with checkpoints, each of which waits for its commit, then leave a mark."""
    for step in range(config["steps"]):
        train.report({"step": step}, checkpoint=Checkpoint.from_dict({"step": step}))
    config["done"].touch()


class Recorder(UserCallback):
    def __init__(self):
        self.steps = []

    def after_report(self, run_context, metrics, checkpoint):
        self.steps.append(metrics[0]["step"])


class BlocksFirst(Recorder):
    """Returns from its first call once a condition holds, and reads the checkpoint then."""

    def __init__(self, condition):
        super().__init__()
        self.condition = condition
        self.states = []

    def after_report(self, run_context, metrics, checkpoint):
        if not self.steps:
            wait_until(self.condition)
        super().after_report(run_context, metrics, checkpoint)
        self.states.append(checkpoint.to_dict()["step"])


class Hangs(UserCallback):
    def __init__(self, released, before=lambda: None):
        self.released = released
        self.before = before

    def after_report(self, run_context, metrics, checkpoint):
        self.before()
        self.released.wait()


@pytest.fixture
def released():
    """Ends the calls that hang, after the test."""
    event = threading.Event()
    yield event
    event.set()
    wait_until(lambda: all(thread.name != "paceline-callbacks" for thread in threading.enumerate()))


def test_a_slow_callback_gets_all_reports_and_finds_their_checkpoints_while_nothing_waits_for_it(fit, tmp_path):
    done = tmp_path / "done"
    slow, quick = BlocksFirst(done.exists), Recorder()
    options = {"callbacks": [slow, quick], "checkpoint_config": CheckpointConfig(num_to_keep=1)}
    result = fit(report_checkpoints, config={"steps": 3, "done": done}, **options)
    assert slow.steps == quick.steps == slow.states == [0, 1, 2]
    left = sorted(path.name for path in (tmp_path / "run").glob("checkpoint_*"))
    assert left == [os.path.basename(result.checkpoint.path)]


def test_a_callback_that_hangs_is_named_with_its_line_and_dropped_and_the_others_are_called(
    fit, tmp_path, monkeypatch, caplog, released
):
    monkeypatch.setenv("PACELINE_CALLBACK_TIMEOUT_S", "0.5")
    recorder = Recorder()
    fit(report_checkpoints, config={"steps": 3, "done": tmp_path / "done"}, callbacks=[Hangs(released), recorder])
    assert recorder.steps == [0, 1, 2]
    (line,) = [record.getMessage() for record in caplog.records if "dropped" in record.getMessage()]
    assert line.startswith("the callback Hangs has been running for ")
    assert "test_callback_thread.py:" in line


def test_the_driver_hears_signals_while_a_callback_hangs(fit, monkeypatch, released):
    monkeypatch.setenv("PACELINE_CALLBACK_TIMEOUT_S", "2")
    callback = Hangs(released, before=lambda: os.kill(os.getpid(), signal.SIGINT))

    with pytest.raises(train.TrainingInterrupt) as interrupt:
        fit(count_up(1_000_000), callbacks=[callback])
    assert interrupt.value.result.metrics["i"] < 999_999


def test_a_callback_that_is_too_far_behind_misses_events_and_that_is_said(monkeypatch, caplog):
    monkeypatch.setattr(callback_thread, "MAX_QUEUED_EVENTS", 3)
    release, calls = threading.Event(), []

    class Observer:
        name = "the callback Slow"

        def on_event(self, event, run):
            release.wait(60)
            calls.append(event.attempt)

        def close(self, failed):
            calls.append(failed)

    thread = CallbackThread([Observer()], timeout_s=60)
    thread.on_event(RetentionSet(0, Run().retention), Run())
    wait_until(lambda: thread._call is not None)
    for attempt in range(1, 6):
        thread.on_event(RetentionSet(attempt, Run().retention), Run())
    release.set()
    thread.close(failed=False)
    assert calls == [0, 1, 2, 3, False]
    assert [record.getMessage() for record in caplog.records] == [
        "callbacks are 3 events behind, and miss further ones",
        "callbacks missed 2 events, because they were too slow",
    ]


def test_a_callback_that_hangs_is_dropped_once_even_if_the_next_thread_runs_late(released, caplog, monkeypatch):
    class Observer:
        name = "the callback Hangs"

        def on_event(self, event, run):
            released.wait()

    thread = CallbackThread([Observer()], timeout_s=0)
    thread.on_event(RetentionSet(0, Run().retention), Run())
    wait_until(lambda: thread._call is not None)
    with monkeypatch.context() as patch:
        patch.setattr(thread, "_start_thread", lambda: None)
        thread.tick(Run(), 0.0)
        thread.tick(Run(), 0.0)
    assert len(caplog.records) == 1
    thread._start_thread()
    thread.close(failed=False)


def test_a_callback_may_end_the_run_with_an_exception_that_is_no_error(fit, tmp_path):
    class EndsRun(UserCallback):
        def after_report(self, run_context, metrics, checkpoint):
            raise KeyboardInterrupt("enough")

    with pytest.raises(KeyboardInterrupt, match="enough"):
        fit(count_up(1_000_000), callbacks=[EndsRun()])
