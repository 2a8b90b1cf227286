"""Two drivers of one run: one that was paused and wakes up too late, and two that are started at the same instant."""

import contextlib
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


@pytest.mark.slow
@pytest.mark.seeds(5)
def test_a_driver_paused_at_a_random_moment_is_followed_and_does_no_harm_when_it_wakes(
    tmp_path, temporary, seed, undisturbed, fault_table
):
    expected = undisturbed(DataParallelTrainer, oracle.small, STEPS)
    dice = random.Random(f"leases {seed}")
    line, delay_s = dice.randint(2, 2 * STEPS - 10), dice.uniform(0, 0.01)
    gate = tmp_path / "gate"
    config = {"pace_s": 0.01, "every": 4, "gate": str(gate)}
    script = Script(tmp_path, "paced", env={"PACELINE_LEASE_TTL_S": "1"}, steps=STEPS, max_failures=0, config=config)
    with fault_table.trying("driver paused, run taken over, driver woken") as trial:
        first = script.start()
        try:
            script.await_lines(line, first)
            time.sleep(delay_s)
            first.send_signal(signal.SIGSTOP)
            at = time.time()
            gate.touch()
            deadline = time.monotonic() + 60
            while (code := script.run()) != 0:
                assert code == 1, script.stderr
                assert "is being written by" in script.stderr
                assert time.monotonic() < deadline, "its lease never lapsed"
            oracle.assert_same(script.path, expected, weights=oracle.weights_of(script.path))
        finally:
            first.send_signal(signal.SIGCONT)
        assert first.wait(60) == 1, script.stderr
        assert "was taken over by process" in script.stderr
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


@pytest.mark.parametrize("num_rounds", [2, pytest.param(20, marks=pytest.mark.chaos)])
def test_of_two_drivers_at_the_same_instant_one_trains_and_the_other_is_refused(
    tmp_path, temporary, num_rounds, undisturbed, fault_table
):
    expected = undisturbed(DataParallelTrainer, oracle.small)
    (tmp_path / "driver.py").write_text(DRIVER)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with contextlib.ExitStack() as stack:
        command = [sys.executable, "driver.py"]
        drivers = [stack.enter_context(subprocess.Popen(command, cwd=tmp_path, **pipes)) for _ in range(2)]
        assert [driver.stdout.readline() for driver in drivers] == ["ready\n"] * 2
        for number in range(num_rounds):
            with fault_table.trying("two drivers started at the same instant"):
                directory = tmp_path / f"round-{number}"
                directory.mkdir()
                for driver in drivers:
                    driver.stdin.write(f"{directory}\n")
                for driver in drivers:
                    driver.stdin.flush()
                assert sorted(driver.stdout.readline() for driver in drivers) == ["refused\n", "won\n"]
                oracle.assert_same(directory / "run", expected)
