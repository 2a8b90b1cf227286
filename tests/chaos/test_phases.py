"""`kill -9` of each rank in each phase: the run ends as one that nothing happened to.

The full sweep is for `make chaos`; `make test` takes one rank of each phase, drawn from a seed.
"""

import random

import oracle
import pytest

from paceline.testing import PHASES, At, Faults
from paceline.testing.faults.moments import DRIVERS_PHASES
from paceline.train import DataParallelTrainer

SEED = 20
TORCH = ("rendezvous", "data", "collective")
FIRST = {"restore": At("step", 4)}
"""What has to happen before a phase is come to."""
MOMENTS = {
    "step": [At("step", 1), At("step", 3), At("step", 4), At("step", 8), At("step", 3, delay_s=0.001)],
    "report": [At("report", 1), At("report", 4), At("report", 8)],
    "snapshot": [At("snapshot", 2), At("snapshot", 4), At("snapshot", 2, delay_s=0.0005)],
    "upload": [*(At("upload", number, call) for number in (2, 4) for call in (1, 2, 3, 4)), At("upload", 2, 3, 0.0005)],
    "commit": [At("commit", number, call) for number in (2, 4) for call in (1, 3, 5, 7)],
    "retention": [At("retention", 2, call) for call in (1, 2)],
    "data": [At("data", 1), At("data", 4)],
    "collective": [At("collective", 1), At("collective", 8), At("collective", 8, delay_s=0.0005)],
}
"""Where a phase has several; otherwise it is the first."""


def moments(phase):
    return MOMENTS.get(phase, [At(phase)])


def survive(faults, kind, function, path, undisturbed, fault_table, name):
    expected = undisturbed(kind, function)
    surroundings = oracle.Surroundings()
    with fault_table.trying(name) as trial:
        result = faults.applied_to(oracle.trainer_of(kind, function, path)).fit()
        assert faults.unfired(result.path) == []
        surroundings.assert_nothing_is_left()
        oracle.assert_same(result.path, expected)
        struck = faults.fired(result.path)
        assert oracle.causes(result.path) == [(fault.rank, "killed") for fault, _ in struck], "the cause is named"
        trial.seconds = max(
            (seconds for _, strike in struck if (seconds := oracle.seconds_to_next_report(result.path, strike))),
            default=None,
        )


def killed(rank, at):
    faults = Faults(seed=SEED)
    if at.phase in FIRST:
        faults = faults.kill(1 - rank, FIRST[at.phase])
    return faults.kill(rank, at)


def kind_for(phase):
    if phase not in TORCH:
        return DataParallelTrainer, oracle.small
    from paceline.train.torch import TorchTrainer

    return TorchTrainer, oracle.small_torch


DICE = random.Random(SEED)
REDUCED = [(DICE.choice((0, 1)), DICE.choice(moments(phase))) for phase in PHASES]
FULL = [(rank, at) for phase in PHASES for at in moments(phase) for rank in (0, 1)]


@pytest.mark.parametrize(("rank", "at"), REDUCED, ids=lambda value: str(value))
def test_a_run_with_a_rank_killed_ends_as_an_undisturbed_one(tmp_path, temporary, rank, at, undisturbed, fault_table):
    kind, function = kind_for(at.phase)
    survive(killed(rank, at), kind, function, tmp_path, undisturbed, fault_table, f"rank killed in {at.phase}")


@pytest.mark.chaos
@pytest.mark.parametrize(("rank", "at"), FULL, ids=lambda value: str(value))
def test_a_run_with_any_rank_killed_anywhere_ends_as_an_undisturbed_one(
    tmp_path, temporary, rank, at, undisturbed, fault_table
):
    kind, function = kind_for(at.phase)
    survive(killed(rank, at), kind, function, tmp_path, undisturbed, fault_table, f"rank killed in {at.phase}")


@pytest.mark.chaos
@pytest.mark.parametrize("at", [At("rendezvous"), At("collective", 1), At("collective", 4)], ids=str)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_of_a_ddp_model_killed_on_its_way_into_a_collective(
    tmp_path, temporary, rank, at, undisturbed, fault_table
):
    from paceline.train.torch import TorchTrainer

    name = f"rank killed in {at.phase}, DDP"
    survive(killed(rank, at), TorchTrainer, oracle.small_ddp, tmp_path, undisturbed, fault_table, name)


@pytest.mark.chaos
@pytest.mark.parametrize("phase", [phase for phase in PHASES if phase not in DRIVERS_PHASES | set(TORCH)])
def test_a_run_with_both_ranks_killed_ends_as_an_undisturbed_one(tmp_path, temporary, phase, undisturbed, fault_table):
    """In two attempts or in one: who is first takes the other along."""
    expected = undisturbed(DataParallelTrainer, oracle.small)
    faults = Faults(seed=SEED)
    if phase in FIRST:
        faults = faults.kill(0, FIRST[phase])
    faults = faults.kill(0, phase).kill(1, phase)
    surroundings = oracle.Surroundings()
    with fault_table.trying("both ranks killed in a phase"):
        result = faults.applied_to(oracle.trainer_of(DataParallelTrainer, oracle.small, tmp_path)).fit()
        assert faults.unfired(result.path) == []
        surroundings.assert_nothing_is_left()
        oracle.assert_same(result.path, expected)
