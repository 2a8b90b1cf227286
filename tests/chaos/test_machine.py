"""What the machine does to a run: memory that is gone, and a clock that somebody sets."""

import contextlib
import os
import random
import time
from pathlib import Path

import oracle
import pytest

from paceline import train
from paceline._control.events import HangSuspected
from paceline._core.system import SystemClock
from paceline.testing import At, Faults
from paceline.train import DataParallelTrainer, RunHeldError, WorkerGroupError
from paceline.train.driver.run_spec import RunEnvironment
from processes import inside, small_memory, use_up_memory

OOM = "worker killed by the kernel, out of memory"


@pytest.fixture
def small_group(fault_table):
    with contextlib.ExitStack() as stack:
        try:
            path = stack.enter_context(inside(stack.enter_context(small_memory(1 << 30))))
        except OSError as problem:
            fault_table.skip(OOM, f"no control group can be made here ({problem.strerror})")
        yield path


def hungry(config):
    """`small`, one rank of which takes all memory there is, once."""
    model = oracle.Descent(config)
    once, rank = Path(config["once"]), train.get_context().get_world_rank()
    while model.step < config["steps"]:
        loss = model.advance()
        if rank == config["rank"] and model.step == config["at"] and not once.exists():
            once.touch()
            use_up_memory(Path(config["group"]))
        oracle.report(model.step, loss, model.state)
    return model.weights


@pytest.mark.slow
@pytest.mark.seeds(100)
def test_a_worker_that_the_kernel_kills_is_reported_as_out_of_memory_and_replaced(tmp_path, seed, small_group, survive):
    dice = random.Random(f"memory {seed}")
    once, rank = tmp_path / "once", dice.choice((0, 1))
    config = {"group": str(small_group), "once": str(once), "rank": rank, "at": dice.randint(2, 7)}
    with survive(OOM, Faults(), hungry, config=config) as (path, trial):
        assert oracle.causes(path) == [(rank, "memory")]
        trial.seconds = oracle.seconds_to_next_report(path, once.stat().st_mtime)


class SetClock(SystemClock):
    """Somebody sets it, now and then, by up to an hour to either side. What only moves forward stays as it is."""

    def __init__(self, seed):
        self._dice = random.Random(f"clock {seed}")
        self._by_s = 0.0

    def wall(self):
        if self._dice.random() < 0.3:
            self._by_s = self._dice.uniform(-3600, 3600)
        return super().wall() + self._by_s


def unsteady(config):
    """`small` in a worker whose wall clock is set in every step."""
    real, dice = time.time, random.Random(f"worker clock {os.getpid()}")
    model = oracle.Descent(config)
    try:
        while model.step < config["steps"]:
            by_s = dice.uniform(-3600, 3600)
            time.time = lambda by_s=by_s: real() + by_s
            loss = model.advance()
            oracle.report(model.step, loss, model.state)
    finally:
        time.time = real
    return model.weights


CLOCK = "driver and worker clocks shifted by up to an hour, rank killed"


@pytest.mark.seeds(10)
def test_a_run_does_not_mind_its_clock_being_set(seed, survive):
    dice = random.Random(f"jumps {seed}")
    faults = Faults(seed=seed).kill(dice.choice((0, 1)), At("step", dice.randint(3, 8)))
    with survive(CLOCK, faults, unsteady, clock=SetClock(seed), hang_timeout_s=30) as (path, trial):
        assert [kind for _, kind in oracle.causes(path)] == ["killed"]
        assert oracle.history(path, HangSuspected) == []
        trial.seconds = None


@pytest.mark.seeds(5)
def test_the_newest_checkpoint_is_not_the_one_with_the_latest_time(tmp_path, temporary, seed, undisturbed, fault_table):
    """Also where the journal is gone, and only the manifests tell."""
    expected = undisturbed(DataParallelTrainer, oracle.small)
    with fault_table.trying("clock shifted by up to an hour, journal lost"):
        trainer = oracle.trainer_of(DataParallelTrainer, oracle.small, tmp_path, max_failures=0, num_to_keep=3)
        trainer = trainer.replace_arguments(environment=RunEnvironment(clock=SetClock(seed)))
        with pytest.raises(WorkerGroupError):
            Faults().kill(seed % 2, ("step", 7)).applied_to(trainer).fit()
        (tmp_path / "run" / "journal.jsonl").unlink()
        result = trainer.fit()
        assert oracle.reports(result.path, 0) == expected.reports[0]
        assert result.return_value == expected.weights


class ClockOff(SystemClock):
    def __init__(self, by_s):
        self._by_s = by_s

    def wall(self):
        return super().wall() + self._by_s


def contested(config):
    """`small`, beside which two drivers with clocks that are an hour off ask for the run."""
    for by_s in (-3600, 3600):
        trainer = oracle.trainer_of(DataParallelTrainer, print, config["path"])
        trainer = trainer.replace_arguments(environment=RunEnvironment(clock=ClockOff(by_s)))
        with pytest.raises(RunHeldError, match="is being written by process"):
            trainer.fit()
    return oracle.small(config)


@pytest.mark.parametrize("clock", [None, pytest.param(SetClock(7), marks=pytest.mark.chaos)], ids=["steady", "set"])
def test_a_driver_whose_clock_is_set_keeps_its_run(tmp_path, clock, survive):
    config = {"path": str(tmp_path)}
    with survive("second driver with a clock one hour off", Faults(), contested, clock=clock, config=config):
        pass
