"""`kill -9` of each rank in each phase: the run ends as one that nothing happened to."""

import random

import oracle
import pytest
from lives import sweep

from paceline.testing import PHASES, At, Faults
from paceline.testing.faults.moments import DRIVER_PHASES
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
    "commit": [At("commit", number, call) for number in (2, 4) for call in (1, 3, 5, 6)],
    "retention": [At("retention", 2, call) for call in (1, 2)],
    "data": [At("data", 1), At("data", 4)],
    "collective": [At("collective", 1), At("collective", 8), At("collective", 8, delay_s=0.0005)],
}
"""Where a phase has several; otherwise it is the first."""


def moments(phase):
    return MOMENTS.get(phase, [At(phase)])


def plant_kill(rank, at):
    faults = Faults(seed=SEED)
    if at.phase in FIRST:
        faults = faults.kill(1 - rank, FIRST[at.phase])
    return faults.kill(rank, at)


def choose_trainer(phase):
    if phase not in TORCH:
        return DataParallelTrainer, oracle.small
    from paceline.train.torch import TorchTrainer

    return TorchTrainer, oracle.batched


DICE = random.Random(SEED)
FEW = [(DICE.choice((0, 1)), DICE.choice(moments(phase))) for phase in PHASES]
FULL = [(rank, at) for phase in PHASES for at in moments(phase) for rank in (0, 1)]


@pytest.mark.parametrize(("rank", "at"), sweep(FULL, FEW), ids=str)
def test_a_run_with_any_rank_killed_anywhere_ends_as_an_undisturbed_one(rank, at, survive):
    kind, function = choose_trainer(at.phase)
    faults = plant_kill(rank, at)
    with survive(f"rank killed in {at.phase}", faults, function, kind=kind, clean=function) as (path, _):
        causes = [(fault.rank, "killed") for fault, _ in faults.fired(path)]
        assert oracle.causes(path) == causes, "the cause is named"


@pytest.mark.chaos
@pytest.mark.parametrize("phase", [phase for phase in PHASES if phase not in DRIVER_PHASES | set(TORCH)])
def test_a_run_with_both_ranks_killed_ends_as_an_undisturbed_one(phase, survive):
    """In two attempts or in one: who is first takes the other along."""
    faults = Faults(seed=SEED)
    if phase in FIRST:
        faults = faults.kill(0, FIRST[phase])
    with survive("both ranks killed in the same phase", faults.kill(0, phase).kill(1, phase)):
        pass
