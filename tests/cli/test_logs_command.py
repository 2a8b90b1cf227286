"""`paceline logs`: of ranks and attempts, filtered, and followed across attempts until the run ends."""

import json
import signal
import subprocess
import sys
import time

import pytest

SCRIPT = """
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


def test_logs_are_those_of_the_last_attempt_and_of_one_rank_without_marks_and_escape_codes(paceline, odd_run):
    out = paceline("logs", "bert").out.splitlines()
    assert "rank 1 | rank 1 begins at 3" in out
    assert "rank 1 | rank 1 begins at 0" not in out
    assert "rank 1 | ValueError: batch 4 has a nan in it" in out
    assert paceline("logs", str(odd_run), "--rank", "1").out.splitlines() == [
        "rank 1 begins at 0",
        "red and  hostile ",
        *(f"step {step} loss {loss:.3f}" for step, loss in enumerate((1, 0.5, 3, 4, 5), 1)),
    ]


def test_lines_are_filtered_counted_and_printed_as_json(paceline):
    assert paceline("logs", "resnet", "--rank", "0", "--grep", "loss 0.5").out == "step 2 loss 0.500\n"
    assert paceline("logs", "resnet", "--rank", "0", "--grep", "step", "-n", "1").out == "step 5 loss 0.200\n"
    nothing = paceline("logs", "resnet", "--grep", "nowhere")
    assert (nothing.code, nothing.out) == (1, "")
    found = json.loads(paceline("logs", "resnet", "--json", "--rank", "0").out)["logs"]
    assert [(log["attempt"], log["rank"], log["lines"][-1]) for log in found] == [(1, 0, "step 5 loss 0.200")]
    paceline("logs", "resnet", "--rank", "7").assert_refused("has no log of rank 7", "attempt 1, rank 0")


@pytest.mark.parametrize("follow", [[], ["-f"]], ids=["printed", "followed"])
def test_a_last_line_without_an_end_is_printed_when_the_run_is_over(follow, paceline, copy_run):
    run = copy_run("vit")
    with (run / "logs" / "attempt_1" / "rank_0.log").open("ab") as file:
        file.write(b"10%\r50%\rhalf a li")
    assert paceline("logs", str(run), "--rank", "0", "-n", "2", *follow).out == "step 3 loss 0.333\nhalf a li\n"


@pytest.fixture
def live(tmp_path):
    """A run that continues when a file appears: its storage path and the directory of those files."""
    (tmp_path / "live.py").write_text(SCRIPT)
    (tmp_path / "gates").mkdir()
    command = [sys.executable, "live.py", str(tmp_path / "runs"), "gates"]
    with (tmp_path / "live.out").open("wb") as out:
        process = subprocess.Popen(command, cwd=tmp_path, stdout=out, stderr=out)
    while not (tmp_path / "gates" / "attempt_1").exists():
        assert process.poll() is None, (tmp_path / "live.out").read_text()
        time.sleep(0.01)
    yield tmp_path / "runs", tmp_path / "gates"
    process.kill()
    process.wait()


def read_until(process, text):
    for line in process.stdout:
        if text in line:
            return line.rstrip("\n")
    pytest.fail(f"it ended without {text!r}: {process.stderr.read()}")


def test_a_live_run_is_shown_and_followed_across_attempts_until_it_ends(live, paceline, start_command, monkeypatch):
    root, gates = live
    monkeypatch.setenv("PACELINE_STORAGE_PATH", str(root))
    while not (listed := json.loads(paceline("ls", "--state", "running", "--json").out)):
        time.sleep(0.01)
    (run,) = listed
    assert (run["id"], run["ended_at"]) == ("live", None)
    out = paceline("show", "live").out
    assert out.startswith("live  running\n")
    assert "last update" in out
    assert "running after" in out
    assert "a driver holds it" in paceline("resume", "live").err

    interrupted = start_command("logs", "live", "-f", "--grep", "line 19", PACELINE_STORAGE_PATH=str(root))
    assert read_until(interrupted, "line 19")
    interrupted.send_signal(signal.SIGINT)
    assert interrupted.wait() == 130
    assert interrupted.stderr.read() == "", "no traceback"

    process = start_command("logs", "live", "-f", PACELINE_STORAGE_PATH=str(root))
    assert read_until(process, "line 19") == "attempt 1 line 19"
    (gates / "go_1").touch()
    read_until(process, "ValueError: once")
    # What was printed without an end of the line is complete once there is another attempt.
    assert read_until(process, "unfinished") == "rank 0 | attempt 1 unfinished"
    assert read_until(process, "attempt 2") == "rank 0 | attempt 2 line 0"
    (gates / "go_2").touch()
    assert read_until(process, "unfinished") == "rank 0 | attempt 2 unfinished business"
    assert process.wait() == 0
