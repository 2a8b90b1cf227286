"""Population based training: traces computed by hand, what holds for any order of events, and what is refused."""

import math
import random
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from simulated_population import SimulatedSearch

from paceline.tune.schedulers.pbt import PopulationBasedTraining
from paceline.tune.schedulers.scheduler import Exploit, Pause, Resume
from paceline.tune.space.domains import choice, loguniform, randint, uniform
from paceline.tune.trial import Trial, TrialCheckpoint


def pbt(**options):
    chosen = {"time_attr": "training_iteration", "metric": "score", "mode": "max", "perturbation_interval": 2}
    chosen |= {"hyperparam_mutations": {"lr": uniform(0, 10)}, "perturbation_factors": (2.0, 2.0)}
    return PopulationBasedTraining(**{**chosen, "resample_probability": 0.0, **options})


class Population:
    """Trials that a scheduler hears of by hand."""

    def __init__(self, scheduler, *configs):
        self.scheduler = scheduler
        self.trials = [Trial(f"{n:05d}", config, "RUNNING") for n, config in enumerate(configs)]
        for trial in self.trials:
            scheduler.on_trial_add(trial)
            scheduler.on_trial_begin(trial)
        scheduler.on_no_more_trials()

    def report(self, number, iteration, score, *, saved=True, **more):
        trial = replace(self.trials[number], iteration=iteration)
        if saved:
            name = f"checkpoint_{iteration:06d}"
            trial = replace(trial, checkpoint=TrialCheckpoint(f"trial_{trial.trial_id}", iteration, name, iteration))
        self.trials[number] = trial
        return list(self.scheduler.on_trial_result(trial, {"training_iteration": iteration, "score": score, **more}))

    def start_clone(self, action):
        number, donor = int(action.trial_id), self.trials[int(action.donor_id)]
        assert donor.checkpoint is not None
        self.trials[number] = replace(
            self.trials[number],
            config=action.config,
            checkpoint=donor.checkpoint,
            iteration=donor.checkpoint.iteration,
            lineage=(*self.trials[number].lineage, donor.checkpoint),
        )


def two(**options):
    return Population(pbt(**options), {"lr": 1.0}, {"lr": 2.0})


def clone_of(**options):
    """What becomes of the second of two, which is worse."""
    population = two(**options)
    population.report(0, 2, 0.9)
    (action,) = population.report(1, 2, 0.1)
    return action


def test_the_worst_of_four_clones_the_best_with_a_mutated_configuration():
    four = Population(pbt(), *({"lr": float(n + 1), "fixed": n} for n in range(4)))

    def clone(trial_id, score):
        why = f"cloned from trial 00003 at iteration 2 (0.91 against {score}); lr 4 -> 8"
        return Exploit(trial_id, "00003", {"lr": 8.0, "fixed": 3}, why)

    for number, score in enumerate([0.1, 0.2, 0.3, 0.4]):
        assert four.report(number, 1, score) == [], "before the interval"
    assert four.report(3, 2, 0.91) == []
    assert four.report(1, 2, 0.5) == [clone("00001", 0.5)], "of two, one is the upper half, and this the lower"
    assert four.report(2, 2, 0.6) == [], "a quarter of three is one, and the second trial stands lower"
    assert four.report(0, 2, 0.42) == [clone("00000", 0.42)]


def test_the_interval_counts_from_the_last_one_and_for_a_clone_from_its_donors_checkpoint():
    population = two(perturbation_interval=3)
    population.report(0, 1, 0.9)
    population.report(0, 4, 0.9)  # Late; the next is due at 7, not at 6.
    population.report(1, 2, 0.1)
    (action,) = population.report(1, 3, 0.1)
    assert "at iteration 4" in action.why
    population.start_clone(action)
    assert population.report(1, 5, 0.1) == []
    assert population.report(1, 6, 0.1) == [], "it goes on from 4, where its donor was"
    assert population.report(0, 6, 0.9) == []
    (again,) = population.report(1, 7, 0.1)
    assert again.trial_id == "00001"


