"""The driver itself: interrupted, killed, started twice, in a notebook, without a guard."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest
from training_scripts import HEAD

from paceline._control import journal
from paceline._control.controller import Controller
from paceline._engine.messages import Reported
from paceline.train import DataParallelTrainer, Result, RunConfig, RunHeldError
from paceline.train.trainer import intercept_fits
from processes import still_running


def test_reports_that_no_driver_read_are_in_the_journal_after_all(run_script, tmp_path):
    script = f"""{HEAD}
def function(config):
    if train.get_checkpoint() is None and not os.path.exists("stopped"):
        open("stopped", "w").close()
        os.kill(config["driver"], signal.SIGSTOP)
        for i in range(500):
            train.report({{"i": i}})
        os.kill(config["driver"], signal.SIGKILL)
        signal.pause()

fit(function, 1)
"""
    assert run_script(script).returncode == -signal.SIGKILL
    result = Result.from_path(tmp_path / "runs" / "run")
    assert result.metrics_dataframe["i"].tolist() == list(range(500))
    assert result.metrics == {"i": 499}

    # So far it is the reader that looks into the worker's own file. The next driver writes them down.
    assert run_script(script).returncode == 0
    lines = journal.read_events(tmp_path / "runs" / "run" / "journal.jsonl")
    assert [event.seq for event in lines if isinstance(event, Reported)] == list(range(1, 501))


HELD = f"""{HEAD}
def function(config):
    last = train.get_checkpoint()
    start = last.to_dict()["i"] + 1 if last else 0
    for i in range(start, 8):
        row = {{"i": i, "by": config["by"]}}
        train.report(row, checkpoint=Checkpoint.from_dict(row))
        if i == 2 and config["by"] == "first":
            print("at", i, flush=True)
            Path("gate").read_bytes()  # Until somebody opens its other end.
    return config["by"]

print("value", fit(function, 1, config={{"by": sys.argv[1]}}).return_value)
"""


@pytest.fixture
def held(tmp_path):
    """Starts a driver whose worker waits after its third checkpoint until the gate is opened."""
    (tmp_path / "held.py").write_text(HELD)
    os.mkfifo(tmp_path / "gate")
    with contextlib.ExitStack() as stack:

        def start(ttl_s, by="first"):
            pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            env = {**os.environ, "PACELINE_LEASE_TTL_S": str(ttl_s)}
            command = [sys.executable, "held.py", by]
            process = stack.enter_context(subprocess.Popen(command, text=True, cwd=tmp_path, env=env, **pipes))
            stack.callback(process.kill)
            return process

        yield start


def test_a_paused_driver_is_taken_over_and_can_change_nothing_when_it_wakes(held, tmp_path):
    first = held(ttl_s=1)
    assert first.stdout.readline() == "[rank 0] at 2\n"
    first.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, first.pid, os.WSTOPPED | os.WNOWAIT)

    root = tmp_path / "runs" / "run"
    deadline = time.monotonic() + 60
    while True:
        second = held(ttl_s=1, by="second")
        out, err = second.communicate(timeout=240)
        if "is being written by" not in err:
            break
        assert time.monotonic() < deadline, "its lease never lapsed"
    assert second.returncode == 0, err
    assert "continues, from checkpoint_000003" in err
    assert "value second" in out
    before = run_directory(root)

    with (tmp_path / "gate").open("w"):
        pass  # The worker of the first makes its next report, with a checkpoint.
    first.send_signal(signal.SIGCONT)
    _, err = first.communicate(timeout=240)
    assert first.returncode == 1
    assert f"RunHeldError: run 'run' was taken over by process {second.pid} on " in err
    assert run_directory(root) == before
    result = Result.from_path(root)
    assert result.metrics == {"i": 7, "by": "second"}
    assert result.metrics_dataframe["i"].tolist() == list(range(8))
    assert result.metrics_dataframe["by"].tolist() == ["first"] * 3 + ["second"] * 5
    assert {checkpoint.to_dict()["by"] for checkpoint, _ in result.best_checkpoints[3:]} == {"second"}


def run_directory(root):
    """Every file of the run but those that a worker writes for itself, with what is in it."""
    own = {root / "reports" / "attempt_1", root / "logs" / "attempt_1", root / ".lease", root / ".staging"}
    return {str(p): p.read_bytes() for p in root.rglob("*") if p.is_file() and not own & set(p.parents)}


def test_a_second_script_is_refused_within_a_second_while_the_first_is_alive(held, tmp_path):
    first = held(ttl_s=30)
    assert first.stdout.readline() == "[rank 0] at 2\n"
    with pytest.raises(RunHeldError, match=rf"run 'run' .*process {first.pid} on .*, since 20[^$]*kill {first.pid}"):
        DataParallelTrainer(print, run_config=RunConfig(name="run", storage_path=tmp_path / "runs")).fit()
    assert Result.from_path(tmp_path / "runs" / "run").metrics["i"] == 2, "reading takes no lease"
    with (tmp_path / "gate").open("w"):
        pass
    out, err = first.communicate(timeout=240)
    assert "value first" in out, err


def test_a_script_without_a_main_guard_runs_once_and_workers_find_the_modules_beside_it(tmp_path, run_script):
    (tmp_path / "beside.py").write_text("def answer():\n    return 42\n")
    script = """
