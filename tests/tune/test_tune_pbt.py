"""Population based training against traces that were computed by hand, and what it refuses."""

import random
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from simulated_population import InTurns, SimulatedSearch

from paceline.tune.schedulers.pbt import PopulationBasedTraining
from paceline.tune.schedulers.scheduler import Exploit, Pause, Resume
from paceline.tune.space.primitives import choice, grid_search, loguniform, randint, sample_from, uniform
from paceline.tune.trial import Saved, Trial


def pbt(**about: Any) -> PopulationBasedTraining:
    chosen = {
        "time_attr": "training_iteration",
        "metric": "score",
        "mode": "max",
        "perturbation_interval": 2,
        "hyperparam_mutations": {"lr": uniform(0, 10)},
        "resample_probability": 0.0,
        "perturbation_factors": (2.0, 2.0),
        **about,
    }
    return PopulationBasedTraining(**chosen)


class Told:
    """Trials that a scheduler is told of by hand."""

    def __init__(self, scheduler: PopulationBasedTraining, *configs: dict[str, Any]) -> None:
        self.scheduler = scheduler
        self.trials = [Trial(f"{n:05d}", config, "RUNNING") for n, config in enumerate(configs)]
        for trial in self.trials:
            scheduler.on_trial_add(trial)
            scheduler.on_trial_begin(trial)
        scheduler.on_no_more_trials()

    def reports(self, number: int, iteration: int, score: float, *, saved: bool = True, **more: Any) -> list[Any]:
        trial = replace(self.trials[number], iteration=iteration)
        if saved:
            name = f"checkpoint_{iteration:06d}"
            trial = replace(trial, checkpoint=Saved(f"trial_{trial.trial_id}", iteration, name, iteration))
        self.trials[number] = trial
        return list(self.scheduler.on_trial_result(trial, {"training_iteration": iteration, "score": score, **more}))

    def becomes(self, action: Exploit) -> None:
        """The clone that was asked for begins."""
        number, donor = int(action.trial_id), self.trials[int(action.donor_id)]
        assert donor.checkpoint is not None
        self.trials[number] = replace(
            self.trials[number],
            config=action.config,
            checkpoint=donor.checkpoint,
            iteration=donor.checkpoint.iteration,
            lineage=(*self.trials[number].lineage, donor.checkpoint),
        )


def four() -> Told:
    return Told(pbt(), *({"lr": float(n + 1), "fixed": n} for n in range(4)))


def test_the_worst_of_four_goes_on_from_the_best_with_its_configuration_mutated() -> None:
    told = four()
    for number, score in enumerate([0.1, 0.2, 0.3, 0.4]):
        assert told.reports(number, 1, score) == [], "before the interval"
    assert told.reports(3, 2, 0.91) == []
    assert told.reports(1, 2, 0.5) == [
        # Two have come so far: one is the upper half, and this the lower.
        Exploit(
            "00001",
            "00003",
            {"lr": 8.0, "fixed": 3},
            "cloned from trial 00003 at iteration 2 (0.91 against 0.5); lr 4 -> 8",
        )
    ]
    assert told.reports(2, 2, 0.6) == [], "a quarter of three is one, and the second trial stands lower"
    assert told.reports(0, 2, 0.42) == [
        Exploit(
            "00000",
            "00003",
            {"lr": 8.0, "fixed": 3},
            "cloned from trial 00003 at iteration 2 (0.91 against 0.42); lr 4 -> 8",
        )
    ]


def test_with_mode_min_it_is_the_other_way_round() -> None:
    told = Told(pbt(mode="min"), {"lr": 1.0}, {"lr": 2.0})
    assert told.reports(0, 2, 0.1) == []
    (action,) = told.reports(1, 2, 0.9)
    assert (action.trial_id, action.donor_id) == ("00001", "00000")
    assert "(0.1 against 0.9)" in action.why


