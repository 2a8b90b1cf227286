"""Workers that fail, die or disagree: the error, what is kept, what is tried again."""

import os
import pickle
import re
import signal
import subprocess

import psutil
import pytest
from fits import count_up

from paceline import train
from paceline._engine.local.launchers import shared_zygote
from paceline.train import Checkpoint, ReportMismatchError, RunExistsError, WorkerGroupError
from paceline.train.torch import TorchTrainer
from processes import still_running


def test_the_error_names_rank_line_and_log_and_carries_the_exception_and_the_result(fit, capsys):
    def function():
        train.report({"i": 1}, checkpoint=Checkpoint.from_dict({"x": 5}))
        if train.get_context().get_world_rank() == 1:
            print("my last words")
            raise ValueError("loss is nan")
        train.collective.barrier()

    with pytest.raises(WorkerGroupError) as caught:
        fit(function)
    error = caught.value
    text = str(error)
    assert text.startswith("1 of 2 workers failed on attempt 1 (max_failures=0)\n")
    assert "ValueError: loss is nan" in text
    assert "test_failures.py:" in text
    assert " in function" in text
    assert "rank 0: stopped after rank 1 failed" in text
    assert "rank_1.log" in text
    assert "checkpoint_000001 (report 1)" in text
    assert list(error.worker_failures) == [1]
    assert isinstance(error.worker_failures[1], ValueError)
    assert isinstance(error.__cause__, ValueError)
    assert error.result.metrics == {"i": 1}
    assert error.result.checkpoint.to_dict() == {"x": 5}
    assert error.result.error is error
    assert pickle.loads(pickle.dumps(error)).result.metrics == {"i": 1}
    out = capsys.readouterr().out
    assert "[rank 1] my last words\n" in out, "the output of the failed rank reaches the terminal"
    assert "[rank 1] ValueError: loss is nan\n" in out


def test_a_killed_worker_restarts_the_group_from_the_very_last_report(fit):
    result = fit(count_up(6, at=3, then=lambda: os.kill(os.getpid(), signal.SIGKILL)), max_failures=1)
    assert result.metrics == {"i": 5, "start": 4}
    assert result.metrics_dataframe["i"].tolist() == [0, 1, 2, 3, 4, 5]
    assert result.checkpoint.to_dict()["i"] == 5


@pytest.mark.parametrize("mode", ["SYNC", "ASYNC"])
def test_a_failure_after_a_report_leaves_the_others_time_to_save_at_that_report(fit, tmp_path, mode):
    """Only rank 0 saves, after rank 1 was killed, or in the background while both raise."""

    def function():
        rank, last = train.get_context().get_world_rank(), train.get_checkpoint()
        if last is not None:
            train.report({"resumed": last.to_dict()["i"]})
            return
        pid_file = tmp_path / "pid"
        if rank == 1:
            train.report({"i": 1})
            pid_file.write_text(str(os.getpid()))
            os.replace(pid_file, tmp_path / "returned")
        if rank == 1 and mode == "SYNC":
            os.kill(os.getpid(), signal.SIGKILL)
        if rank == 0:
            while not (tmp_path / "returned").exists():
                pass
            while mode == "SYNC" and psutil.pid_exists(int((tmp_path / "returned").read_text())):
                pass
            state = Checkpoint.from_dict({"i": 1, "weights": bytes(16 << 20)})
            train.report({"i": 1}, checkpoint=state, checkpoint_upload_mode=mode)
        raise ValueError("after the report")

    assert fit(function, max_failures=1).metrics == {"resumed": 1}


def test_an_exception_that_comes_again_at_the_same_place_is_called_deterministic(fit, tmp_path):
    def function():
        train.report({"loss": 1.0})
        raise RuntimeError(f"again, at {id(object())}")

    with pytest.raises(WorkerGroupError, match=r"on attempt 2 of 10 .*the same place twice: it is deterministic"):
        fit(function, max_failures=9)
    assert sorted(path.name for path in (tmp_path / "run" / "logs").iterdir()) == ["attempt_1", "attempt_2"]


def test_metrics_without_a_checkpoint_are_made_again_and_counted_once(fit, tmp_path):
    died = tmp_path / "died"

    def function():
        for i in range(4):
            train.report({"i": i, "first": not died.exists()})
        if not died.exists():
            train.collective.barrier()
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    result = fit(function, max_failures=2)
    assert result.metrics_dataframe["i"].tolist() == [0, 1, 2, 3]
    assert not result.metrics_dataframe["first"].any()


