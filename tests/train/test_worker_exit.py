"""Workers that return and cannot exit: the run ends all the same, and says what held them."""

import atexit
import multiprocessing
import os
import signal
import threading

import pytest

from paceline import train
from paceline.train import Checkpoint

RELEASE_TIMEOUT_S = 1000


def leave_thread():
    threading.Thread(target=threading.Event().wait, args=(RELEASE_TIMEOUT_S,), name="prefetch").start()


def leave_process():
    context = multiprocessing.get_context("fork")
    context.Process(target=threading.Event().wait, args=(RELEASE_TIMEOUT_S,), name="prefetch").start()


def leave_exit_handler():
    atexit.register(threading.Event().wait, RELEASE_TIMEOUT_S)


@pytest.mark.parametrize(
    ("leave", "holder"),
    [
        (leave_thread, "thread 'prefetch'"),
        (leave_process, "child process 'prefetch' (pid "),
        (leave_exit_handler, "an exit handler"),
    ],
    ids=["thread", "process", "exit handler"],
)
def test_a_worker_that_cannot_exit_is_named_and_killed_and_the_result_stands(leave, holder, fit, capsys, monkeypatch):
    monkeypatch.setenv("PACELINE_EXIT_GRACE_S", "0.2")

    def function():
        if train.get_context().get_world_rank() == 1:
            leave()
        train.report({"loss": 0.5}, checkpoint=Checkpoint.from_dict({"step": 1}))
        return "trained"

    result = fit(function)
    assert (result.error, result.return_value, result.metrics["loss"]) == (None, "trained", 0.5)
    assert result.checkpoint.to_dict() == {"step": 1}
    lines = [line for line in capsys.readouterr().err.splitlines() if "did not exit" in line]
    assert len(lines) == 1
    assert lines[0].startswith(
        f"paceline: rank 1 returned but did not exit within 0.2 s, because it waits for {holder}"
    )


def test_a_worker_that_cannot_answer_is_killed_after_the_grace_period(fit, monkeypatch):
    monkeypatch.setenv("PACELINE_EXIT_GRACE_S", "0.2")

    def function():
        atexit.register(os.kill, os.getpid(), signal.SIGSTOP)
        train.report({"loss": 0.5})

    assert fit(function).metrics["loss"] == 0.5