def test_a_custom_time_attribute_continues_in_the_clone():
    population = two(time_attr="time_total_s", perturbation_interval=10.0)
    population.report(0, 9, 0.9, time_total_s=90.0)
    (action,) = population.report(1, 2, 0.1, time_total_s=20.0)
    population.start_clone(action)
    assert population.report(1, 10, 0.1, time_total_s=21.0) == []
    assert population.report(1, 11, 0.1, time_total_s=29.9) == []
    population.report(0, 10, 0.9, time_total_s=100.0)
    assert len(population.report(1, 12, 0.1, time_total_s=30.0)) == 1


def test_a_checkpoint_is_cloned_once_it_is_committed_and_once_for_a_trial(caplog):
    population = two(burn_in_period=3)
    population.report(0, 2, 0.9)
    assert population.report(1, 2, 0.1) == [], "before the burn-in"
    population = two()
    population.report(0, 2, 0.9, saved=False)
    assert population.report(1, 2, 0.1) == []
    assert "none of the best has a committed checkpoint" in caplog.text
    population.report(0, 4, 0.9)
    (action,) = population.report(1, 4, 0.1)
    population.start_clone(action)
    population.report(1, 5, 0.1)
    assert population.report(1, 6, 0.1) == [], "from one checkpoint it goes on once"


def mutated(spec, value, **options):
    """All that becomes of a value in many clones."""
    values = set()
    for seed in range(40):
        population = Population(pbt(hyperparam_mutations={"p": spec}, seed=seed, **options), {"p": value}, {"p": value})
        population.report(0, 2, 0.9)
        values.add(population.report(1, 2, 0.1)[0].config["p"])
    return values


def test_an_option_moves_to_the_one_beside_it_and_a_number_by_a_factor_inside_its_domain():
    assert mutated(["a", "b", "c", "d"], "b") == {"a", "c"}
    assert mutated(("a", "b", "c", "d"), "d") == {"c"}
    assert mutated(choice([1, 2, 4]), 2) == {1, 4}
    assert mutated([5], 5) == {5}
    for spec, value, expected in (
        (uniform(0, 1), 0.5, {0.6, 0.4}),
        (uniform(0, 0.55), 0.5, {0.55, 0.4}),
        (randint(1, 100), 50, {60, 40}),
        (randint(1, 10), 9, {9, 7}),
        (randint(1, 100), 2, {3, 1}),  # It gets somewhere, however small it is.
        (lambda: 1, 1, {2, 1}),
        (lambda: 1.0, 10.0, {12.0, 8.0}),
    ):
        moved = mutated(spec, value, perturbation_factors=(1.2, 0.8))
        assert moved == expected
        assert {type(each) for each in moved} == {type(value)}


def test_drawn_anew_it_comes_from_where_it_came_from():
    assert mutated(["a", "b", "c", "d"], "b", resample_probability=1.0) == {"a", "b", "c", "d"}
    assert mutated(["a", "b"], "of another list") == {"a", "b"}
    drawn = mutated(loguniform(1e-3, 1e-1), 0.05, resample_probability=1.0)
    assert len(drawn) == 40
    assert all(1e-3 <= value < 1e-1 for value in drawn)
    assert re.search(r"; lr 1 -> [0-9.]+ \(drawn anew\)$", clone_of(resample_probability=1.0).why)


def test_functions_draw_the_same_again_whatever_generator_they_use():
    for function in (lambda: random.uniform(0, 1), lambda: float(np.random.uniform(0, 1))):
        options = {"hyperparam_mutations": {"lr": function}, "resample_probability": 1.0}
        configs = []
        for state in (1, 2):
            random.seed(state)
            np.random.seed(state)
            configs.append(clone_of(**options).config)
            assert random.random() == random.Random(state).random(), "the script's own generator is as it was"
        assert configs[0] == configs[1]


def test_what_a_configuration_lacks_is_drawn_when_the_trial_is_made():
    scheduler = pbt(hyperparam_mutations={"lr": uniform(0, 10), "optim": {"name": ["sgd"]}})
    first = scheduler.completed("00000", {"lr": 3.0})
    assert first == {"lr": 3.0, "optim": {"name": "sgd"}}
    drawn = [scheduler.completed(f"{n:05d}", {})["lr"] for n in range(5)]
    assert len(set(drawn)) == 5
    assert drawn == [scheduler.completed(f"{n:05d}", {})["lr"] for n in range(5)]


