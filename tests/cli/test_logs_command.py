"""`paceline logs`: of ranks and attempts, filtered, and followed across attempts until the run ends."""

import json
import signal
import subprocess
import sys
import time

import pytest

FOLLOWED = """
import sys, time
from pathlib import Path
from paceline import train
from paceline.train import DataParallelTrainer, FailureConfig, RunConfig

GATES = Path(sys.argv[2])

def wait_for(name):
    while not (GATES / name).exists():
        time.sleep(0.01)

def train_func():
    attempt = len(list(GATES.glob("attempt_*"))) + 1
    (GATES / f"attempt_{attempt}").touch()
    for number in range(20):
        print(f"attempt {attempt} line {number}")
    wait_for(f"go_{attempt}")
    print(f"attempt {attempt} unfinished", end="")
    if attempt == 1:
        raise ValueError("once")
    print(" business")

if __name__ == "__main__":
    DataParallelTrainer(
        train_func,
        run_config=RunConfig(name="live", storage_path=sys.argv[1], failure_config=FailureConfig(max_failures=1)),
    ).fit()
"""


def test_logs_are_those_of_the_last_attempt_rank_by_rank(paceline):
    out = paceline("logs", "failing").out.splitlines()
    assert "rank 1 | rank 1 begins at 3" in out
    assert "rank 1 | rank 1 begins at 0" not in out
    assert "rank 1 | ValueError: batch 4 has a nan in it" in out
    first = paceline("logs", "failing", "--attempt", "1").out.splitlines()
    assert "rank 0 | rank 0 begins at 0" in first
    assert "rank 1 | step 3 loss 0.333" in first


def test_logs_of_one_rank_have_no_marks_and_no_escape_codes(paceline):
    out = paceline("logs", "complete", "--rank", "1").out
    assert out.splitlines() == [
        "rank 1 begins at 0",
        "red and  hostile ",
        *(f"step {step} loss {1 / step:.3f}" for step in range(1, 6)),
    ]


def test_the_last_lines_and_those_with_a_text(paceline):
    assert paceline("logs", "complete", "--rank", "0", "-n", "2").out == "step 4 loss 0.250\nstep 5 loss 0.200\n"
    assert paceline("logs", "complete", "--rank", "0", "--grep", "loss 0.5").out == "step 2 loss 0.500\n"
    assert paceline("logs", "complete", "--rank", "0", "--grep", "step", "-n", "1").out == "step 5 loss 0.200\n"
    nothing = paceline("logs", "complete", "--grep", "nowhere")
    assert (nothing.code, nothing.out) == (1, "")


def test_logs_as_json(paceline):
    found = json.loads(paceline("logs", "complete", "--json", "--rank", "0").out)["logs"]
    assert [(log["attempt"], log["rank"]) for log in found] == [(1, 0)]
    assert found[0]["lines"][-1] == "step 5 loss 0.200"


def test_a_log_that_is_not_there_is_2_with_those_that_are(paceline):
    ended = paceline("logs", "complete", "--rank", "7")
    assert ended.code == 2
    assert "has no log of rank 7" in ended.err
    assert "attempt 1, rank 0" in ended.err


def test_following_a_run_that_is_over_prints_its_end(paceline):
    assert paceline("logs", "complete", "--rank", "0", "-f", "-n", "1").out == "step 5 loss 0.200\n"
    assert paceline("logs", "killed", "--rank", "0", "-f", "-n", "1").out == "step 3 loss 0.333\n"


@pytest.mark.parametrize("follow", [[], ["-f"]], ids=["printed", "followed"])
def test_a_last_line_without_an_end_is_printed_when_the_run_is_over(follow, paceline, copied):
    run = copied("killed")
    with (run / "logs" / "attempt_1" / "rank_0.log").open("ab") as file:
        file.write(b"10%\r50%\rhalf a li")
    assert paceline("logs", str(run), "--rank", "0", "-n", "2", *follow).out == "step 3 loss 0.333\nhalf a li\n"


@pytest.fixture
def live(tmp_path):
    """A run that goes on when a file appears: its storage path and the directory of those files."""
    (tmp_path / "live.py").write_text(FOLLOWED)
    (tmp_path / "gates").mkdir()
    command = [sys.executable, "live.py", str(tmp_path / "runs"), "gates"]
    with (tmp_path / "live.out").open("wb") as out:
        process = subprocess.Popen(command, cwd=tmp_path, stdout=out, stderr=out)
    deadline = time.monotonic() + 60
    while not (tmp_path / "gates" / "attempt_1").exists():
        assert process.poll() is None, (tmp_path / "live.out").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    yield tmp_path / "runs", tmp_path / "gates"
    process.kill()
    process.wait()


def line_that_has(process, text):
    for line in process.stdout:
        if text in line:
            return line.rstrip("\n")
    pytest.fail(f"it ended without {text!r}: {process.stderr.read()}")


def test_a_run_is_followed_across_attempts_until_it_ends(live, begun):
    root, gates = live
    process = begun("logs", "live", "-f", PACELINE_STORAGE_PATH=str(root))
    assert line_that_has(process, "line 19") == "attempt 1 line 19"
    (gates / "go_1").touch()
    line_that_has(process, "ValueError: once")
    # What was printed without an end of the line is complete once there is another attempt.
    assert line_that_has(process, "unfinished") == "rank 0 | attempt 1 unfinished"
    assert line_that_has(process, "attempt 2") == "rank 0 | attempt 2 line 0"
    (gates / "go_2").touch()
    assert line_that_has(process, "unfinished") == "rank 0 | attempt 2 unfinished business"
    assert process.wait(60) == 0


def test_ctrl_c_ends_following_with_130_and_no_traceback(live, begun):
    root, _ = live
    process = begun("logs", "live", "-f", "--grep", "line 19", PACELINE_STORAGE_PATH=str(root))
    assert line_that_has(process, "line 19")
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert process.stderr.read() == ""


def test_a_run_that_goes_on_is_listed_as_running_and_shown_with_its_workers(live, paceline, monkeypatch):
    root, _ = live
    monkeypatch.setenv("PACELINE_STORAGE_PATH", str(root))
    (run,) = json.loads(paceline("ls", "--state", "running", "--json").out)
    assert (run["id"], run["ended_at"]) == ("live", None)
    out = paceline("show", "live").out
    assert out.startswith("live  running\n")
    assert "last heard of" in out
    assert "goes on after" in out
    assert "a driver has it" in paceline("resume", "live").err
