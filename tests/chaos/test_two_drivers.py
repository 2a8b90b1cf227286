"""Two drivers of one run: one that was paused and wakes up too late, and two that are started at the same instant."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import oracle
import pytest
from lives import Script, first_report_since

from paceline.train import DataParallelTrainer

STEPS = 40
CONFIG = {"pace_s": 0.01, "every": 4}


@pytest.mark.seeds(5)
def test_a_driver_paused_at_a_random_moment_is_followed_and_does_no_harm_when_it_wakes(
    tmp_path, temporary, seed, undisturbed, fault_table
):
    expected = undisturbed(DataParallelTrainer, oracle.small, STEPS)
    dice = random.Random(f"leases {seed}")
    line, delay_s = dice.randint(2, 2 * STEPS - 10), dice.uniform(0, 0.01)
    script = Script(tmp_path, "paced", env={"PACELINE_LEASE_TTL_S": "1"}, steps=STEPS, max_failures=0, config=CONFIG)
    with fault_table.trying("driver paused, its run taken over, woken") as trial:
        first = script.started()
        try:
            script.await_lines(line, first)
            time.sleep(delay_s)
            first.send_signal(signal.SIGSTOP)
            at = time.time()
            deadline = time.monotonic() + 30
            while (code := script.lived()) != 0:
                assert code == 1, script.said
                assert "is being written by" in script.said
                assert time.monotonic() < deadline, "its lease never lapsed"
            oracle.assert_same(script.path, expected, weights=oracle.weights_of(script.path))
        finally:
            first.send_signal(signal.SIGCONT)
        assert first.wait(60) == 1, script.said
        assert "was taken over by process" in script.said
        oracle.assert_same(script.path, expected, weights=oracle.weights_of(script.path))
        trial.seconds = (first_report_since(script.path, at + 1) or at) - at


DRIVER = f"""
import sys, threading
sys.path.insert(0, {str(Path(__file__).parent)!r})
import cloudpickle
import oracle
from pathlib import Path
from paceline.train import DataParallelTrainer, RunHeldError

cloudpickle.register_pickle_by_value(oracle)

def waiting(config):
    \"\"\"Begins when the other was refused: until then the run is held.\"\"\"
    while not Path(config["refused"]).exists():
        threading.Event().wait(0.002)
    return oracle.small(config)

print("ready", flush=True)
for line in sys.stdin:
    directory = line.strip()
    refused = Path(directory) / "refused"
    try:
        trainer = oracle.trainer_of(DataParallelTrainer, waiting, directory, config={{"refused": str(refused)}})
        trainer.fit()
        print("won", flush=True)
    except RunHeldError as error:
        refused.touch()
        print("refused" if "is being written by process" in str(error) else error, flush=True)
"""


def test_of_two_drivers_at_the_same_instant_one_trains_and_the_other_is_told_who(
    tmp_path, temporary, undisturbed, fault_table
):
    race(tmp_path, undisturbed, fault_table, 2)


@pytest.mark.chaos
def test_of_two_drivers_at_the_same_instant_many_times_one_trains(
    tmp_path, temporary, undisturbed, fault_table, request
):
    race(tmp_path, undisturbed, fault_table, max(1, round(20 * request.config.getoption("--chaos-scale"))))


def race(tmp_path, undisturbed, fault_table, num_rounds):
    expected = undisturbed(DataParallelTrainer, oracle.small)
    (tmp_path / "driver.py").write_text(DRIVER)
    command = [sys.executable, "driver.py"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with (
        subprocess.Popen(command, cwd=tmp_path, **pipes) as one,
        subprocess.Popen(command, cwd=tmp_path, **pipes) as other,
    ):
        assert (one.stdout.readline(), other.stdout.readline()) == ("ready\n", "ready\n")
        for number in range(num_rounds):
            with fault_table.trying("two drivers started at the same instant"):
                directory = tmp_path / f"round-{number}"
                directory.mkdir()
                for process in (one, other):
                    process.stdin.write(f"{directory}\n")
                one.stdin.flush()
                other.stdin.flush()
                answers = sorted([one.stdout.readline(), other.stdout.readline()])
                assert answers == ["refused\n", "won\n"], f"round {number}"
                oracle.assert_same(directory / "run", expected)
        one.stdin.close()
        other.stdin.close()
