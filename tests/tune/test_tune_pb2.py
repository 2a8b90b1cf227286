"""Population based bandits: the model, what it chooses, and that it beats chance on a stated toy."""

import math
import random
import re

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from simulated_population import InTurns, SimulatedSearch

from paceline.tune.schedulers.gaussian_process import GaussianProcess, Kernel, maximize_upper_bound
from paceline.tune.schedulers.pb2 import PB2
from paceline.tune.schedulers.pbt import PopulationBasedTraining
from paceline.tune.schedulers.scheduler import Exploit
from paceline.tune.space.domains import uniform

BOUNDS = {"lr": [0.0, 1.0], "in": {"layers": [1, 8]}}


def pb2(**options):
    options = {"perturbation_interval": 1, "hyperparam_bounds": BOUNDS, **options}
    return PB2("training_iteration", "score", "max", **options)


def test_with_two_rows_mean_and_deviation_are_those_computed_by_hand():
    kernel = Kernel(length=0.5, forgetting=0.19, noise=0.25)
    rows, times = np.array([[0.0], [0.5]]), np.array([1.0, 2.0])
    process = GaussianProcess(rows, times, np.array([1.0, -1.0]), kernel)
    mean, deviation = process.mean_and_deviation(np.array([[0.5]]), 2.0, np.zeros((0, 1)))
    # exp(-1/2) for half a length... times 0.9 for one interval.
    near = math.exp(-0.5) * 0.9
    inverse = np.linalg.inv(np.array([[1.25, near], [near, 1.25]]))
    between = np.array([near, 1.0])
    assert mean[0] == pytest.approx(between @ inverse @ np.array([1.0, -1.0]), rel=1e-6)
    assert deviation[0] == pytest.approx(math.sqrt(1 - between @ inverse @ between), rel=1e-6)


def test_what_is_pending_makes_certain_and_not_likely():
    process = GaussianProcess(np.array([[0.2]]), np.array([1.0]), np.array([1.0]), Kernel(0.2, 0.0, 0.01))
    points = np.array([[0.2], [0.8]])
    mean, deviation = process.mean_and_deviation(points, 2.0, np.zeros((0, 1)))
    same, certain = process.mean_and_deviation(points, 2.0, np.array([[0.8]]))
    assert np.allclose(mean, same)
    assert certain[1] < 0.2 < deviation[1]


def test_it_finds_the_length_and_the_forgetting_behind_what_it_sees():
    generator = np.random.default_rng(1)
    rows = generator.random((80, 1))
    smooth = np.sin(3 * rows[:, 0])
    assert GaussianProcess.fit(rows, np.arange(80.0), smooth).kernel.forgetting == 0.0
    turning = np.where(np.arange(80) < 40, 1.0, -1.0) * smooth
    assert GaussianProcess.fit(rows, np.arange(80.0), turning).kernel.forgetting > 0.0
    rough = GaussianProcess.fit(rows, np.zeros(80), np.sin(25 * rows[:, 0])).kernel
    assert rough.length <= 0.1 < GaussianProcess.fit(rows, np.zeros(80), smooth).kernel.length


def test_where_all_was_seen_it_chooses_the_best_and_does_not_go_where_others_are():
    rows = np.linspace(0, 1, 41)[:, None]
    values = -((rows[:, 0] - 0.7) ** 2)
    process = GaussianProcess.fit(rows, np.zeros(41), values)
    options = {"context": np.zeros(0), "generator": np.random.default_rng(0)}
    point = maximize_upper_bound(process, 0.0, pending=np.zeros((0, 1)), **options)
    assert point[0] == pytest.approx(0.7, abs=0.08)
    few = GaussianProcess.fit(np.array([[0.0], [0.5], [1.0]]), np.zeros(3), np.array([0.0, 0.1, 0.0]))
    crowded = maximize_upper_bound(few, 0.0, pending=np.array([[0.2], [0.25], [0.3]]), **options)
    assert abs(crowded[0] - 0.25) > 0.2
    same = GaussianProcess.fit(np.full((5, 2), 0.5), np.ones(5), np.zeros(5))
    point = maximize_upper_bound(same, 1.0, np.zeros(1), np.full((3, 2), 0.5), np.random.default_rng(0))
    assert 0.0 <= point[0] <= 1.0


