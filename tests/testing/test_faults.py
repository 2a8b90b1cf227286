"""Faults on real processes, and what a `Faults` is as a value. Kills are swept in tests/chaos."""

import errno
import os
import pickle
import signal
import subprocess
import sys
import time

import cloudpickle
import pytest

from paceline import train
from paceline._control.events import WorkerFailed
from paceline._control.retry_policy import first_failure
from paceline.testing import At, Faults
from paceline.train import Checkpoint, DataParallelTrainer, FailureConfig, PreemptionError, RunConfig, ScalingConfig
from written_runs import read_events

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Workers cannot import the modules of a test.


def count(config):
    last = train.get_checkpoint()
    step = last.to_dict()["step"] if last is not None else 0
    while step < config["steps"]:
        step += 1
        checkpoint = Checkpoint.from_dict({"step": step, "data": b"x" * 4096}) if step % 2 == 0 else None
        train.report(
            {"step": step}, checkpoint=checkpoint, checkpoint_upload_mode=train.CheckpointUploadMode(config["mode"])
        )
    return step


def trainer(path, steps=6, mode="SYNC", max_failures=3):
    return DataParallelTrainer(
        count,
        train_loop_config={"steps": steps, "mode": mode},
        scaling_config=ScalingConfig(2),
        run_config=RunConfig(name="run", storage_path=path, failure_config=FailureConfig(max_failures=max_failures)),
    )


def failures(path):
    return [event.failure for event in read_events(path / "run", WorkerFailed)]


def test_a_value_is_not_changed_by_its_methods_and_pickles():
    faults = Faults(seed=7)
    more = faults.kill(1, at=("upload", 3)).lose_driver(after="Committed").corrupt("state.bin")
    assert faults.all == ()
    assert len(more.all) == 3
    assert pickle.loads(pickle.dumps(more)) == more
    assert str(more) == (
        "rank 1 killed in upload 3; driver killed after Committed 1; state.bin of the first checkpoint: flip"
    )


