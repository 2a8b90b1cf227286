"""The machine is taken away at random moments: all ranks stop at one report, and the script, run again, ends as one
that nothing happened to, without a step made twice.
"""

import os
import random
import signal
import time

import oracle
import psutil
import pytest
from lives import Script, first_report_since

from paceline._control.events import Reported
from paceline.train import DataParallelTrainer, Result
from processes import still_running
from written_runs import read_events

STEPS = 40
PREEMPTED = 75


def notify(script, process, whom, signum):
    """Send the notice to the driver, to one rank or to the whole job, as a scheduler does."""
    if whom == "driver":
        process.send_signal(signum)
    elif whom == "all":
        job = psutil.Process(process.pid)
        for each in [job, *job.children(recursive=True)]:
            each.send_signal(signum)
    else:
        os.kill(script.await_pid(whom, process), signum)


def count_reports(path):
    """How many reports each rank made, over all lives of the run."""
    ranks = [event.rank for event in read_events(path, Reported)]
    return [ranks.count(rank) for rank in (0, 1)]


@pytest.fixture
def gate(tmp_path):
    """Closed in the first life of a run: it does not get to its end before the notice."""
    return tmp_path / "gate"


@pytest.mark.seeds(60, few=2)
def test_a_run_preempted_at_a_random_moment_loses_no_step(
    tmp_path, temporary, seed, gate, undisturbed, fault_table, processes_in
):
    expected = undisturbed(DataParallelTrainer, oracle.small, STEPS)
    dice = random.Random(f"notices {seed}")
    whom, signum = dice.choice((0, 1, "driver", "all")), dice.choice((signal.SIGTERM, signal.SIGUSR1))
    line, delay_s = dice.randint(1, 2 * STEPS - 20), dice.uniform(0, 0.02)
    config = {"pace_s": 0.01, "every": STEPS, "gate": str(gate)}
    script = Script(tmp_path, "paced", steps=STEPS, max_failures=0, config=config)
    who = f"rank {whom}" if isinstance(whom, int) else {"all": "the whole job"}.get(whom, whom)
    with fault_table.trying(f"{signal.Signals(signum).name} to {who}") as trial:
        process = script.start()
        script.await_lines(line, process)
        time.sleep(delay_s)
        at = time.time()
        notify(script, process, whom, signum)
        assert process.wait(60) == PREEMPTED, script.stderr
        assert "was preempted after" in script.stderr
        assert "Traceback" not in script.stderr
        assert still_running(processes_in(tmp_path), within_s=oracle.GONE_WITHIN_S) == []
        stopped = [seq for rank in (0, 1) for seq, _ in oracle.reports(script.path, rank)[-1:]]
        assert len(set(stopped)) == 1, "all at one report"
        assert Result.from_path(script.path).checkpoint.to_dict()["step"] == stopped[0], "with a checkpoint there"

        gate.touch()
        again = time.time()
        assert script.run() == 0, script.stderr
        oracle.assert_same(script.path, expected)
        assert count_reports(script.path) == [STEPS, STEPS], "none is made twice"
        trial.seconds = first_report_since(script.path, again) - at
        trial.lost = "nothing, and no step is repeated"


@pytest.mark.slow
@pytest.mark.seeds(6)
def test_a_preemption_too_short_for_a_save_keeps_the_one_before(
    tmp_path, temporary, seed, gate, undisturbed, fault_table
):
    expected = undisturbed(DataParallelTrainer, oracle.small, STEPS)
    dice = random.Random(f"short notices {seed}")
    whom, past = dice.choice((0, 1, "driver", "all")), dice.randint(2, 8)
    script = Script(
        tmp_path,
        "paced",
        faults="Faults().slow_write('*state.bin', delay_s=0.6)",
        env={"PACELINE_PREEMPTION_GRACE_S": "0.3"},
        steps=STEPS,
        max_failures=0,
        config={"pace_s": 0.01, "every": 10, "gate": str(gate)},
    )
    with fault_table.trying("preemption notice shorter than a save") as trial:
        process = script.start()
        # Two are ready, two times ten reports and two parts of a checkpoint later it is committed.
        script.await_lines(1 + 2 + 20 + 2 + 1 + past, process)
        at = time.time()
        notify(script, process, whom, signal.SIGTERM)
        assert process.wait(60) == PREEMPTED, script.stderr
        checkpoint = Result.from_path(script.path).checkpoint
        checkpoint.verify()
        saved_step = checkpoint.to_dict()["step"]
        assert saved_step % 10 == 0, "a save that could not finish was not begun"
        assert saved_step >= 10

        gate.touch()
        again = time.time()
        assert script.run() == 0, script.stderr
        oracle.assert_same(script.path, expected)
        trial.seconds = first_report_since(script.path, again) - at
