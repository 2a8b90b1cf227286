"""Ranks and storage that stand still, once: told in bound, restarted, and the run ends as an undisturbed one."""

import random
from pathlib import Path

import oracle
import pytest
from lives import first_report_since

from paceline import train
from paceline._control import journal
from paceline._control.events import HangSuspected
from paceline._storage.layout import Layout
from paceline.testing import At, Faults
from paceline.train import Checkpoint, DataParallelTrainer

TIMEOUT_S = 0.5
RESTART = {"hang_timeout_s": TIMEOUT_S, "hang_action": "restart"}
BOUND_S = 60.0
"""G8: a hang is told within a minute."""


def suspicions(path):
    return [e for e in journal.read(Layout(Path(path)).journal) if isinstance(e, HangSuspected)]


def survive(faults, function, tmp_path, undisturbed, fault_table, name, config=None):
    """The run is restarted and ends as it should. Returns what was told of the hang."""
    expected = undisturbed(DataParallelTrainer, oracle.small)
    surroundings = oracle.Surroundings()
    with fault_table.trying(name) as trial:
        trainer = oracle.trainer_of(DataParallelTrainer, function, tmp_path, config=config, **RESTART)
        result = faults.applied_to(trainer).fit()
        assert faults.unfired(result.path) == []
        surroundings.assert_nothing_is_left()
        oracle.assert_same(result.path, expected)
        told = suspicions(result.path)
        assert len(told) == 1
        since = [strike.at for _, strike in faults.fired(result.path)]
        since += [Path(config["once"]).stat().st_mtime] if config else []
        assert 0 < told[0].failure.at - since[0] < BOUND_S
        trial.seconds = oracle.seconds_to_next_report(result.path, since[0])
        trial.told_s = told[0].failure.at - since[0]
    return told[0].failure


@pytest.mark.seeds(2)
@pytest.mark.parametrize("how", ["asleep", "stopped", "gil"])
def test_a_rank_that_hangs_once_is_restarted(tmp_path, temporary, seed, how, undisturbed, fault_table):
    dice = random.Random(f"hangs {seed} {how}")
    rank, at = dice.choice((0, 1)), At("step", dice.randint(3, 7))
    names = {"asleep": "a rank asleep", "stopped": "a rank stopped (SIGSTOP)", "gil": "a rank whose GIL is held"}
    faults = Faults(seed=seed).hang(rank, at, how)
    told = survive(faults, oracle.small, tmp_path, undisturbed, fault_table, names[how])
    assert told.rank == rank
    assert (told.kind, f"rank {rank} " in told.message) == ("hang", True)


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
def test_a_collective_that_one_rank_skips_once(tmp_path, temporary, seed, undisturbed, fault_table):
    dice = random.Random(f"skips {seed}")
    config = {"once": str(tmp_path / "once"), "rank": dice.choice((0, 1)), "at": dice.randint(3, 7)}
    told = survive(Faults(), skipping, tmp_path, undisturbed, fault_table, "a collective that a rank skips", config)
    assert told.kind == "hang"


@pytest.mark.chaos
@pytest.mark.seeds(2, few=0)
def test_a_collective_of_torch_that_one_rank_never_enters(tmp_path, temporary, seed, undisturbed, fault_table):
    from paceline.train.torch import TorchTrainer

    dice = random.Random(f"gloo {seed}")
    expected = undisturbed(TorchTrainer, oracle.small_torch)
    rank = dice.choice((0, 1))
    faults = Faults(seed=seed).hang(rank, At("collective", dice.randint(3, 12)))
    with fault_table.trying("a rank that does not come to a collective of torch") as trial:
        result = faults.applied_to(oracle.trainer_of(TorchTrainer, oracle.small_torch, tmp_path, **RESTART)).fit()
        oracle.assert_same(result.path, expected)
        ((_, strike),) = faults.fired(result.path)
        (told,) = suspicions(result.path)
        assert told.failure.rank == rank
        trial.told_s = told.failure.at - strike.at
        assert trial.told_s < BOUND_S
        trial.seconds = oracle.seconds_to_next_report(result.path, strike.at)


@pytest.mark.seeds(3)
def test_an_upload_that_stalls_for_ever_is_told_and_restarted(tmp_path, temporary, seed, undisturbed, fault_table):
    dice = random.Random(f"stalls {seed}")
    rank, number = dice.choice((0, 1)), dice.choice((2, 6))
    faults = Faults(seed=seed).stall_write(f".staging/*/checkpoint_{number:06d}/rank_{rank}/state.bin")
    told = survive(faults, oracle.small, tmp_path, undisturbed, fault_table, "an upload that never returns")
    assert f"storing the checkpoint of report {number}" in told.message


@pytest.mark.chaos
@pytest.mark.seeds(2, few=0)
def test_a_commit_that_stalls_is_told_and_waited_for(tmp_path, temporary, seed, undisturbed, fault_table):
    """New workers would wait for the same storage, so none are started: when it comes back, the run goes on."""
    expected = undisturbed(DataParallelTrainer, oracle.small)
    number = random.Random(f"commits {seed}").choice((2, 6))
    faults = Faults(seed=seed).stall_write(f"checkpoint_{number:06d}", act="rename", for_s=6)
    with fault_table.trying("a commit that takes 6 s") as trial:
        result = faults.applied_to(oracle.trainer_of(DataParallelTrainer, oracle.small, tmp_path, **RESTART)).fit()
        assert faults.unfired(result.path) == []
        oracle.assert_same(result.path, expected)
        (told,) = suspicions(result.path)
        assert "for storage at" in told.failure.message
        ((_, strike),) = faults.fired(result.path)
        trial.told_s = told.failure.at - strike.at
        assert trial.told_s < 6
        assert oracle.causes(result.path) == [], "nobody is restarted for it"
        trial.seconds = first_report_since(Path(result.path), strike.at) - strike.at