def play(scheduler, seed, num_trials, slots, save_share=1.0):
    rand = random.Random(seed)
    search = SimulatedSearch(
        scheduler,
        [{} for _ in range(num_trials)],
        lambda state, config: (None, {"score": rand.choice([1.0, 2.0, -3.0, math.nan, math.inf, 0.5])}),
        state=None,
        slots=slots,
        iterations=6,
        saves=lambda trial_id, iteration: rand.random() < save_share,
    )
    search.play(rand.choice)
    return search


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 1000), st.integers(1, 6), st.integers(1, 6), st.booleans(), st.sampled_from([0.5, 1.0]))
def test_stays_within_bounds_and_replays_to_the_same_decisions(seed, num_trials, slots, synch, save_share):
    search = play(pb2(synch=synch), seed, num_trials, slots, save_share)
    for clone in search.clones():
        assert 0.0 <= clone.config["lr"] <= 1.0
        assert clone.config["in"]["layers"] in range(1, 9)
        assert type(clone.config["in"]["layers"]) is int
    assert search.replay(pb2(synch=synch)) == search.decided


def test_each_clone_says_what_is_different_and_whole_numbers_stay_whole_where_they_are_wanted():
    search = play(pb2(), seed=3, num_trials=4, slots=4)
    clone = search.clones()[-1]
    assert isinstance(clone, Exploit)
    assert clone.why.startswith(f"cloned from trial {clone.donor_id} at iteration ")
    assert re.search(r"; lr [0-9.e-]+ -> [0-9.e-]+, in/layers \d -> \d$", clone.why), clone.why
    scheduler = pb2(hyperparam_bounds={"layers": [1, 8], "rate": [0, 1]})
    drawn = scheduler.completed("00000", {"rate": 0.5})
    assert type(drawn["layers"]) is int
    assert drawn["rate"] == 0.5
    layers, rate = scheduler._bounds
    assert layers.from_share(0.5, 3) == 4
    assert rate.from_share(0.3, 0.5) == 0.3


# The toy: a score rises by what its two parameters give, a bell around a point that moves from left to right. A small
# population, so that chance finds the narrow bell seldom.


def climb(state, config):
    score, step = state
    centre = 0.3 + 0.4 * step / 60
    apart = (config["x"] - centre) ** 2 + (config["y"] - 0.8) ** 2
    score += math.exp(-apart / (2 * 0.12**2))
    return (score, step + 1), {"score": score}


def reached(scheduler, seed):
    rand = random.Random(seed)
    configs = [{"x": rand.random(), "y": rand.random()} for _ in range(4)]
    search = SimulatedSearch(scheduler, configs, climb, state=(0.0, 0), iterations=60)
    search.play(InTurns())
    return search.best_score()


@pytest.mark.slow
def test_on_the_toy_it_beats_random_mutations_which_beat_fixed_configurations():
    bounds = {"x": [0.0, 1.0], "y": [0.0, 1.0]}
    space = {name: uniform(*of) for name, of in bounds.items()}
    modelled, mutated, fixed = [], [], []
    for seed in range(8):
        options = {"metric": "score", "mode": "max", "perturbation_interval": 2, "seed": seed}
        modelled.append(reached(PB2("training_iteration", hyperparam_bounds=bounds, **options), seed))
        options["hyperparam_mutations"] = space
        mutated.append(reached(PopulationBasedTraining("training_iteration", **options), seed))
        fixed.append(reached(PopulationBasedTraining("training_iteration", quantile_fraction=0, **options), seed))
    assert sum(modelled) > 1.05 * sum(mutated), (modelled, mutated)
    assert sum(modelled) > 2 * sum(fixed), (modelled, fixed)
    assert sum(mutated) > 1.5 * sum(fixed), (mutated, fixed)
