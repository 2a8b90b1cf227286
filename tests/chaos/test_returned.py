"""Death right after `report(..., checkpoint=...)` has returned: the run goes on from that checkpoint or a later one.

Every rank writes down what returned to it, in a file that outlives it, and what it began from.
"""

import random
from pathlib import Path

import oracle
import pytest
from lives import Script

from paceline.testing import At, Faults
from paceline.train import DataParallelTrainer

STEPS = 90
NUM_DEATHS = 4


def choose_moments(seed):
    """Reports that are followed by a death, and how long after each."""
    dice = random.Random(f"returned {seed}")
    return [(number * 20 - dice.randint(0, 9), dice.uniform(0, 0.05)) for number in range(1, NUM_DEATHS + 1)], dice


def assert_nothing_returned_was_lost(notes):
    """In no life did a rank begin before what had returned to any rank in the lives before."""
    files = [Path(f"{notes}-{rank}").read_text().splitlines() for rank in (0, 1)]
    lives = [_lives(lines) for lines in files]
    returned = 0
    for number in range(max(map(len, lives))):
        own = [each[number] for each in lives if number < len(each)]
        for began, _ in own:
            assert began >= returned, f"report {returned} had returned, life {number + 1} began from {began}"
        returned = max([returned, *(last for _, last in own)])
    return max(map(len, lives))


def _lives(lines):
    """Of each life of a rank: what it began from, and the last that returned to it."""
    lives = []
    for what, number in (line.split() for line in lines):
        if what == "began":
            lives.append([int(number), 0])
        else:
            lives[-1][1] = int(number)
    return lives


@pytest.mark.slow
@pytest.mark.seeds(10)
def test_a_rank_killed_after_its_report_returned(tmp_path, seed, survive):
    deaths, dice = choose_moments(seed)
    faults = Faults(seed=seed)
    for number, delay_s in deaths:
        faults = faults.kill(dice.choice((0, 1)), At("step", number + 1, delay_s=delay_s))
    config = {"notes": str(tmp_path / "notes")}
    name = "rank killed 0 to 50 ms after its report returned"
    with survive(name, faults, oracle.returning, steps=STEPS, config=config) as (_, trial):
        trial.times = NUM_DEATHS
        assert assert_nothing_returned_was_lost(config["notes"]) >= 2


@pytest.mark.seeds(25, few=0)
@pytest.mark.parametrize("both", [False, True], ids=["driver", "driver and rank"])
def test_a_driver_killed_after_a_report_returned(tmp_path, temporary, seed, both, undisturbed, fault_table):
    expected = undisturbed(DataParallelTrainer, oracle.small, STEPS)
    deaths, dice = choose_moments(seed)
    notes = tmp_path / "notes"
    config = {"notes": str(notes)}
    faults = "Faults()"
    if both:
        for number, delay_s in deaths:
            faults += f".lose_all({dice.choice((0, 1))}, at=At('step', {number + 1}, delay_s={delay_s}))"
    else:
        config |= {"driver_dies_after": [number for number, _ in deaths], "delay_s": deaths[0][1]}
    script = Script(tmp_path, "returning", faults, steps=STEPS, config=config)
    name = f"driver{' and rank' if both else ''} killed 0 to 50 ms after a report returned"
    with fault_table.trying(name) as trial:
        num_lost = script.run_until_it_ends(NUM_DEATHS)
        assert num_lost >= 1
        trial.times = num_lost
        oracle.assert_same(script.path, expected, weights=oracle.weights_of(script.path))
        assert_nothing_returned_was_lost(notes)
