"""The machine is about to be taken away: who is told, where all stop, what is kept, how the script ends."""

import os
import signal
import sys

import pytest

from paceline import train
from paceline.train import (
    Checkpoint,
    DataParallelTrainer,
    PreemptionError,
    Result,
    RunConfig,
    ScalingConfig,
)

SCRIPT = """
import os, signal, sys
from paceline import train
from paceline.train import Checkpoint, DataParallelTrainer, RunConfig, ScalingConfig

def function(config):
    last = train.get_checkpoint()
    start = last.to_dict()["i"] + 1 if last else 0
    rank = train.get_context().get_world_rank()
    for i in range(start, 400):
        if i == 20 and start == 0 and rank == config["rank"]:
            os.kill(config["driver"] if config["whom"] == "driver" else os.getpid(), config["signal"])
        train.collective.barrier()
        i_am_here = {"i": i}
        train.report(i_am_here, checkpoint_on_stop=lambda: Checkpoint.from_dict(i_am_here))

whom, rank, signum = sys.argv[1], *map(int, sys.argv[2:])
DataParallelTrainer(
    function,
    train_loop_config={"whom": whom, "rank": rank, "signal": signum, "driver": os.getpid()},
    scaling_config=ScalingConfig(2),
    run_config=RunConfig(name="run", storage_path="runs"),
).fit()
print("complete")
"""


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGUSR1])
@pytest.mark.parametrize(("whom", "rank"), [("driver", 0), ("worker", 0), ("worker", 1)])
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


def test_a_signal_to_the_whole_job_is_one_notice(run_script, tmp_path):
    # As a scheduler sends it: to the driver, the zygote and every worker at once.
    script = SCRIPT.replace(
        'os.kill(config["driver"] if config["whom"] == "driver" else os.getpid(), config["signal"])',
        """
            import psutil
            job = psutil.Process(config["driver"])
            for process in [job, *job.children(recursive=True)]:
                process.send_signal(config["signal"])
""",
    )
    assert "psutil" in script
    ended = run_script(script, "all", "1", str(int(signal.SIGTERM)))
    assert ended.returncode == 75, ended.stderr
    result = Result.from_path(tmp_path / "runs" / "run")
    assert result.checkpoint.to_dict() == {"i": result.metrics["i"]}


@pytest.fixture
def fit(tmp_path):
    def fit(function, num_workers=2):
        return DataParallelTrainer(
            function,
            scaling_config=ScalingConfig(num_workers),
            run_config=RunConfig(name="run", storage_path=tmp_path),
        ).fit()

    return fit


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
    assert caught.value.code == 75


def test_a_rank_that_is_busy_when_the_deadline_passes_is_ended_and_the_last_commit_stays(fit, tmp_path, monkeypatch):
    monkeypatch.setenv("PACELINE_PREEMPTION_GRACE_S", "0.5")

    def function():
        train.report({"i": 0}, checkpoint=Checkpoint.from_dict({"i": 0}))
        if train.get_context().get_world_rank() == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        train.collective.barrier()
        if train.get_context().get_world_rank() == 1:
            signal.pause()
        train.report({"i": 1})

    with pytest.raises(PreemptionError, match="to continue from checkpoint_000001"):
        fit(function)
    assert Result.from_path(tmp_path / "run").checkpoint.to_dict() == {"i": 0}


def test_in_this_process_a_notice_stops_at_the_next_report_and_handlers_are_given_back(fit, tmp_path):
    before = [signal.getsignal(signum) for signum in (signal.SIGTERM, signal.SIGUSR1)]

    def function():
        for i in range(1000):
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
        child.join(30)
        assert child.exitcode == -signal.SIGTERM
        return "not preempted"

    assert fit(function, 1).return_value == "not preempted"


def test_a_handler_of_the_scripts_own_is_left_alone(run_script):
    script = """
import os, signal
from paceline import train
from paceline.train import DataParallelTrainer, RunConfig

signal.signal(signal.SIGTERM, lambda *_: print("mine"))

def function(driver):
    os.kill(driver["pid"], signal.SIGTERM)
    train.report({"i": 0})

DataParallelTrainer(
    function, train_loop_config={"pid": os.getpid()}, run_config=RunConfig(name="run", storage_path="runs")
).fit()
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


@pytest.mark.skipif(sys.platform != "linux", reason="the death signal is Linux's")
def test_the_error_is_a_system_exit_and_a_training_error():
    error = PreemptionError("gone")
    assert isinstance(error, SystemExit)
    assert isinstance(error, train.TrainingFailedError)
    assert (str(error), error.code) == ("gone", 75)