def test_the_interval_counts_from_the_last_one_and_for_a_clone_from_its_donors_checkpoint() -> None:
    told = Told(pbt(perturbation_interval=3), {"lr": 1.0}, {"lr": 2.0})
    told.reports(0, 1, 0.9)
    told.reports(0, 4, 0.9)  # Late; the next is due at 7, not at 6.
    told.reports(1, 2, 0.1)
    (action,) = told.reports(1, 3, 0.1)
    assert "at iteration 4" in action.why
    told.becomes(action)
    assert told.reports(1, 5, 0.1) == []
    assert told.reports(1, 6, 0.1) == [], "it goes on from 4, where its donor was"
    assert told.reports(0, 6, 0.9) == []
    (again,) = told.reports(1, 7, 0.1)
    assert again.trial_id == "00001"


def test_a_clock_of_the_trials_own_goes_on_as_it_was() -> None:
    told = Told(pbt(time_attr="time_total_s", perturbation_interval=10.0), {"lr": 1.0}, {"lr": 2.0})
    told.reports(0, 9, 0.9, time_total_s=90.0)
    (action,) = told.reports(1, 2, 0.1, time_total_s=20.0)
    told.becomes(action)
    assert told.reports(1, 10, 0.1, time_total_s=21.0) == []
    assert told.reports(1, 11, 0.1, time_total_s=29.9) == []
    told.reports(0, 10, 0.9, time_total_s=100.0)
    assert len(told.reports(1, 12, 0.1, time_total_s=30.0)) == 1


def test_before_the_burn_in_nothing_is_cloned() -> None:
    told = Told(pbt(burn_in_period=5), {"lr": 1.0}, {"lr": 2.0})
    for iteration in (2, 4):
        assert told.reports(0, iteration, 0.9) == []
        assert told.reports(1, iteration, 0.1) == []
    told.reports(0, 5, 0.9)
    assert len(told.reports(1, 5, 0.1)) == 1


def test_only_a_committed_checkpoint_is_cloned(caplog: pytest.LogCaptureFixture) -> None:
    told = Told(pbt(), {"lr": 1.0}, {"lr": 2.0})
    told.reports(0, 2, 0.9, saved=False)
    assert told.reports(1, 2, 0.1) == []
    assert "none of the best has a committed checkpoint" in caplog.text
    told.reports(0, 4, 0.9)
    assert len(told.reports(1, 4, 0.1)) == 1


def test_nothing_is_gained_from_one_that_is_no_better() -> None:
    told = Told(pbt(), {"lr": 1.0}, {"lr": 2.0})
    assert told.reports(0, 2, 0.5) == []
    assert told.reports(1, 2, 0.5) == []


def test_what_is_not_a_number_is_the_worst() -> None:
    told = Told(pbt(), {"lr": 1.0}, {"lr": 2.0})
    assert told.reports(0, 2, -1e300) == []
    (action,) = told.reports(1, 2, float("nan"))
    assert (action.trial_id, action.donor_id) == ("00001", "00000")
    told = Told(pbt(), {"lr": 1.0}, {"lr": 2.0})
    told.reports(0, 2, float("nan"))
    assert told.reports(1, 2, float("nan")) == []


@pytest.mark.parametrize("ends", ["complete", "error"])
def test_one_that_is_over_is_no_donor_since_nothing_is_left_to_train_from_there(ends: str) -> None:
    told = Told(pbt(), {"lr": 1.0}, {"lr": 2.0}, {"lr": 3.0})
    told.reports(2, 2, 0.5)
    told.reports(0, 2, 0.9)
    if ends == "complete":
        told.scheduler.on_trial_complete(replace(told.trials[0], status="TERMINATED"), {"score": 0.9})
    else:
        told.scheduler.on_trial_error(replace(told.trials[0], status="ERROR"))
    (action,) = told.reports(1, 2, 0.1)
    assert action.donor_id == "00002"


def test_from_one_checkpoint_a_trial_goes_on_once() -> None:
    told = Told(pbt(), {"lr": 1.0}, {"lr": 2.0})
    told.reports(0, 2, 0.9)
    (action,) = told.reports(1, 2, 0.1)
    told.becomes(action)
    told.reports(1, 3, 0.1)
    assert told.reports(1, 4, 0.1) == []


def test_without_a_quantile_nothing_is_cloned() -> None:
    told = Told(pbt(quantile_fraction=0), {"lr": 1.0}, {"lr": 2.0})
    told.reports(0, 2, 0.9)
    assert told.reports(1, 2, 0.1) == []


