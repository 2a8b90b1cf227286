"""What the machine does to a run: memory that is gone, and a clock that somebody sets."""

import contextlib
import os
import random
from pathlib import Path

import oracle
import pytest

from paceline._control.events import HangSuspected
from paceline._core.clock import SystemClock
from paceline.testing import At, Faults
from paceline.train import DataParallelTrainer, RunHeldError, WorkerGroupError
from paceline.train.drive import Seams
from processes import small_memory

OOM = "a worker killed by the kernel, out of memory"


@pytest.fixture
def small_group(fault_table):
    with contextlib.ExitStack() as made:
        try:
            path = made.enter_context(small_memory())
        except OSError as problem:
            fault_table.skip(OOM, f"no control group can be made here ({problem.strerror})")
        yield path


def hungry(config):
    """`small`, one rank of which takes all memory there is, once."""
    model = oracle.Descent(config)
    from paceline import train

    once, rank = Path(config["once"]), train.get_context().get_world_rank()
    while model.step < config["steps"]:
        loss = model.advance()
        if rank == config["rank"] and model.step == config["at"] and not once.exists():
            once.touch()
            (Path(config["group"]) / "cgroup.procs").write_text(str(os.getpid()))
            held = []
            while True:
                held.append(os.urandom(8 << 20))
        oracle.report(model.step, loss, model.state)
    return model.weights


@pytest.mark.seeds(4)
def test_a_worker_that_the_kernel_ends_is_told_as_that_and_replaced(
    tmp_path, temporary, seed, small_group, undisturbed, fault_table
):
    expected = undisturbed(DataParallelTrainer, oracle.small)
    dice = random.Random(f"memory {seed}")
    config = {
        "group": str(small_group),
        "once": str(tmp_path / "once"),
        "rank": dice.choice((0, 1)),
        "at": dice.randint(2, 7),
    }
    surroundings = oracle.Surroundings()
    with fault_table.trying(OOM) as trial:
        result = oracle.trainer_of(DataParallelTrainer, hungry, tmp_path, config=config).fit()
        surroundings.assert_nothing_is_left()
        oracle.assert_same(result.path, expected)
        assert oracle.causes(result.path) == [(config["rank"], "memory")]
        trial.seconds = oracle.seconds_to_next_report(result.path, Path(config["once"]).stat().st_mtime)


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
    import time

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


CLOCK = "wall clock set by up to an hour, in the driver and the workers, rank killed"


@pytest.mark.seeds(10)
def test_a_run_does_not_mind_its_clock_being_set(tmp_path, temporary, seed, undisturbed, fault_table):
    expected = undisturbed(DataParallelTrainer, oracle.small)
    dice = random.Random(f"jumps {seed}")
    faults = Faults(seed=seed).kill(dice.choice((0, 1)), At("step", dice.randint(3, 8)))
    surroundings = oracle.Surroundings()
    with fault_table.trying(CLOCK):
        trainer = oracle.trainer_of(DataParallelTrainer, unsteady, tmp_path, hang_timeout_s=30)
        trainer._seams = Seams(clock=SetClock(seed))
        result = faults.applied_to(trainer).fit()
        assert faults.unfired(result.path) == []
        surroundings.assert_nothing_is_left()
        oracle.assert_same(result.path, expected)
        assert [kind for _, kind in oracle.causes(result.path)] == ["killed"]
        assert not any(isinstance(event, HangSuspected) for event in oracle.history(result.path))


@pytest.mark.seeds(5)
def test_the_newest_checkpoint_is_not_the_one_with_the_latest_time(tmp_path, temporary, seed, undisturbed, fault_table):
    """Also where the journal is gone, and only the manifests tell."""
    expected = undisturbed(DataParallelTrainer, oracle.small)
    with fault_table.trying("wall clock set by up to an hour, journal lost") as trial:
        trainer = oracle.trainer_of(DataParallelTrainer, oracle.small, tmp_path, max_failures=0, num_to_keep=3)
        trainer._seams = Seams(clock=SetClock(seed))
        with pytest.raises(WorkerGroupError):
            Faults().kill(seed % 2, ("step", 7)).applied_to(trainer).fit()
        (tmp_path / "run" / "journal.jsonl").unlink()
        result = trainer.fit()
        assert [seq for seq, _ in oracle.reports(result.path, 0)] == [7, 8], "went on from report 6"
        assert result.return_value == expected.weights
        trial.lost = "metrics of the damaged lines, up to the newest checkpoint"


class ClockOff(SystemClock):
    def __init__(self, by_s):
        self._by_s = by_s

    def wall(self):
        return super().wall() + self._by_s


def contested(config):
    """`small`, beside which two drivers with clocks that are an hour off ask for the run."""
    for by_s in (-3600, 3600):
        trainer = oracle.trainer_of(DataParallelTrainer, print, config["path"])
        trainer._seams = Seams(clock=ClockOff(by_s))
        with pytest.raises(RunHeldError, match="is being written by process"):
            trainer.fit()
    return oracle.small(config)


def test_a_driver_whose_clock_is_an_hour_off_is_refused_like_any_other(tmp_path, undisturbed, fault_table):
    expected = undisturbed(DataParallelTrainer, oracle.small)
    with fault_table.trying("a second driver whose clock is an hour off"):
        result = oracle.trainer_of(DataParallelTrainer, contested, tmp_path, config={"path": str(tmp_path)}).fit()
        oracle.assert_same(result.path, expected)


@pytest.mark.chaos
def test_a_driver_whose_clock_is_set_keeps_its_run(tmp_path, undisturbed, fault_table):
    expected = undisturbed(DataParallelTrainer, oracle.small)
    with fault_table.trying("a second driver whose clock is an hour off"):
        trainer = oracle.trainer_of(DataParallelTrainer, contested, tmp_path, config={"path": str(tmp_path)})
        trainer._seams = Seams(clock=SetClock(7))
        result = trainer.fit()
        oracle.assert_same(result.path, expected)