def test_ranks_that_report_a_different_number_of_times_are_told_with_both_call_sites(fit):
    def function():
        rank = train.get_context().get_world_rank()
        train.report({"i": 0})
        if rank == 0:
            train.report({"i": 1}, checkpoint=Checkpoint.from_dict({"i": 1}))

    with pytest.raises(WorkerGroupError) as caught:
        fit(function, max_failures=3)
    line = str(caught.value).splitlines()[2]
    assert "rank 0 waits for every rank in report 2 with a checkpoint, called at" in line
    assert "but rank 1 returned after 1 report; the last at" in line
    assert line.count("test_failures.py:") == 2
    assert isinstance(caught.value.worker_failures[0], ReportMismatchError)
    assert "attempt 1" in str(caught.value).splitlines()[0], "a mismatch is not tried again"


def test_a_barrier_that_a_rank_never_comes_to_is_told(fit):
    def function():
        if train.get_context().get_world_rank() == 0:
            train.collective.barrier()

    with pytest.raises(WorkerGroupError, match="rank 1 has returned without it"):
        fit(function)


def test_the_death_is_the_cause_and_not_the_broken_connection_it_leaves(fit):
    def function():
        import torch
        import torch.distributed as dist

        dist.all_reduce(torch.ones(1))
        if train.get_context().get_world_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(torch.ones(1))

    for _ in range(2):
        with pytest.raises(WorkerGroupError) as caught:
            TorchTrainer(function, scaling_config={"num_workers": 2}).fit()
        assert "  rank 1" in str(caught.value).splitlines()[2]
        assert "killed by SIGKILL" in str(caught.value).splitlines()[2]


class Identity:
    def __repr__(self):
        return f"Identity({id(self)})"


def test_a_complete_run_is_not_run_again_and_one_of_another_configuration_is_refused(capsys, fit, monkeypatch):
    def function(config):
        train.report({"lr": config["lr"]}, checkpoint=Checkpoint.from_dict({}))
        if not config["is_patient"]:
            raise ValueError("no patience")

    def fit_with(if_exists=None, **config):
        config = {"optimizer": {"momentum": 0.9}, "seed": 1, **config}
        result = fit(function, 1, config=config, if_exists=if_exists)
        err = capsys.readouterr().err
        output = re.findall("train_loop_config changed since the last run: (.*)", err)
        return result.metrics, output, "has already finished" in err

    same = Identity()
    with pytest.raises(WorkerGroupError):
        fit_with(lr=0.1, is_patient=False, object=same)
    capsys.readouterr()
    changed = ["is_patient was False and is True"]
    assert fit_with(lr=0.1, is_patient=True, object=same) == ({"lr": 0.1}, changed, False)
    assert fit_with(lr=0.1, is_patient=True, object=same) == ({"lr": 0.1}, [], True)
    assert fit_with(lr=0.1, is_patient=True, object=Identity())[2], "a number in the text of an object is no change"
    changed = "optimizer.momentum was 0.9 and is 0.90000001, lr was 0.1 and is 0.2"
    other = {"lr": 0.2, "is_patient": True, "object": same, "optimizer": {"momentum": 0.90000001}}
    monkeypatch.setenv("PACELINE_VERBOSITY", "0")
    with pytest.raises(RunExistsError, match=re.escape(changed)) as refused:
        fit_with(**other)
    assert all(way in str(refused.value) for way in ("name=...", "if_exists='new'", "if_exists='resume'"))
    monkeypatch.delenv("PACELINE_VERBOSITY")
    assert fit_with("resume", **other) == ({"lr": 0.1}, [changed], True)
    many = fit_with("resume", lr=0.1, is_patient=True, object=same, **dict.fromkeys("abcdefg", 1))[1]
    assert many == [", ".join(f"{name} was None and is 1" for name in "abcde") + ", 2 more"]


def test_the_children_of_a_worker_go_with_it(fit, tmp_path):
    """A data loader's processes must not outlive the worker that started them."""
    pid_file = tmp_path / "pid"

    def function():
        child = subprocess.Popen(["sleep", "1000"])
        pid_file.write_text(str(child.pid))
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(WorkerGroupError):
        fit(function, 1)
    pid = int(pid_file.read_text())
    assert still_running([process for process in psutil.process_iter() if process.pid == pid], within_s=60) == []


def test_a_lost_zygote_is_replaced_and_the_run_goes_on(fit):
    pid = shared_zygote().pid
    result = fit(count_up(6, at=1, then=lambda: (os.kill(pid, signal.SIGKILL), signal.pause())), max_failures=1)
    assert result.metrics == {"i": 5, "start": 2}
    assert result.metrics_dataframe["i"].tolist() == list(range(6))
    assert shared_zygote().pid != pid