# Mutations


def mutated(spec: Any, value: Any, **about: Any) -> set[Any]:
    """All that becomes of a value in many clones."""
    found = set()
    for seed in range(40):
        told = Told(pbt(hyperparam_mutations={"p": spec}, seed=seed, **about), {"p": value}, {"p": value})
        told.reports(0, 2, 0.9)
        (action,) = told.reports(1, 2, 0.1)
        found.add(action.config["p"])
    return found


def test_an_option_moves_to_the_one_beside_it() -> None:
    assert mutated(["a", "b", "c", "d"], "b") == {"a", "c"}
    assert mutated(("a", "b", "c", "d"), "d") == {"c"}
    assert mutated(choice([1, 2, 4]), 2) == {1, 4}
    assert mutated([5], 5) == {5}


def test_a_number_moves_by_a_factor_inside_its_domain_and_a_whole_one_stays_whole() -> None:
    factors = {"perturbation_factors": (1.2, 0.8)}
    assert mutated(uniform(0, 1), 0.5, **factors) == {0.6, 0.4}
    assert mutated(uniform(0, 0.55), 0.5, **factors) == {0.55, 0.4}
    assert mutated(randint(1, 100), 50, **factors) == {60, 40}
    moved = mutated(randint(1, 10), 9, **factors)
    assert moved == {9, 7}
    assert all(type(value) is int for value in moved)
    assert mutated(randint(1, 100), 2, **factors) == {3, 1}, "it gets somewhere, however small it is"
    assert mutated(lambda: 1, 1, **factors) == {2, 1}
    assert mutated(lambda: 1.0, 10.0, **factors) == {12.0, 8.0}


def test_drawn_anew_it_comes_from_where_it_came_from() -> None:
    assert mutated(["a", "b", "c", "d"], "b", resample_probability=1.0) == {"a", "b", "c", "d"}
    assert mutated(["a", "b"], "of another list") == {"a", "b"}
    drawn = mutated(loguniform(1e-3, 1e-1), 0.05, resample_probability=1.0)
    assert len(drawn) == 40
    assert all(1e-3 <= value < 1e-1 for value in drawn)
    told = Told(pbt(resample_probability=1.0), {"lr": 1.0}, {"lr": 2.0})
    told.reports(0, 2, 0.9)
    (action,) = told.reports(1, 2, 0.1)
    assert re.search(r"; lr 1 -> [0-9.]+ \(drawn anew\)$", action.why)


def test_functions_draw_the_same_again_whatever_generator_they_use() -> None:
    for function in (lambda: random.uniform(0, 1), lambda: float(np.random.uniform(0, 1))):
        about = {"hyperparam_mutations": {"lr": function}, "resample_probability": 1.0}
        configs = []
        for state in (1, 2):
            random.seed(state)
            np.random.seed(state)
            told = Told(pbt(**about), {"lr": 1.0}, {"lr": 2.0})
            told.reports(0, 2, 0.9)
            configs.append(told.reports(1, 2, 0.1)[0].config)
            assert random.random() == random.Random(state).random(), "the script's own generator is as it was"
        assert configs[0] == configs[1]


def test_nested_hyperparameters_are_mutated_and_all_others_come_from_the_donor() -> None:
    spec = {"optim": {"lr": uniform(0, 10), "name": ["sgd", "adam"]}}
    told = Told(
        pbt(hyperparam_mutations=spec),
        {"optim": {"lr": 1.0, "name": "sgd", "eps": 1}, "seed": 0},
        {"optim": {"lr": 5.0, "name": "adam", "eps": 2}, "seed": 1},
    )
    told.reports(0, 2, 0.9)
    (action,) = told.reports(1, 2, 0.1)
    assert action.config == {"optim": {"lr": 2.0, "name": "adam", "eps": 1}, "seed": 0}
    assert action.why.endswith("; optim/lr 1 -> 2, optim/name sgd -> adam")
    assert told.trials[0].config == {"optim": {"lr": 1.0, "name": "sgd", "eps": 1}, "seed": 0}, "the donor's is left"