import beside
from paceline.train import DataParallelTrainer, RunConfig
print("top level")
print(DataParallelTrainer(lambda: beside.answer(), run_config=RunConfig(storage_path="runs")).fit().return_value)
"""
    ended = run_script(script)
    assert ended.stdout == "top level\n42\n", ended.stderr
    from_input = subprocess.run([sys.executable, "-"], input=script, capture_output=True, text=True, cwd=tmp_path)
    assert from_input.stdout == ended.stdout, from_input.stderr


def test_an_exception_in_the_driver_ends_the_workers(fit, monkeypatch):
    """Whatever goes wrong on our own side, no worker stays."""
    monkeypatch.setattr(Controller, "_next_events", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        fit(lambda: signal.pause())


@pytest.mark.parametrize("env", [pytest.param({"PACELINE_PORTABLE": "1"}, marks=pytest.mark.slow), {}])
def test_a_driver_killed_by_sigkill_takes_spawned_and_forked_workers_along(run_script, tmp_path, processes_in, env):
    script = f"""{HEAD}
def function(config):
    for i in range(100_000):
        train.report({{"i": i}}, checkpoint=Checkpoint.from_dict({{"i": i}}))
        if i == 2 and train.get_context().get_world_rank() == 1:
            os.kill(config["driver"], signal.SIGKILL)

fit(function)
"""
    ended = run_script(script, env=env)
    assert ended.returncode == -signal.SIGKILL
    assert still_running(processes_in(tmp_path), within_s=60) == []


@pytest.mark.parametrize("start_method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_a_worker_that_keeps_the_gil_goes_with_a_killed_driver(run_script, tmp_path, processes_in, start_method):
    script = f"""{HEAD}
import ctypes

def function(config):
    own = ctypes.PyDLL(None)  # Does not let go of the GIL.
    sys.setswitchinterval(1000)  # Nor does this thread between the two calls: none of ours can notice anything.
    own.kill(config["driver"], signal.SIGKILL)
    own.sleep(1000)

fit(function, 1)
"""
    ended = run_script(script, env={"PACELINE_START_METHOD": start_method})
    assert ended.returncode == -signal.SIGKILL
    assert still_running(processes_in(tmp_path), within_s=60) == []


@pytest.mark.slow
def test_without_prewarming_nothing_is_started_at_import(run_script):
    script = """
import os, sys, psutil
import paceline.train.torch
print(len(psutil.Process().children()))
assert "torch" not in sys.modules
"""
    assert run_script(script).stdout.strip() == "1"
    assert run_script(script, env={"PACELINE_PREWARM": "0"}).stdout.strip() == "0"


def test_interceptors_of_fit_nest_and_end_with_their_blocks(tmp_path):
    trainer = DataParallelTrainer(lambda: None, run_config=RunConfig(name="run", storage_path=tmp_path))
    config = trainer.scaling_config
    with intercept_fits(lambda trainer, fit: trainer.scaling_config):
        assert trainer.fit() is config
        with intercept_fits(lambda trainer, fit: fit(trainer.replace_arguments(scaling_config={"num_workers": 3}))):
            assert trainer.fit().num_workers == 3
        assert trainer.fit() is config
    assert not (tmp_path / "run").exists()
    assert trainer.fit().error is None
