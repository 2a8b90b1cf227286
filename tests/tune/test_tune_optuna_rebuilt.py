"""A search that lost its driver suggests what it would have suggested anyway.

A sequence of ask and tell is cut at every place, a new searcher is told the first part again, and both go on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("optuna")

import optuna

from paceline.tune import space as tune
from paceline.tune.search.optuna import OptunaSearch

SPACE = {
    "x": tune.uniform(-5, 5),
    "step": tune.quniform(0.1, 2.3, 0.1),
    "log": tune.qloguniform(0.1, 50, 0.1),
    "n": tune.qlograndint(4, 400, 4),
    "object": tune.choice([("a", 1), ("b", 2), int]),
    "branch": tune.choice([{"kind": 0, "w": tune.uniform(0, 1)}, {"kind": 1, "v": tune.loguniform(1e-6, 1)}]),
    "chance": tune.sample_from(lambda spec: spec.config.x * 2),
}


def by_run(trial: Any) -> dict[str, Any]:
    x = trial.suggest_float("x", -5, 5)
    if trial.suggest_categorical("branch/kind", [0, 1]):
        trial.suggest_float("branch/v", 1e-6, 1, log=True)
    else:
        trial.suggest_float("branch/w", 0, 1, step=0.1)
    return {"double": 2 * x}


def loss(config: Mapping[str, Any]) -> float:
    branch = config["branch"]
    return float(config["x"] ** 2 + (branch.get("w", 1) - 0.3) ** 2 + branch.get("v", 0))


class Kept:
    """What a driver would have in its journal: the trials in the order in which they were made, told and ended."""

    def __init__(self, search: OptunaSearch, two: bool) -> None:
        self.search = search
        self.two = two
        self.lines: list[tuple[str, str, Any]] = []
        self.running: list[str] = []

    def ask(self, trial_id: str) -> None:
        config = self.search.suggest(trial_id)
        self.lines.append(("made", trial_id, config))
        self.running.append(trial_id)

    def end(self, place: int, how: str) -> None:
        trial_id = self.running.pop(place % len(self.running))
        (config,) = (config for line, other, config in self.lines if (line, other) == ("made", trial_id))
        value = loss(config)
        result = {"loss": value, "size": abs(config["x"]), "training_iteration": 1}
        self.lines.append(("reported", trial_id, result))
        if how != "stopped":
            self.lines.append(("reported", trial_id, {**result, "training_iteration": 2}))
        self.lines.append((how, trial_id, self.lines[-1][2]))
        for line in self.lines[-2 if how == "stopped" else -3 :]:
            self.tell(*line)

    def tell(self, line: str, trial_id: str, what: Any) -> None:
        match line:
            case "made":
                self.search.rebuild(trial_id, what)
                self.running.append(trial_id)
            case "reported":
                self.search.on_trial_result(trial_id, what)
            case "completed":
                self.search.on_trial_complete(trial_id, what)
            case "stopped":
                self.search.on_trial_stopped(trial_id, what)
            case "failed":
                self.search.on_trial_complete(trial_id, what, error=True)
        if line in ("completed", "stopped", "failed") and trial_id in self.running:
            self.running.remove(trial_id)


HOW = ["completed", "completed", "stopped", "completed", "failed"]


def played(kept: Kept, begin: int, end: int) -> list[Any]:
    """Trials are asked for three at a time, and end in another order than they began."""
    for number in range(begin, end):
        kept.ask(f"{number:05}")
        if len(kept.running) == 3:
            kept.end(number, HOW[number % len(HOW)])
    return [config for line, _, config in kept.lines if line == "made"]


@pytest.fixture(autouse=True)
def one_thread(request: pytest.FixtureRequest) -> Iterator[None]:
    """The Gaussian processes are torch's, whose threads get into each other's way on a busy machine."""
    if "gp" not in request.node.name:
        yield
        return
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def searched(sampler: Any, space: Any, two: bool = False, **arguments: Any) -> OptunaSearch:
    metric, mode = (["loss", "size"], ["min", "max"]) if two else ("loss", "min")
    return OptunaSearch(space, metric, mode, sampler=sampler, **{"seed": 11, **arguments})


CASES = [
    ("tpe", SPACE, False, 18),
    *((name, SPACE, False, 12) for name in ("qmc", "nsgaii", "random")),
    *((name, SPACE, True, 16) for name in ("tpe", "nsgaiii")),
    ("tpe", by_run, False, 16),
    ("gp", {"x": SPACE["x"], "branch": {"w": tune.uniform(0, 1)}}, False, 15),
]


@pytest.mark.parametrize(("sampler", "space", "two", "trials"), CASES)
def test_a_search_cut_anywhere_goes_on_as_if_it_had_not_been(
    sampler: str, space: Any, two: bool, trials: int, caplog: pytest.LogCaptureFixture
) -> None:
    whole = Kept(searched(sampler, space, two), two)
    expected = played(whole, 0, trials)
    for cut in range(len(whole.lines)):
        again = Kept(searched(sampler, space, two), two)
        for line in whole.lines[:cut]:
            again.tell(*line)
        # What was decided next comes next; a searcher that knows as much suggests the same.
        for line, trial_id, what in whole.lines[cut:]:
            if line == "made":
                assert again.search.suggest(trial_id) == what, f"{trial_id} after a cut at line {cut}"
                break  # What follows is what follows a later cut.
            again.tell(line, trial_id, what)
    assert len({str(config) for config in expected}) == trials
    assert caplog.messages == []


def test_generations_of_nsgaii_go_on_after_a_cut() -> None:
    whole = Kept(searched("nsgaii", SPACE, two=True), two=True)
    played(whole, 0, 140)
    generations = {trial.system_attrs["NSGAIISampler:generation"] for trial in whole.search.study.trials}
    assert generations == {0, 1, 2}
    for cut in (370,):
        again = Kept(searched("nsgaii", SPACE, two=True), two=True)
        for line in whole.lines[:cut]:
            again.tell(*line)
        for line, trial_id, what in whole.lines[cut:]:
            if line == "made":
                assert again.search.suggest(trial_id) == what
            else:
                again.tell(line, trial_id, what)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**40), st.lists(st.tuples(st.integers(0, 5), st.sampled_from(HOW)), max_size=14), st.data())
def test_any_history_gives_the_same_suggestion_again(
    seed: int, history: list[tuple[int, str]], data: st.DataObject
) -> None:
    sampler = data.draw(st.sampled_from(["tpe", "qmc", "nsgaii", "random"]))
    first = Kept(searched(sampler, SPACE, seed=seed), two=False)
    for number, (place, how) in enumerate(history):
        first.ask(str(number))
        if place < len(first.running):
            first.end(place, how)
    again = Kept(searched(sampler, SPACE, seed=seed), two=False)
    for line in first.lines:
        again.tell(*line)
    assert again.search.suggest("next") == first.search.suggest("next")


def test_a_seeded_sampler_of_the_users_goes_on_too() -> None:
    whole = Kept(searched(optuna.samplers.TPESampler(seed=4), SPACE, seed=None), two=False)
    whole.search._chance = 1
    played(whole, 0, 20)
    for cut in (0, 7, 23, 40, len(whole.lines) - 1):
        again = Kept(searched(optuna.samplers.TPESampler(seed=4), SPACE, seed=None), two=False)
        for line in whole.lines[:cut]:
            again.tell(*line)
        for line, trial_id, what in whole.lines[cut:]:
            if line == "made":
                assert again.search.suggest(trial_id) == what
            else:
                again.tell(line, trial_id, what)


def test_points_are_not_begun_with_twice() -> None:
    points = [{"x": 1.0}, {"x": 2.0}, {"x": 3.0}]
    first = searched("tpe", SPACE, points_to_evaluate=points)
    configs = [first.suggest(str(number)) for number in range(2)]
    again = searched("tpe", SPACE, points_to_evaluate=points)
    for number, config in enumerate(configs):
        again.rebuild(str(number), config)
    assert again.suggest("2") == first.suggest("2")
    assert again.suggest("3") == first.suggest("3")


def test_known_results_are_told_first_again() -> None:
    known = {"points_to_evaluate": [{"x": 1.0, "y": 0.5}], "evaluated_rewards": [2.0]}
    space = {"x": tune.uniform(0, 4), "y": tune.uniform(0, 1)}
    first = searched("tpe", space, **known)
    config = first.suggest("0")
    again = searched("tpe", space, **known)
    again.rebuild("0", config)
    assert again.suggest("1") == first.suggest("1")


def test_without_a_seed_what_is_known_is_rebuilt_all_the_same() -> None:
    first = searched("tpe", SPACE, seed=None)
    config = first.suggest("0")
    again = searched("tpe", SPACE, seed=None)
    again.rebuild("0", config)
    again.on_trial_complete("0", {"loss": 1.5})
    (trial,) = again.study.trials
    assert (trial.params, trial.value) == (first.study.trials[0].params, 1.5)


def test_a_configuration_of_another_space_is_said_to_be_one(caplog: pytest.LogCaptureFixture) -> None:
    search = searched("tpe", {"x": tune.uniform(0, 1)})
    search.rebuild("00000", {"x": 7.0})
    (message,) = caplog.messages
    assert message.startswith("OptunaSearch does not recognise the configuration of trial 00000")


def test_what_was_suggested_is_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Kept(searched("tpe", SPACE), two=False)
    played(first, 0, 20)

    def never(*arguments: Any) -> None:
        raise AssertionError("sampled")

    monkeypatch.setattr(optuna.samplers.TPESampler, "sample_relative", never)
    monkeypatch.setattr(optuna.samplers.TPESampler, "sample_independent", never)
    again = Kept(searched("tpe", SPACE), two=False)
    for line in first.lines:
        again.tell(*line)
    assert len(again.search.study.trials) == 20