def test_a_moment_may_be_given_in_four_ways():
    moments = ["upload", ("upload", 3), At("upload", 3, call=2), 3]
    ats = [Faults().kill(0, at=moment).all[0].at for moment in moments]
    assert ats == [At("upload"), At("upload", 3), At("upload", 3, 2), At("report", 3)]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: Faults().kill(0, at="lunch"), "at must be one of spawn, import, .* got 'lunch'"),
        (lambda: Faults().kill(0, at=1.5), "at must be a phase, .* got 1.5"),
        (lambda: At("step", call=0), "call must be a positive integer, got 0"),
        (lambda: Faults().hang(0, how="badly"), "how must be 'asleep', 'stopped' or 'gil', got 'badly'"),
        (lambda: Faults().drop("Report"), "message must be 'WorkerReady', 'Reported', "),
        (lambda: Faults().fail_write(error=100000), "error must be a number of `errno`, .* got 100000"),
        (lambda: Faults().slow_write(), "needs delay_s or bytes_per_s"),
        (lambda: Faults().corrupt(how="eaten"), "how must be 'flip', 'truncate' or 'zero', got 'eaten'"),
    ],
)
def test_a_wrong_argument_is_refused_where_it_is_given(wrong, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        wrong()


def test_the_trainer_that_faults_are_applied_to_is_left_as_it_was(tmp_path):
    plain = trainer(tmp_path)
    before = dict(vars(plain))
    assert Faults().kill(0).applied_to(plain) is not plain
    assert vars(plain) == before


@pytest.mark.parametrize("elsewhere", [False, True])
def test_unfired_faults_are_listed_and_fired_ones_can_be_remembered_elsewhere(tmp_path, elsewhere):
    memory = tmp_path / ("memory" if elsewhere else "run")
    faults = Faults(remember_in=memory if elsewhere else None).kill(1, at=("step", 4)).kill(0, at=("step", 99))
    result = faults.applied_to(trainer(tmp_path)).fit()
    assert [str(fault) for fault, _ in faults.fired(result.path)] == ["rank 1 killed in step 4"]
    assert [str(fault) for fault in faults.unfired(result.path)] == ["rank 0 killed in step 99"]
    assert [path.parent for path in tmp_path.rglob("faults.jsonl")] == [memory]


@pytest.mark.parametrize(("mode", "at_byte"), [("SYNC", None), ("SYNC", 0), ("ASYNC", 1000)])
def test_a_full_disk_under_one_upload_is_a_storage_failure_that_a_restart_survives(tmp_path, mode, at_byte):
    faults = Faults().fail_write("*rank_1/state.bin", at_byte=at_byte)
    result = faults.applied_to(trainer(tmp_path, mode=mode)).fit()
    assert faults.unfired(result.path) == []
    assert result.metrics_dataframe["step"].tolist() == [1, 2, 3, 4, 5, 6]
    failure = first_failure(failures(tmp_path))
    assert (failure.rank, failure.kind) == (1, "storage")
    assert "No space left on device" in failure.message
    result.checkpoint.verify()


def test_a_disk_that_stays_full_ends_the_run_and_leaves_the_checkpoint_before(tmp_path):
    faults = Faults().fail_write("*checkpoint_000004/rank_*/state.bin", error=errno.EIO, times=None)
    with pytest.raises(train.TrainingFailedError, match="Input/output error") as caught:
        faults.applied_to(trainer(tmp_path, max_failures=1)).fit()
    assert caught.value.result.checkpoint.to_dict()["step"] == 2


def test_slow_writes_and_one_that_stalls_hold_up_their_reports_and_no_more(tmp_path):
    began = time.monotonic()
    faults = Faults().slow_write("*rank_0/state.bin", delay_s=0.1)
    faults = faults.stall_write("*checkpoint_000002/rank_0/state.bin", for_s=0.3)
    result = faults.applied_to(trainer(tmp_path)).fit()
    assert result.metrics == {"step": 6}
    assert time.monotonic() - began >= 0.5
    assert failures(tmp_path) == []


@pytest.mark.parametrize("rank", [1, None], ids=["worker", "driver"])
def test_a_preempted_process_gets_a_real_signal_and_the_run_stops_for_it_and_goes_on_from_there(tmp_path, rank):
    faults = Faults().preempt(rank, deadline_s=60, at=("report", 3))
    with pytest.raises(PreemptionError):
        faults.applied_to(trainer(tmp_path, steps=1_000_000)).fit()
    assert len(faults.fired(tmp_path / "run")) == 1
    assert faults.applied_to(trainer(tmp_path, steps=10)).fit().metrics["step"] >= 10


def test_a_worker_that_outstays_its_deadline_is_killed(tmp_path):
    def deaf(config):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        is_first = not os.path.exists(config["once"])
        open(config["once"], "w").close()
        train.report({})
        if is_first:
            signal.pause()

    faults = Faults().preempt(0, deadline_s=0.2, at=("step", 2))
    result = faults.applied_to(
        DataParallelTrainer(
            deaf,
            train_loop_config={"once": str(tmp_path / "once")},
            run_config=RunConfig(name="run", storage_path=tmp_path, failure_config=FailureConfig(max_failures=1)),
        )
    ).fit()
    assert result.error is None
    assert [failure.kind for failure in failures(tmp_path)] == ["killed"]


def test_a_worker_out_of_memory_is_killed_and_replaced(tmp_path):
    result = Faults().oom(1, at=("step", 2)).applied_to(trainer(tmp_path)).fit()
    assert [failure.rank for failure in failures(tmp_path)] == [1]
    assert result.metrics == {"step": 6}


SCRIPT = """
import neighbour, sys
from paceline import train
from paceline.train import Checkpoint, DataParallelTrainer, FailureConfig, RunConfig

def function(config):
    last = train.get_checkpoint()
    for i in range(last.to_dict()["i"] + 1 if last is not None else 0, config["until"]):
        train.report({"i": i}, checkpoint=Checkpoint.from_dict({"i": i}))

if __name__ == "__main__":
    config = RunConfig(name="run", storage_path="runs", failure_config=FailureConfig(max_failures=1))
    DataParallelTrainer(function, train_loop_config={"until": int(sys.argv[1])}, run_config=config).fit()
"""


def test_a_whole_script_meets_faults_and_is_run_again_after_a_lost_driver(tmp_path):
    (tmp_path / "neighbour.py").write_text("")
    (tmp_path / "script.py").write_text(SCRIPT)
    faults = ["--kill", "0@report:2", "--lose-driver", "Committed", "script.py", "4"]
    command = [sys.executable, "-m", "paceline.testing.faults", *faults]
    codes = []
    for _ in range(2):
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
        codes.append(ended.returncode)
    assert codes == [-signal.SIGKILL, 0], ended.stderr
    assert "faults: rank 0 killed in report 2; driver killed after Committed 1" in ended.stderr
    assert [failure.kind for failure in failures(tmp_path / "runs")] == ["killed"]
    assert train.Result.from_path(tmp_path / "runs" / "run").metrics == {"i": 3}


def test_an_invalid_fault_option_is_refused_with_its_format():
    command = [sys.executable, "-m", "paceline.testing.faults", "--kill", "1@lunch", "script.py"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 2
    assert "must be RANK@PHASE or RANK@PHASE:NUMBER, got '1@lunch'" in ended.stderr


def test_trainers_fitted_meanwhile_meet_faults_and_later_ones_do_not(tmp_path):
    faults = Faults().kill(0, at=("report", 1))
    with faults.applied():
        trainer(tmp_path / "meanwhile").fit()
    trainer(tmp_path / "later").fit()
    assert len(failures(tmp_path / "meanwhile")) == 1
    assert failures(tmp_path / "later") == []
