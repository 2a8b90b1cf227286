"""Ranks, storage, callbacks and exits that hang, once: reported in time, and the run ends as an undisturbed one."""

import atexit
import multiprocessing
import random
import threading
import time
from pathlib import Path

import oracle
import pytest

from paceline import train
from paceline._control.events import HangSuspected
from paceline.testing import At, Faults
from paceline.train import Checkpoint, UserCallback
from processes import wait_until

RESTART = {"hang_timeout_s": 3.0, "hang_action": "restart"}
BOUND_S = 60.0
"""G8: a hang is told within a minute."""


@pytest.fixture
def outlast(survive):
    """The run is restarted, and ends as it should. Returns the hang that was reported, and the path."""

    def outlast(name, faults, function=oracle.small, *, since=None, **options):
        with survive(name, faults, function, **RESTART, **options) as (path, trial):
            (event,) = oracle.history(path, HangSuspected)
            began = since.stat().st_mtime if since else faults.fired(path)[0][1].at
            trial.told_s = event.failure.at - began
            assert 0 < trial.told_s < BOUND_S
            trial.seconds = oracle.seconds_to_next_report(path, began)
        return event.failure, path

    return outlast


@pytest.mark.slow
@pytest.mark.seeds(2)
@pytest.mark.parametrize("how", ["asleep", "stopped", "gil"])
def test_a_rank_that_hangs_once_is_restarted(seed, how, outlast):
    dice = random.Random(f"hangs {seed} {how}")
    rank, at = dice.choice((0, 1)), At("step", dice.randint(3, 7))
    names = {"asleep": "rank sleeps", "stopped": "rank stopped (SIGSTOP)", "gil": "rank's GIL held"}
    hang, _ = outlast(names[how], Faults(seed=seed).hang(rank, at, how))
    assert hang.rank == rank
    assert (hang.kind, f"rank {rank} " in hang.message) == ("hang", True)


def skipping(config):
    """`small` with a barrier in each step, which one rank leaves out once: it goes on to a report with a checkpoint."""
    model = oracle.Descent(config)
    once = Path(config["once"])
    rank = train.get_context().get_world_rank()
    while model.step < config["steps"]:
        loss = model.advance()
        skips = rank == config["rank"] and model.step == config["at"] and not once.exists()
        if skips:
            once.touch()
        else:
            train.collective.barrier()
        train.report({"step": model.step, "loss": loss}, checkpoint=Checkpoint.from_dict(model.state))
    return model.weights


@pytest.mark.chaos
@pytest.mark.seeds(2, few=0)
def test_a_collective_that_one_rank_skips_once(tmp_path, seed, outlast):
    dice = random.Random(f"skips {seed}")
    once = tmp_path / "once"
    config = {"once": str(once), "rank": dice.choice((0, 1)), "at": dice.randint(3, 7)}
    hang, _ = outlast("rank skips a collective", Faults(), skipping, since=once, config=config)
    assert hang.kind == "hang"


@pytest.mark.chaos
@pytest.mark.seeds(2, few=0)
def test_a_collective_of_torch_that_one_rank_never_enters(seed, outlast):
    from paceline.train.torch import TorchTrainer

    dice = random.Random(f"gloo {seed}")
    rank = dice.choice((0, 1))
    faults = Faults(seed=seed).hang(rank, At("collective", dice.randint(3, 12)))
    name, function = "rank does not enter a torch collective", oracle.batched
    hang, _ = outlast(name, faults, function, kind=TorchTrainer, clean=function)
    assert hang.rank == rank


@pytest.mark.slow
@pytest.mark.seeds(3)
def test_an_upload_that_stalls_for_ever_is_reported_and_restarted(seed, outlast):
    dice = random.Random(f"stalls {seed}")
    rank, number = dice.choice((0, 1)), dice.choice((2, 6))
    faults = Faults(seed=seed).stall_write(f".staging/*/checkpoint_{number:06d}/rank_{rank}/state.bin")
    hang, _ = outlast("upload never returns", faults)
    assert f"storing the checkpoint of report {number}" in hang.message


@pytest.mark.chaos
@pytest.mark.seeds(2, few=0)
def test_a_commit_that_stalls_is_reported_and_waited_for(seed, outlast):
    """New workers would wait for the same storage, so none are started: when it comes back, the run goes on."""
    number = random.Random(f"commits {seed}").choice((2, 6))
    faults = Faults(seed=seed).stall_write(f"checkpoint_{number:06d}", act="rename", for_s=20)
    hang, path = outlast("commit takes 20 s", faults)
    assert "for storage at" in hang.message
    assert oracle.causes(path) == [], "nobody is restarted for it"


class HangingCallback(UserCallback):
    """Blocks in one of its calls until the test releases it."""

    def __init__(self, call):
        self._calls_left = call
        self.released = threading.Event()
        self.began_at = None

    def after_report(self, run_context, metrics, checkpoint):
        self._calls_left -= 1
        if self._calls_left == 0:
            self.began_at = time.time()
            self.released.wait()


@pytest.mark.seeds(100)
def test_a_callback_that_hangs_is_named_and_dropped(seed, survive, monkeypatch, caplog):
    monkeypatch.setenv("PACELINE_CALLBACK_TIMEOUT_S", "0.2")
    callback = HangingCallback(random.Random(f"callbacks {seed}").randint(1, oracle.STEPS))
    try:
        with survive("callback hangs", Faults(), callbacks=[callback]) as (_, trial):
            (record,) = [record for record in caplog.records if "it is dropped" in record.getMessage()]
            assert "HangingCallback" in record.getMessage()
            trial.told_s = record.created - callback.began_at
            assert trial.told_s < BOUND_S
    finally:
        callback.released.set()
        wait_until(lambda: all(thread.name != "paceline-callbacks" for thread in threading.enumerate()))


def leave_thread():
    threading.Thread(target=threading.Event().wait, args=(1000,), name="prefetch").start()


def leave_process():
    multiprocessing.get_context("fork").Process(target=threading.Event().wait, args=(1000,), name="prefetch").start()


def leave_exit_handler():
    atexit.register(threading.Event().wait, 1000)


HOLDERS = {
    leave_thread: "thread 'prefetch'",
    leave_process: "process 'prefetch'",
    leave_exit_handler: "an exit handler",
}


def lingering(config):
    """`small`, after which some ranks cannot exit."""
    weights = oracle.small(config)
    if train.get_context().get_world_rank() in config["ranks"]:
        config["leave"]()
    Path(config["returned"]).touch()
    return weights


@pytest.mark.slow
@pytest.mark.seeds(100)
def test_workers_that_cannot_exit_are_named_and_killed(tmp_path, seed, survive, monkeypatch, capsys):
    monkeypatch.setenv("PACELINE_EXIT_GRACE_S", "0.2")
    dice = random.Random(f"exits {seed}")
    leave, ranks = dice.choice(list(HOLDERS)), dice.choice(((0,), (1,), (0, 1)))
    config = {"leave": leave, "ranks": ranks, "returned": str(tmp_path / "returned")}
    with survive("worker cannot exit", Faults(), lingering, config=config) as (_, trial):
        ended_at = time.time()
        lines = [line for line in capsys.readouterr().err.splitlines() if "did not exit" in line]
        assert lines
        assert all(HOLDERS[leave] in line for line in lines)
        trial.told_s = ended_at - (tmp_path / "returned").stat().st_mtime
        assert trial.told_s < BOUND_S