def test_a_function_of_the_user_has_the_last_word():
    action = clone_of(custom_explore_fn=lambda config: {**config, "lr": min(config["lr"], 1.5), "warm": True})
    assert action.config == {"lr": 1.5, "warm": True}
    assert action.why.endswith("; lr 1 -> 1.5, warm True")
    with pytest.raises(ValueError, match="custom_explore_fn must return a dict, got None"):
        clone_of(custom_explore_fn=lambda config: None)


def test_the_policy_of_a_clone_is_its_donors_up_to_the_checkpoint_and_then_its_own():
    population = two()
    for iteration in (2, 4):
        population.report(0, iteration, 0.9)
        (action,) = population.report(1, iteration, 0.1)
        population.start_clone(action)
    population.report(1, 5, 0.1)
    assert population.scheduler.policy_of("00001") == ((0, {"lr": 1.0}), (4, {"lr": 2.0}))
    assert population.scheduler.policy_of("00000") == ((0, {"lr": 1.0}),)
    with pytest.raises(ValueError, match="log_config=True"):
        pbt(log_config=False).policy_of("00000")


def test_all_wait_for_each_other_at_the_interval_and_the_last_one_lets_them_go():
    population = Population(pbt(synch=True), {"lr": 1.0}, {"lr": 2.0}, {"lr": 3.0})
    why = "waits for the others at training_iteration 2"
    assert population.report(0, 1, 0.9) == []
    assert population.report(0, 2, 0.9) == [Pause("00000", f"{why}: 1 of 3 have arrived")]
    assert population.report(2, 2, 0.1) == [Pause("00002", f"{why}: 2 of 3 have arrived")]
    resumed, cloned = population.report(1, 2, 0.5)
    assert resumed == Resume("00000")
    assert (cloned.trial_id, cloned.donor_id) == ("00002", "00000")
    assert population.report(1, 3, 0.5) == [], "the next time is at 4"
    assert isinstance(population.report(1, 4, 0.5)[0], Pause)


def test_where_others_wait_for_room_a_trial_gives_way_at_its_interval():
    scheduler = pbt()
    first, other = (Trial(f"{n:05d}", {"lr": 1.0}) for n in range(2))
    for trial in (first, other):
        scheduler.on_trial_add(trial)
    scheduler.on_no_more_trials()
    scheduler.on_trial_begin(first)

    def report(iteration, saved):
        nonlocal first
        checkpoint = TrialCheckpoint("trial_00000", saved, f"checkpoint_{saved:06d}", saved)
        first = replace(first, iteration=iteration, checkpoint=checkpoint)
        return scheduler.on_trial_result(first, {"training_iteration": iteration, "score": 0.5})

    assert report(2, saved=1) == (), "it would lose a step"
    why = "makes room for others at training_iteration 4"
    assert report(4, saved=4) == (Pause("00000", why), Resume("00000"))
    assert scheduler.choose([first, other]) is other, "the one that has come the least far"


def test_metric_mode_and_seed_come_from_the_search_and_reports_need_a_time_unless_given_otherwise():
    trial = Trial("00000", {"lr": 1.0})
    with pytest.raises(ValueError, match="trial 00000 did not report the number 'training_iteration'"):
        pbt().on_trial_result(trial, {"score": 1.0})
    assert pbt(require_attrs=False).on_trial_result(trial, {"score": 1.0}) == ()
    with pytest.raises(ValueError, match="needs a metric"):
        pbt(metric=None).on_trial_result(trial, {"training_iteration": 1})
    scheduler = pbt(metric=None, mode=None)
    assert scheduler.set_search_properties("loss", "min", seed=7)
    assert (scheduler.metric, scheduler.mode, scheduler.seed) == ("loss", "min", 7)
    assert not pbt().set_search_properties("loss", "max")
    own = pbt(seed=3)
    assert own.set_search_properties("score", "max", seed=7)
    assert own.seed == 3


