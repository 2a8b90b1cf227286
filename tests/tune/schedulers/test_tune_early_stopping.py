"""What early stopping is for: a configuration that is nearly the best, for a fraction of the epochs.

Learning curves are made of a seed: each falls to a floor of its own, at a pace of its own, with noise. Nothing runs.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from played_search import Search, curve

from paceline.tune.schedulers import ASHAScheduler, FIFOScheduler, HyperBandScheduler, TrialScheduler

TRIALS = 143
"""A round of HyperBand."""
EPOCHS = 81


@dataclass(frozen=True)
class Found:
    share: float
    """Of the epochs of all trials."""
    regret: float
    """How much better the best configuration is, in full, than the one that was best when it ended."""


def searched(make: Callable[[], TrialScheduler], seed: int) -> Found:
    chance = random.Random(seed)
    fates, in_full = {}, {}
    for number in range(TRIALS):
        floor, pace = chance.uniform(0.1, 1.0), chance.uniform(0.05, 0.5)
        losses = [floor + 2 * (1 - pace) ** epoch for epoch in range(1, EPOCHS + 1)]
        in_full[f"{number:05d}"] = losses[-1]
        fates[f"{number:05d}"] = curve([loss + chance.gauss(0, 0.01) for loss in losses])
    search = Search(make(), fates, slots=8, pick=random.Random(seed).randrange).play()
    last = {trial_id: fates[trial_id].reports[made - 1]["loss"] for trial_id, made in search.made.items()}
    best = min(last, key=lambda trial_id: float(last[trial_id]))
    return Found(sum(search.made.values()) / TRIALS / EPOCHS, in_full[best] - min(in_full.values()))


@pytest.mark.parametrize(
    "make",
    [
        lambda: ASHAScheduler(metric="loss", mode="min", max_t=81, grace_period=3, reduction_factor=3),
        lambda: HyperBandScheduler(metric="loss", mode="min", max_t=81, reduction_factor=3),
    ],
    ids=["ASHA", "HyperBand"],
)
def test_a_sixth_of_the_epochs_finds_a_loss_that_is_nearly_the_best(make: Callable[[], TrialScheduler]) -> None:
    found = [searched(make, seed) for seed in range(8)]
    assert max(one.share for one in found) < 1 / 6, found
    assert max(one.regret for one in found) < 0.05, found  # Of losses from 0.1 to 1.


def test_every_epoch_finds_the_best() -> None:
    found = searched(FIFOScheduler, 0)
    assert found.share == 1
    assert found.regret < 0.02  # The noise.
