"""The machine is about to be taken away: who is told, where all stop, what is kept, how the script ends."""

import itertools
import os
import signal

import pytest
from training_scripts import HEAD

from paceline import train
from paceline.train import Checkpoint, PreemptionError, Result

SCRIPT = f"""{HEAD}
import psutil

def function(config):
    last = train.get_checkpoint()
    start = last.to_dict()["i"] + 1 if last else 0
    rank = train.get_context().get_world_rank()
    for i in range(start, 400):
        if i == 20 and start == 0 and rank == config["rank"]:
            job = psutil.Process(config["driver"])
            pids = {{"driver": [job.pid], "worker": [os.getpid()]}}
            for pid in pids.get(config["whom"]) or [process.pid for process in (job, *job.children(recursive=True))]:
                os.kill(pid, config["signal"])
        train.collective.barrier()
        row = {{"i": i}}
        train.report(row, checkpoint_on_stop=lambda: Checkpoint.from_dict(row))

whom, rank, signum = sys.argv[1], *map(int, sys.argv[2:])
fit(function, config={{"whom": whom, "rank": rank, "signal": signum}})
print("complete")
"""


@pytest.mark.parametrize(
    ("whom", "rank", "signum"),
    [
        pytest.param("driver", 0, signal.SIGUSR1, marks=pytest.mark.slow),
        pytest.param("worker", 0, signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param("worker", 1, signal.SIGUSR1, marks=pytest.mark.slow),
        ("all", 1, signal.SIGTERM),  # As a scheduler sends it: to the driver, the zygote and every worker at once.
    ],
)
def test_a_notice_to_anybody_stops_all_at_one_report_and_not_a_step_is_lost(run_script, tmp_path, whom, rank, signum):
    arguments = (whom, str(rank), str(int(signum)))
    ended = run_script(SCRIPT, *arguments)
    assert ended.returncode == 75, ended.stderr
    assert "was preempted after" in ended.stderr
    assert "run the script again with the same RunConfig" in ended.stderr
    assert "Traceback" not in ended.stderr
    result = Result.from_path(tmp_path / "runs" / "run")
    stopped_at = result.metrics["i"]
    assert 20 <= stopped_at < 399
    assert result.checkpoint.to_dict() == {"i": stopped_at}, "made at the very last report"

    ended = run_script(SCRIPT, *arguments)
    assert (ended.returncode, ended.stdout) == (0, "complete\n"), ended.stderr
    rows = Result.from_path(tmp_path / "runs" / "run").metrics_dataframe["i"].tolist()
    assert rows == list(range(400)), "contiguous, each counted once, none made twice"


def test_a_notice_is_seen_by_code_that_looks_for_it_without_reporting_meanwhile(fit):
    def function():
        rank, num_looks = train.get_context().get_world_rank(), 0
        if rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        while train.get_preemption_info() is None:
            num_looks += 1
        looks = train.collective.gather(num_looks)
        train.report({"looks": looks}, checkpoint=Checkpoint.from_dict({"rank": rank}))

    first, second = fit(function).metrics["looks"]
    assert first == second


def test_all_ranks_see_the_notice_in_the_same_step_the_last(fit, tmp_path):
    def function():
        rank = train.get_context().get_world_rank()
        for i in range(10_000):
            if i == 10 + 3 * rank and rank == 1:
                os.kill(os.getpid(), signal.SIGTERM)
            train.collective.barrier()
            info = train.get_preemption_info()
            if info is not None:
                (tmp_path / f"rank_{rank}").write_text(f"{i} {info.preempted_ranks}")
                assert info.deadline_ms > 1e12
                assert len(info.preempted_node_ids) == 1
            train.report({"i": i}, checkpoint=Checkpoint.from_dict({"i": i}) if info is not None else None)

    with pytest.raises(PreemptionError) as caught:
        fit(function)
    last = caught.value.result.metrics["i"]
    assert (tmp_path / "rank_0").read_text() == (tmp_path / "rank_1").read_text() == f"{last} [1]"
    assert caught.value.result.checkpoint.to_dict() == {"i": last}
    assert isinstance(caught.value, SystemExit)
    assert isinstance(caught.value, train.TrainingFailedError)
    assert caught.value.code == 75


def test_in_this_process_a_notice_stops_at_the_next_report_and_handlers_are_given_back(fit, tmp_path):
    before = [signal.getsignal(signum) for signum in (signal.SIGTERM, signal.SIGUSR1)]

    def function():
        for i in itertools.count():  # a report does not wait for the driver: it may hear of the notice much later
            if i == 5:
                os.kill(os.getpid(), signal.SIGTERM)
            train.report({"i": i}, checkpoint_on_stop=lambda i=i: Checkpoint.from_dict({"i": i}))

    with pytest.raises(PreemptionError) as caught:
        fit(function, 0)
    result = caught.value.result
    assert result.checkpoint.to_dict() == {"i": result.metrics["i"]}
    assert [signal.getsignal(signum) for signum in (signal.SIGTERM, signal.SIGUSR1)] == before


def test_a_process_that_the_users_code_forks_ends_when_it_is_told_to(fit):
    def function():
        import multiprocessing

        child = multiprocessing.get_context("fork").Process(target=signal.pause)
        child.start()
        child.terminate()
        child.join(60)
        assert child.exitcode == -signal.SIGTERM
        return "not preempted"

    assert fit(function, 1).return_value == "not preempted"


def test_a_handler_of_the_scripts_own_is_left_alone(run_script):
    script = f"""{HEAD}
signal.signal(signal.SIGTERM, lambda *_: print("mine"))

def function(config):
    os.kill(config["driver"], signal.SIGTERM)
    train.report({{"i": 0}})

fit(function, 1)
print("complete")
"""
    ended = run_script(script)
    assert (ended.returncode, ended.stdout) == (0, "mine\ncomplete\n"), ended.stderr


def test_ctrl_c_makes_the_checkpoint_too(run_script, tmp_path):
    ended = run_script(SCRIPT, "driver", "1", str(int(signal.SIGINT)))
    assert (ended.returncode, ended.stdout) == (0, "complete\n"), ended.stderr
    result = Result.from_path(tmp_path / "runs" / "run")
    assert result.checkpoint.to_dict() == {"i": result.metrics["i"]}
    assert result.metrics["i"] < 399