def test_what_a_configuration_lacks_is_drawn_when_the_trial_is_made() -> None:
    scheduler = pbt(hyperparam_mutations={"lr": uniform(0, 10), "optim": {"name": ["sgd"]}})
    first = scheduler.completed("00000", {"lr": 3.0})
    assert first == {"lr": 3.0, "optim": {"name": "sgd"}}
    drawn = [scheduler.completed(f"{n:05d}", {})["lr"] for n in range(5)]
    assert len(set(drawn)) == 5
    assert drawn == [scheduler.completed(f"{n:05d}", {})["lr"] for n in range(5)]


def test_a_function_of_the_user_has_the_last_word() -> None:
    def explore(config: dict[str, Any]) -> dict[str, Any]:
        return {**config, "lr": min(config["lr"], 1.5), "warm": True}

    told = Told(pbt(custom_explore_fn=explore), {"lr": 1.0}, {"lr": 2.0})
    told.reports(0, 2, 0.9)
    (action,) = told.reports(1, 2, 0.1)
    assert action.config == {"lr": 1.5, "warm": True}
    assert action.why.endswith("; lr 1 -> 1.5, warm True")
    told = Told(pbt(custom_explore_fn=lambda config: None), {"lr": 1.0}, {"lr": 2.0})
    told.reports(0, 2, 0.9)
    with pytest.raises(ValueError, match="custom_explore_fn returned None"):
        told.reports(1, 2, 0.1)


def test_the_policy_of_a_clone_is_its_donors_up_to_the_checkpoint_and_then_its_own() -> None:
    told = Told(pbt(), {"lr": 1.0}, {"lr": 2.0})
    told.reports(0, 2, 0.9)
    (first,) = told.reports(1, 2, 0.1)
    told.becomes(first)
    told.reports(0, 4, 0.9)
    (second,) = told.reports(1, 4, 0.1)
    told.becomes(second)
    told.reports(1, 5, 0.1)
    assert told.scheduler.policy_of("00001") == ((0, {"lr": 1.0}), (4, {"lr": 2.0}))
    assert told.scheduler.policy_of("00000") == ((0, {"lr": 1.0}),)
    with pytest.raises(ValueError, match="log_config=False"):
        pbt(log_config=False).policy_of("00000")


# Waiting


def test_all_wait_for_each_other_at_the_interval_and_the_last_one_lets_them_go() -> None:
    told = Told(pbt(synch=True), {"lr": 1.0}, {"lr": 2.0}, {"lr": 3.0})
    assert told.reports(0, 1, 0.9) == []
    assert told.reports(0, 2, 0.9) == [Pause("00000", "waits for the others at training_iteration 2: 1 of 3 are there")]
    assert told.reports(2, 2, 0.1) == [Pause("00002", "waits for the others at training_iteration 2: 2 of 3 are there")]
    resumed, cloned = told.reports(1, 2, 0.5)
    assert resumed == Resume("00000")
    assert (cloned.trial_id, cloned.donor_id) == ("00002", "00000")
    assert told.reports(1, 3, 0.5) == [], "the next time is at 4"
    assert isinstance(told.reports(1, 4, 0.5)[0], Pause)


@pytest.mark.parametrize("ends", ["complete", "error"])
def test_one_that_ends_is_waited_for_no_longer(ends: str) -> None:
    told = Told(pbt(synch=True), {"lr": 1.0}, {"lr": 2.0}, {"lr": 3.0})
    told.reports(0, 2, 0.9)
    told.reports(1, 2, 0.1)
    if ends == "complete":
        actions = told.scheduler.on_trial_complete(replace(told.trials[2], status="TERMINATED"), None)
    else:
        actions = told.scheduler.on_trial_error(replace(told.trials[2], status="ERROR"))
    assert actions[0] == Resume("00000")
    assert isinstance(actions[1], Exploit)


