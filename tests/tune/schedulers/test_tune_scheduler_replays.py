"""What holds for every scheduler that stops or pauses: it decides by what it hears, and spends few epochs."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from played_search import Search, fates, negate, replay, searches, without_reasons

from paceline.tune.schedulers import PB2, ASHAScheduler, FIFOScheduler, HyperBandScheduler, MedianStoppingRule
from paceline.tune.schedulers import PopulationBasedTraining as PBT
from paceline.tune.schedulers import PopulationBasedTrainingReplay as Replay
from paceline.tune.space.domains import sample_from, uniform

TURNS = {"time_attr": "training_iteration", "grace_period": 0, "min_samples_required": 2}
SCHEDULERS = {
    "asha": (ASHAScheduler, {"max_t": 9, "reduction_factor": 2, "brackets": 2}),
    "asha_thirds": (ASHAScheduler, {"max_t": 9, "reduction_factor": 3}),
    "hyperband": (HyperBandScheduler, {"max_t": 9}),
    "median": (MedianStoppingRule, {**TURNS, "min_time_slice": 2}),
    "median_soft": (MedianStoppingRule, {**TURNS, "min_time_slice": 2, "hard_stop": False}),
}


@pytest.mark.parametrize("name", SCHEDULERS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_scheduler_decides_the_same_again_whatever_trials_are_called_and_for_negated_values(name, data):
    kind, options = SCHEDULERS[name]

    def make(mode="min"):
        return kind(metric="loss", mode=mode, **options)

    def rename(trial_id):
        return f"x{99 - int(trial_id)}"  # In the other order.

    search = data.draw(searches(make))
    again = make()
    assert replay(again, search.calls) == search.decisions
    assert vars(again) == vars(search.scheduler)
    expected = without_reasons(search.decisions)
    renamed = [[(action, rename(trial_id)) for action, trial_id in answer] for answer in expected]
    assert without_reasons(replay(make(), search.calls, rename)) == renamed
    if name != "median_soft":
        assert without_reasons(replay(make("max"), search.calls, change=negate)) == expected


@settings(max_examples=20, deadline=None)
@given(fates())
def test_fifo_decides_nothing(planned):
    search = Search(FIFOScheduler(), planned, slots=2).play()
    assert not any(search.decisions)
    assert not FIFOScheduler.decides
    assert [*search.ended.values()].count("failed") == sum(fate.fails for fate in planned.values())


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (ASHAScheduler, {"max_t": 0}, "max_t must be a positive number, got 0"),
        (ASHAScheduler, {"max_t": 16, "grace_period": 17}, "grace_period must be at most max_t=16, got 17"),
        (ASHAScheduler, {"reduction_factor": 1}, "reduction_factor must be a number above 1, got 1"),
        (ASHAScheduler, {"brackets": 0}, "brackets must be a positive integer, got 0"),
        (ASHAScheduler, {"mode": "low"}, "mode must be 'min', 'max' or None, got 'low'"),
        (ASHAScheduler, {"metric": ["a", "b"]}, "one metric"),
        (HyperBandScheduler, {"max_t": 0}, "max_t must be a positive number, got 0"),
        (HyperBandScheduler, {"reduction_factor": 0.5}, "reduction_factor must be a number above 1, got 0.5"),
        (MedianStoppingRule, {"grace_period": -1}, "grace_period must be a non-negative number, got -1"),
        (MedianStoppingRule, {"min_samples_required": 0}, "min_samples_required must be a positive integer, got 0"),
        (MedianStoppingRule, {"min_time_slice": math.inf}, "min_time_slice must be a non-negative number, got inf"),
        (PBT, {"perturbation_interval": 0}, "perturbation_interval must be a positive number, got 0"),
        (PBT, {"quantile_fraction": 0.6}, "quantile_fraction must be .* at least 0 and of at most 0.5, got 0.6"),
        (PBT, {"resample_probability": 2}, "resample_probability must be .*, got 2"),
        (PBT, {"perturbation_factors": (1.2, -0.8)}, "perturbation_factors"),
        (PBT, {"hyperparam_mutations": None}, "must name at least one hyperparameter"),
        (PBT, {"hyperparam_mutations": {"a": {"lr": "x"}}}, r"\['a/lr'\] must be a list of options, .*, got 'x'"),
        (PBT, {"hyperparam_mutations": {"lr": []}}, "must have at least one option"),
        (PBT, {"hyperparam_mutations": {"lr": [1, uniform(0, 1)]}}, "must be plain values"),
        (PBT, {"hyperparam_mutations": {"lr": sample_from(lambda spec: 1)}}, "must be something to draw from again"),
        (PB2, {"hyperparam_bounds": None}, "hyperparam_bounds must be a dict"),
        (PB2, {"hyperparam_bounds": {"lr": 0.1}}, r"hyperparam_bounds\['lr'\] must be a list"),
        (PB2, {"hyperparam_bounds": {"lr": [0, math.inf]}}, "two finite numbers"),
        (PB2, {"hyperparam_bounds": {"lr": [1.0, 0.0]}}, "the lowest value below the highest"),
        *((Replay, {"policy_file": policy}, "policy_file") for policy in ([], [(1, {})], [(0, {}), (0, {})], [(0, 1)])),
    ],
)
def test_bad_arguments_are_named(kind, options, message):
    fine = {} if kind is Replay else {"metric": "loss", "mode": "min"}
    fine |= {"hyperparam_mutations": {"lr": [1]}} if kind is PBT else {}
    with pytest.raises(ValueError, match=message):
        kind(**{**fine, **options})
