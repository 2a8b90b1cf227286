"""Ctrl-C, SIGTERM, and trials that start, wait for a decision or never report meanwhile."""

import signal
import subprocess
import sys
import time

import pytest
from searching import num_lines, told

from processes import still_running

SCRIPT = """
import os, signal, sys
from paceline import tune
from paceline.train import PreemptionError
from paceline.tune.schedulers import ASHAScheduler

kind, until, at, signum = sys.argv[1], *map(int, sys.argv[2:5])
driver = os.getpid()

def trial(config):
    last = tune.get_checkpoint()
    start = last.to_dict()["step"] if last else 0
    for step in range(start + 1, until + 1):
        with open("steps", "a") as steps:
            steps.write(f"{config['x']}.{step} ")
        tune.report({"loss": config["x"], "step": step}, checkpoint=tune.Checkpoint.from_dict({"step": step}))
        if step == at and config["x"] == 0:
            os.kill(driver, signum)
        if kind == "stuck" and step == 1:
            open(f"stuck_{config['x']}", "w").close()
            signal.pause()

scheduler = ASHAScheduler(max_t=10**9, grace_period=10**8) if kind == "decides" else None
tuner = tune.Tuner(
    trial,
    param_space={"x": tune.grid_search([0, 1, 2])},
    tune_config=tune.TuneConfig(metric="loss", mode="min", scheduler=scheduler, max_concurrent_trials=2),
    run_config=tune.RunConfig(name="search", storage_path="searches"),
)
grid = tuner.fit()
print("statuses", *[result.status for result in grid])
"""

FOR_EVER = "1000000000"


@pytest.fixture
def searching(tmp_path):
    """Starts the script; whatever is left of it in the end is a failure of the test."""
    (tmp_path / "search.py").write_text(SCRIPT)
    started = []

    def start(kind, until, at=0, signum=0):
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        command = [sys.executable, "search.py", kind, str(until), str(at), str(int(signum))]
        process = subprocess.Popen(command, cwd=tmp_path, **pipes)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def ended(process, within_s=60):
    out, err = process.communicate(timeout=within_s)
    return process.returncode, out, err


def steps(tmp_path):
    return [tuple(map(int, step.split("."))) for step in (tmp_path / "steps").read_text().split()]


def assert_goes_on(searching, tmp_path):
    """Each trial from where it was, so that no step is made twice."""
    search = told(tmp_path / "searches" / "search")
    assert not search.is_complete
    assert {trial.status for trial in search.trials.values()} == {"PENDING"}
    reached = max(step for _, step in steps(tmp_path))
    code, out, err = ended(searching("plain", reached + 2))
    assert (code, out.splitlines()[-1]) == (0, "statuses TERMINATED TERMINATED TERMINATED"), err
    made = steps(tmp_path)
    assert len(made) == len(set(made)), "no step twice"
    assert set(made) == {(x, step) for x in range(3) for step in range(1, reached + 3)}


@pytest.mark.parametrize("kind", [pytest.param("plain", marks=pytest.mark.chaos), "decides"])
def test_ctrl_c_once_stops_at_the_next_report_returns_what_there_is_and_can_be_continued(searching, tmp_path, kind):
    code, out, err = ended(searching(kind, FOR_EVER, 3, signal.SIGINT))
    assert code == 0, err
    assert "stop at their next report; press Ctrl-C again to stop now" in err
    assert "run the script again with the same name to continue" in err
    assert out.splitlines()[-1] == "statuses PENDING PENDING"
    assert_goes_on(searching, tmp_path)


def wait_for(*paths):
    deadline = time.monotonic() + 60
    while not all(path.exists() for path in paths):
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_ctrl_c_twice_stops_now(searching, tmp_path, processes_in):
    process = searching("stuck", FOR_EVER)
    wait_for(tmp_path / "stuck_0", tmp_path / "stuck_1")
    process.send_signal(signal.SIGINT)
    for line in process.stderr:
        if "Ctrl-C again" in line:
            break
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert time.monotonic() - began < 5
    assert err.endswith("KeyboardInterrupt\n"), err
    assert process.returncode != 0
    assert still_running(processes_in(tmp_path)) == []
    search = told(tmp_path / "searches" / "search")
    assert {trial.status for trial in search.trials.values()} == {"PENDING"}


@pytest.mark.parametrize("kind", ["plain", pytest.param("decides", marks=pytest.mark.chaos)])
def test_sigterm_ends_with_75_and_the_script_goes_on_later(searching, tmp_path, kind):
    code, _, err = ended(searching(kind, FOR_EVER, 3, signal.SIGTERM))
    assert code == 75, err
    assert "has stopped (preempted)" in err
    assert "run the script again with the same name to continue" in err
    assert_goes_on(searching, tmp_path)


@pytest.mark.chaos
def test_sigterm_twice_does_not_wait_for_reports(searching, tmp_path, processes_in):
    process = searching("stuck", FOR_EVER)
    wait_for(tmp_path / "stuck_0", tmp_path / "stuck_1")
    process.send_signal(signal.SIGTERM)
    for line in process.stderr:
        if "about to be taken away" in line:
            break
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert time.monotonic() - began < 5
    assert process.returncode == 75, err
    assert still_running(processes_in(tmp_path)) == []


def after_lines(process, path, num):
    while num_lines(path) < num:
        assert process.poll() is None
        time.sleep(0.0005)


@pytest.mark.parametrize("signum", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.chaos)], ids=str)
@pytest.mark.parametrize("num", [3, *(pytest.param(num, marks=pytest.mark.chaos) for num in (1, 2, 4, 5, 6, 7, 8, 9))])
def test_a_signal_while_trials_start_is_heard(searching, tmp_path, signum, num):
    process = searching("decides", FOR_EVER)
    after_lines(process, tmp_path / "searches" / "search", num)
    process.send_signal(signum)
    code, _, err = ended(process)
    assert code == (0 if signum == signal.SIGINT else 75), err
    search = told(tmp_path / "searches" / "search")
    assert {trial.status for trial in search.trials.values()} <= {"PENDING"}
    assert not search.is_complete