def test_where_others_wait_for_room_a_trial_gives_way_at_its_interval() -> None:
    scheduler = pbt()
    trials = [Trial(f"{n:05d}", {"lr": 1.0}) for n in range(2)]
    for trial in trials:
        scheduler.on_trial_add(trial)
    scheduler.on_no_more_trials()
    scheduler.on_trial_begin(trials[0])
    ran = replace(trials[0], iteration=2, checkpoint=Saved("trial_00000", 2, "checkpoint_000002", 2))
    unsaved = replace(ran, checkpoint=replace(ran.checkpoint, iteration=1))
    assert scheduler.on_trial_result(unsaved, {"training_iteration": 2, "score": 0.5}) == (), "it would lose a step"
    ran = replace(ran, iteration=4, checkpoint=Saved("trial_00000", 4, "checkpoint_000004", 4))
    why = "makes room for others at training_iteration 4"
    assert scheduler.on_trial_result(ran, {"training_iteration": 4, "score": 0.5}) == (
        Pause("00000", why),
        Resume("00000"),
    )
    assert scheduler.choose([ran, trials[1]]) is trials[1], "the one that has come the least far"


def test_a_population_larger_than_its_room_comes_forward_together() -> None:
    search = SimulatedSearch(
        pbt(perturbation_interval=5), [{"lr": float(n)} for n in range(6)], grow, state=0.0, slots=2, iterations=20
    )
    spread = 0
    pick = InTurns()
    while running := search.of_status("RUNNING"):
        search.report(pick(running))
        times = [trial.iteration for trial in search.trials.values()]
        spread = max(spread, max(times) - min(times))
    assert spread <= 10
    assert search.clones()
    assert not search.of_status("PENDING", "PAUSED")


def grow(state: float, config: Any) -> tuple[float, dict[str, Any]]:
    state += config["lr"]
    return state, {"score": state}


# What is refused


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ({"hyperparam_mutations": None}, "there is nothing to mutate"),
        ({"hyperparam_mutations": {}}, "there is nothing to mutate"),
        ({"hyperparam_mutations": {"lr": 0.1}}, r"hyperparam_mutations\['lr'\]=0.1 is not allowed"),
        ({"hyperparam_mutations": {"a": {"lr": "x"}}}, r"hyperparam_mutations\['a/lr'\]='x' is not allowed"),
        ({"hyperparam_mutations": {"lr": []}}, "is empty"),
        ({"hyperparam_mutations": {"lr": [1, uniform(0, 1)]}}, "among its options"),
        ({"hyperparam_mutations": {"lr": grid_search([1])}}, "not something to draw from again"),
        ({"hyperparam_mutations": {"lr": sample_from(lambda spec: 1)}}, "not something to draw from again"),
        ({"perturbation_interval": 0}, "perturbation_interval=0"),
        ({"burn_in_period": -1}, "burn_in_period=-1"),
        ({"quantile_fraction": 0.6}, "quantile_fraction=0.6 is not a number between 0 and 0.5"),
        ({"resample_probability": 2}, "resample_probability=2"),
        ({"perturbation_factors": (1.2, -0.8)}, "perturbation_factors"),
        ({"mode": "best"}, "mode='best'"),
        ({"time_attr": ""}, "time_attr=''"),
        ({"custom_explore_fn": 3}, "custom_explore_fn=3"),
    ],
)
def test_a_wrong_argument_is_refused_where_it_is_given(about: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pbt(**about)


def test_a_report_without_the_time_is_an_error_unless_that_is_allowed() -> None:
    trial = Trial("00000", {"lr": 1.0})
    with pytest.raises(ValueError, match="trial 00000 reported no number 'training_iteration'"):
        pbt().on_trial_result(trial, {"score": 1.0})
    assert pbt(require_attrs=False).on_trial_result(trial, {"score": 1.0}) == ()
    with pytest.raises(ValueError, match="does not know which metric is meant"):
        pbt(metric=None).on_trial_result(trial, {"training_iteration": 1})


def test_metric_mode_and_seed_come_from_the_search_unless_given() -> None:
    scheduler = pbt(metric=None, mode=None)
    assert scheduler.set_search_properties("loss", "min", seed=7)
    assert (scheduler.metric, scheduler.mode, scheduler.seed) == ("loss", "min", 7)
    assert not pbt().set_search_properties("loss", "max")
    own = pbt(seed=3)
    assert own.set_search_properties("score", "max", seed=7)
    assert own.seed == 3
