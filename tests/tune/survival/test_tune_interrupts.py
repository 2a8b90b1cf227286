"""Ctrl-C, SIGTERM, and trials that start, wait for a decision or never report meanwhile."""

from signal import SIGINT, SIGTERM

import pytest
from searching import Script, load_search, num_lines

from paceline.tune import ResultGrid
from processes import still_running

SCRIPT = """
import os, signal, sys
from paceline import tune
from paceline.tune.schedulers import ASHAScheduler

kind, until, at, signum = sys.argv[1], *map(int, sys.argv[2:5])
driver = os.getpid()

def trial(config):
    last = tune.get_checkpoint()
    start = last.to_dict()["step"] if last else 0
    for step in range(start + 1, until + 1):
        with open("steps", "a") as steps:
            steps.write(f"{config['x']} {step}\\n")
        tune.report({"loss": config["x"], "step": step}, checkpoint=tune.Checkpoint.from_dict({"step": step}))
        if step == at and config["x"] == 0:
            os.kill(driver, signum)
        if kind == "stuck" and step == 1:
            open(f"stuck_{config['x']}", "w").close()
            signal.pause()

scheduler = ASHAScheduler(max_t=10**9, grace_period=10**8) if kind == "decides" else None
grid = tune.Tuner(
    trial,
    param_space={"x": tune.grid_search([0, 1, 2])},
    tune_config=tune.TuneConfig(metric="loss", mode="min", scheduler=scheduler, max_concurrent_trials=2),
    run_config=tune.RunConfig(name="search", storage_path="searches"),
).fit()
print("statuses", *[result.status for result in grid])
"""

FOR_EVER = 10**9


@pytest.fixture
def script(tmp_path):
    with Script(tmp_path, SCRIPT) as script:
        yield script


def assert_resumes(script):
    """Each trial from where it was, so that no step is made twice."""
    search = load_search(script.path)
    assert not search.is_complete
    assert {trial.status for trial in search.trials.values()} == {"PENDING"}
    reached = max(int(step) for _, step in script.steps())
    script.run("plain", reached + 2, 0, 0)
    assert script.printed.splitlines()[-1] == "statuses TERMINATED TERMINATED TERMINATED"
    steps = script.steps()
    assert len(steps) == len(set(steps)), "no step twice"
    assert set(steps) == {(str(x), str(step)) for x in range(3) for step in range(1, reached + 3)}


@pytest.mark.parametrize("kind", [pytest.param("plain", marks=pytest.mark.chaos), "decides"])
def test_ctrl_c_once_stops_at_the_next_report_and_the_search_can_be_continued(script, kind):
    script.run(kind, FOR_EVER, 3, int(SIGINT), code=130)
    assert "stop at their next report; press Ctrl-C again to stop now" in script.said
    assert "run the script again with the same name to continue" in script.said
    assert ResultGrid.from_path(script.path).status == "stopped"
    assert_resumes(script)


@pytest.mark.parametrize("kind", ["plain", pytest.param("decides", marks=pytest.mark.chaos)])
def test_sigterm_exits_with_75_and_the_script_resumes_later(script, kind):
    script.run(kind, FOR_EVER, 3, int(SIGTERM), code=75)
    assert "has stopped (preempted)" in script.said
    assert "run the script again with the same name to continue" in script.said
    assert_resumes(script)


@pytest.mark.parametrize(
    ("signum", "notice"),
    [(SIGINT, "Ctrl-C again"), pytest.param(SIGTERM, "preemption notice", marks=pytest.mark.chaos)],
    ids=["SIGINT", "SIGTERM"],
)
def test_a_second_signal_does_not_wait_for_reports(script, tmp_path, processes_in, signum, notice):
    process = script.start("stuck", FOR_EVER, 0, 0)
    for x in (0, 1):
        assert script.wait_until(process, (tmp_path / f"stuck_{x}").exists), script.said
    process.send_signal(signum)
    assert script.wait_until(process, lambda: notice in script.said), script.said
    process.send_signal(signum)
    code = process.wait(60)
    assert code == (130 if signum == SIGINT else 75), script.said
    assert still_running(processes_in(tmp_path), within_s=60) == []
    assert {trial.status for trial in load_search(script.path).trials.values()} == {"PENDING"}


@pytest.mark.parametrize("signum", [SIGINT, pytest.param(SIGTERM, marks=pytest.mark.chaos)], ids=str)
@pytest.mark.parametrize("num", [3, *(pytest.param(num, marks=pytest.mark.chaos) for num in (1, 2, 4, 5, 6, 7, 8, 9))])
def test_a_signal_while_trials_start_is_heard(script, signum, num):
    process = script.start("decides", FOR_EVER, 0, 0)
    assert script.wait_until(process, lambda: num_lines(script.path) >= num), script.said
    process.send_signal(signum)
    assert process.wait(60) == (130 if signum == SIGINT else 75), script.said
    search = load_search(script.path)
    assert {trial.status for trial in search.trials.values()} <= {"PENDING"}
    assert not search.is_complete