MUTATIONS = {"lr": loguniform(1e-4, 1e-1), "layers": randint(1, 9), "name": [*"abc"], "in": {"p": choice([1, 2])}}


def scheduler(synch, fraction, mode):
    options = {"perturbation_interval": 1, "hyperparam_mutations": MUTATIONS, "synch": synch, "seed": 5}
    return PopulationBasedTraining("training_iteration", "score", mode, quantile_fraction=fraction, **options)


class Checked(SimulatedSearch):
    """Looks at each clone with a ranking of its own: every report is an interval, so the last scores count."""

    def __init__(self, mode, fraction, *arguments, **options):
        self.mode, self.fraction = mode, fraction
        super().__init__(*arguments, **options)

    def act(self, action):
        if isinstance(action, Exploit):
            self.check(action)
        super().act(action)

    def check(self, action):
        scores = {}
        for trial_id, trial in self.trials.items():
            if trial.last_result is not None and not trial.is_over:
                score = trial.last_result["score"] * (1 if self.mode == "max" else -1)
                scores[trial_id] = -math.inf if math.isnan(score) else score
        order = sorted(scores, key=lambda trial_id: (scores[trial_id], [-ord(c) for c in trial_id]))
        size = min(math.ceil(len(order) * self.fraction), len(order) // 2)
        assert action.trial_id not in order[len(order) - size :], "one of the best was replaced"
        assert action.donor_id in order[len(order) - size :], "the donor is none of the best"
        assert scores[action.trial_id] < scores[action.donor_id]
        assert self.trials[action.trial_id].status != "TERMINATED"
        config = action.config
        assert 1e-4 <= config["lr"] <= 1e-1
        assert config["layers"] in range(1, 9)
        assert type(config["layers"]) is int
        assert config["name"] in ("a", "b", "c")
        assert config["in"]["p"] in (1, 2)


populations = {
    "rand": st.randoms(use_true_random=False),
    "num_trials": st.integers(1, 9),
    "slots": st.integers(1, 9),
    "fraction": st.sampled_from([0.1, 0.25, 0.5]),
    "mode": st.sampled_from(["max", "min"]),
    "synch": st.booleans(),
    "save_share": st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    "fail_share": st.sampled_from([0.0, 0.0, 0.05, 0.2]),
    "most_unfinished": st.sampled_from([None, None, 1, 2, 4]),
}


def play(rand, num_trials, slots, fraction, mode, synch, save_share, fail_share, most_unfinished):
    scores = [0.0, 1.0, 1.0, 2.0, 3.5, -4.0, math.nan, math.inf]
    search = Checked(
        mode,
        fraction,
        scheduler(synch, fraction, mode),
        [{}] * num_trials,
        lambda state, config: (None, {"score": rand.choice(scores)}),
        state=None,
        slots=slots,
        iterations=6,
        saves=lambda trial_id, iteration: rand.random() < save_share,
        most_unfinished=most_unfinished,
    )
    turns = 0
    while running := search.of_status("RUNNING"):
        turns += 1
        assert turns < 3000, "the search gets nowhere"
        alive = search.of_status("RUNNING", "PAUSED", "PENDING")
        if rand.random() < fail_share:
            search.end(rand.choice(alive), has_failed=True)
        elif rand.random() < fail_share:
            search.end(rand.choice(running))
        else:
            search.report(rand.choice(running))
        search.admit()
    return search


@settings(
    max_examples=100,
    deadline=None,
    # To read a failure, add Phase.shrink: it takes minutes.
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(**populations)
def test_the_best_are_never_replaced_only_committed_ones_are_cloned_and_nobody_waits_for_ever(**options):
    search = play(**options)
    assert not search.of_status("PENDING", "PAUSED"), "nothing runs, and some wait for ever"
    assert not search.unmade, "nothing runs, and some were never made"
    again = search.replay(scheduler(options["synch"], options["fraction"], options["mode"]))
    assert again == search.decided, "told the same, it decides otherwise"
