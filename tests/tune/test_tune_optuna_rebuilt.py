"""A search that lost its driver suggests what it would have suggested anyway.

A sequence of ask and tell is cut at every place, a new searcher is told the first part again, and both go on.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("optuna")

import optuna

from paceline.tune.search.optuna import OptunaSearch
from paceline.tune.space import domains as tune

SPACE = {
    "x": tune.uniform(-5, 5),
    "step": tune.quniform(0.1, 2.3, 0.1),
    "log": tune.qloguniform(0.1, 50, 0.1),
    "n": tune.qlograndint(4, 400, 4),
    "object": tune.choice([("a", 1), ("b", 2), int]),
    "branch": tune.choice([{"kind": 0, "w": tune.uniform(0, 1)}, {"kind": 1, "v": tune.loguniform(1e-6, 1)}]),
    "chance": tune.sample_from(lambda spec: spec.config.x * 2),
}


def by_run(trial):
    x = trial.suggest_float("x", -5, 5)
    if trial.suggest_categorical("branch/kind", [0, 1]):
        trial.suggest_float("branch/v", 1e-6, 1, log=True)
    else:
        trial.suggest_float("branch/w", 0, 1, step=0.1)
    return {"double": 2 * x}


def loss(config):
    branch = config["branch"]
    return float(config["x"] ** 2 + (branch.get("w", 1) - 0.3) ** 2 + branch.get("v", 0))


class Driver:
    """Asks and tells a searcher, and keeps in its journal what a driver would: trials made, reported and ended."""

    def __init__(self, search):
        self.search = search
        self.lines = []
        self.running = []

    def ask(self, trial_id):
        self.lines.append(("made", trial_id, self.search.suggest(trial_id)))
        self.running.append(trial_id)

    def end(self, place, how):
        trial_id = self.running.pop(place % len(self.running))
        (config,) = (config for line, other, config in self.lines if (line, other) == ("made", trial_id))
        result = {"loss": loss(config), "size": abs(config["x"]), "training_iteration": 1}
        lines = [("reported", trial_id, result)]
        if how != "stopped":
            lines.append(("reported", trial_id, {**result, "training_iteration": 2}))
        lines.append((how, trial_id, lines[-1][2]))
        self.lines += lines
        for line in lines:
            self.tell(*line)

    def tell(self, line, trial_id, what):
        match line:
            case "made":
                self.search.rebuild(trial_id, what)
            case "reported":
                self.search.on_trial_result(trial_id, what)
            case "stopped":
                self.search.on_trial_stopped(trial_id, what)
            case _:
                self.search.on_trial_complete(trial_id, what, error=line == "failed")

    def follow(self, lines, cut):
        """Rebuild the first lines; what is suggested after them is what was suggested before."""
        for line in lines[:cut]:
            self.tell(*line)
        for line, trial_id, what in lines[cut:]:
            if line == "made":
                assert self.search.suggest(trial_id) == what, f"{trial_id} after a cut at line {cut}"
            else:
                self.tell(line, trial_id, what)


HOW = ["completed", "completed", "stopped", "completed", "failed"]


def play(driver, num_trials):
    """Trials are asked for three at a time, and end in another order than they began."""
    for number in range(num_trials):
        driver.ask(f"{number:05}")
        if len(driver.running) == 3:
            driver.end(number, HOW[number % len(HOW)])
    assert len({str(config) for line, _, config in driver.lines if line == "made"}) == num_trials
    return driver.lines


def searched(sampler, space, two=False, **arguments):
    metric, mode = (["loss", "size"], ["min", "max"]) if two else ("loss", "min")
    return OptunaSearch(space, metric, mode, sampler=sampler, **{"seed": 11, **arguments})


CASES = [
    ("tpe", SPACE, False, 14),
    ("tpe", by_run, False, 16),
    *(pytest.param(name, SPACE, True, 16, marks=pytest.mark.slow) for name in ("tpe", "nsgaiii")),
    pytest.param("gp", {"x": SPACE["x"], "branch": {"w": tune.uniform(0, 1)}}, False, 15, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("sampler", "space", "two", "trials"), CASES)
def test_a_search_cut_anywhere_continues_as_if_uncut(sampler, space, two, trials, caplog):
    lines = play(Driver(searched(sampler, space, two)), trials)
    made = [number for number, line in enumerate(lines) if line[0] == "made"]
    for cut in range(made[-1]):
        # Up to the next suggestion: what follows is what follows a later cut.
        next_made = next(number for number in made if number >= cut)
        Driver(searched(sampler, space, two)).follow(lines[: next_made + 1], cut)
    assert caplog.messages == []


@pytest.mark.slow
def test_nsgaii_generations_continue_after_a_cut():
    whole = Driver(searched("nsgaii", SPACE, two=True))
    lines = play(whole, 140)
    generations = {trial.system_attrs["NSGAIISampler:generation"] for trial in whole.search.study.trials}
    assert generations == {0, 1, 2}
    Driver(searched("nsgaii", SPACE, two=True)).follow(lines, 370)


@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from(["tpe", "qmc", "nsgaii", "random"]),
    st.integers(0, 2**40),
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from(HOW)), max_size=14),
)
def test_any_history_gives_the_same_suggestion_again(sampler, seed, history):
    first = Driver(searched(sampler, SPACE, seed=seed))
    for number, (place, how) in enumerate(history):
        first.ask(str(number))
        if place < len(first.running):
            first.end(place, how)
    again = Driver(searched(sampler, SPACE, seed=seed))
    for line in first.lines:
        again.tell(*line)
    assert again.search.suggest("next") == first.search.suggest("next")


def test_a_users_seeded_sampler_continues_after_a_cut():
    def make():
        return Driver(searched(optuna.samplers.TPESampler(seed=4), SPACE, seed=None))

    whole = make()
    whole.search._search_seed = 1
    lines = play(whole, 20)
    for cut in (0, 7, 23, 40, len(lines) - 1):
        make().follow(lines, cut)


@pytest.mark.parametrize(
    "points",
    [
        {"points_to_evaluate": [{"x": 1.0}, {"x": 2.0}, {"x": 3.0}]},
        {"points_to_evaluate": [{"x": 1.0, "y": 0.5}], "evaluated_rewards": [2.0]},
    ],
    ids=["points", "rewards"],
)
def test_points_and_rewards_are_begun_with_once(points):
    space = {"x": tune.uniform(0, 4), "y": tune.uniform(0, 1)}
    first, again = searched("tpe", space, **points), searched("tpe", space, **points)
    for number in range(2):
        again.rebuild(str(number), first.suggest(str(number)))
    for number in (2, 3):
        assert again.suggest(str(number)) == first.suggest(str(number))


def test_a_configuration_of_another_space_is_said_to_be_one(caplog):
    search = searched("tpe", {"x": tune.uniform(0, 1)})
    search.rebuild("00000", {"x": 7.0})
    (message,) = caplog.messages
    assert message.startswith("OptunaSearch cannot reproduce the configuration of trial 00000")


def test_what_was_suggested_is_not_computed_again_also_without_a_seed(monkeypatch):
    first = Driver(searched("tpe", SPACE, seed=None))
    play(first, 20)

    def never(*arguments):
        raise AssertionError("sampled")

    monkeypatch.setattr(optuna.samplers.TPESampler, "sample_relative", never)
    monkeypatch.setattr(optuna.samplers.TPESampler, "sample_independent", never)
    again = Driver(searched("tpe", SPACE, seed=None))
    for line in first.lines:
        again.tell(*line)
    before, after = ([(t.params, t.state, t.values) for t in each.search.study.trials] for each in (first, again))
    assert after == before
