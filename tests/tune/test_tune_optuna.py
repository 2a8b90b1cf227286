"""What Optuna suggests, for which spaces, and what it is told."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

optuna = pytest.importorskip("optuna")

from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution  # noqa: E402
from optuna.trial import TrialState  # noqa: E402

from paceline.tune import space as tune  # noqa: E402
from paceline.tune.search.optuna import OptunaSearch  # noqa: E402

BY_NAME = ["tpe", "gp", "qmc", "nsgaii", "nsgaiii", "random"]


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


def searched(space: Any = None, **arguments: Any) -> OptunaSearch:
    return OptunaSearch(**{"space": space, "metric": "loss", "mode": "min", "seed": 1, **arguments})


def first(space: Any, **arguments: Any) -> Mapping[str, Any]:
    return searched(space, **arguments).suggest("0")


def a_function() -> None: ...


EVERY_DOMAIN = {
    "float": tune.uniform(-2, 3),
    "log": tune.loguniform(1e-5, 1e-1),
    "step": tune.quniform(0.1, 0.9, 0.1),
    "log step": tune.qloguniform(0.5, 64, 0.5),
    "int": tune.randint(2, 9),
    "int step": tune.qrandint(10, 50, 20),
    "log int": tune.lograndint(1, 1000),
    "log int step": tune.qlograndint(8, 512, 8),
    "option": tune.choice(["a", None, 3]),
    "object": tune.choice([a_function, (1, 2), [3], {"plain": 4}]),
    "alike": tune.choice([1, True, 1.0]),
    "constant": "as it is",
    "nested": {"deep": [tune.randint(0, 5), "fixed"]},
    "made": tune.sample_from(lambda spec: spec.config["int"] * 10),
}


def test_every_kind_of_domain_is_suggested_within_itself() -> None:
    search = searched(EVERY_DOMAIN, sampler="random")
    seen = [search.suggest(str(number)) for number in range(120)]
    for config in seen:
        assert config.keys() == EVERY_DOMAIN.keys()
        assert config["constant"] == "as it is"
        assert config["made"] == config["int"] * 10
        assert config["nested"]["deep"][1] == "fixed"
        for name in ("float", "log", "step", "log step"):
            assert type(config[name]) is float
            assert EVERY_DOMAIN[name].contains(config[name])
        for name in ("int", "int step", "log int", "log int step"):
            assert type(config[name]) is int
            assert EVERY_DOMAIN[name].contains(config[name])
    assert {config["int"] for config in seen} == {*range(2, 9)}
    assert {config["int step"] for config in seen} == {20, 40}
    assert {config["step"] for config in seen} == {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9}
    assert {config["option"] for config in seen} == {"a", None, 3}
    assert any(config["object"] is a_function for config in seen)
    assert {repr(config["object"]) for config in seen} >= {"(1, 2)", "[3]", "{'plain': 4}"}
    assert {repr(config["alike"]) for config in seen} == {"1", "True", "1.0"}
    assert sum(config["log"] < 1e-3 for config in seen) > 30
    assert sum(config["log step"] <= 4 for config in seen) > 30
    assert sum(config["log int"] < 32 for config in seen) > 30


def test_domains_are_the_distributions_they_should_be() -> None:
    search = searched(EVERY_DOMAIN)
    search.suggest("0")
    assert search.study.trials[0].distributions == {
        "float": FloatDistribution(-2, 3),
        "log": FloatDistribution(1e-5, 1e-1, log=True),
        "step": IntDistribution(1, 9),
        "log step": IntDistribution(1, 128, log=True),
        "int": IntDistribution(2, 8),
        "int step": IntDistribution(20, 40, step=20),
        "log int": IntDistribution(1, 999, log=True),
        "log int step": IntDistribution(1, 64, log=True),
        "option": CategoricalDistribution(["a", None, 3]),
        "object": CategoricalDistribution([0, 1, 2, 3]),
        "alike": CategoricalDistribution([0, 1, 2]),
        "nested/deep/0": IntDistribution(0, 4),
    }


def test_the_whole_space_may_be_a_choice() -> None:
    search = searched(tune.choice([{"x": tune.uniform(0, 1)}, {"y": tune.uniform(0, 1)}]))
    assert {" ".join(search.suggest(str(number))) for number in range(20)} == {"x", "y"}


CONDITIONAL = {
    "model": tune.choice(
        [
            {"kind": "tree", "depth": tune.randint(1, 9)},
            {"kind": "net", "width": tune.lograndint(1, 500), "act": tune.choice(["relu", tune.uniform(0, 1)])},
        ]
    ),
    "lr": tune.loguniform(1e-4, 1),
}


def test_what_is_under_a_condition_is_suggested_only_where_it_holds() -> None:
    search = searched(CONDITIONAL)
    for number in range(40):
        config = search.suggest(str(number))
        if config["model"]["kind"] == "tree":
            assert config["model"].keys() == {"kind", "depth"}
            assert search.study.trials[-1].params.keys() == {"model", "model/depth", "lr"}
        else:
            assert config["model"].keys() == {"kind", "width", "act"}
            suggested = search.study.trials[-1].params
            assert "model/width" in suggested
            assert "model/depth" not in suggested
            assert ("model/option 1/act/option 1" in suggested) == isinstance(config["model"]["act"], float)
        search.on_trial_complete(str(number), {"loss": config["lr"]})
    assert {trial.params["model"] for trial in search.study.trials} == {0, 1}


def test_a_grid_and_what_optuna_cannot_draw_are_refused_by_path() -> None:
    with pytest.raises(ValueError, match=r"space\['a'\]\['b'\] is a grid_search(.|\n)*hint: use tune.choice"):
        searched({"a": {"b": tune.grid_search([1, 2])}})
    with pytest.raises(ValueError, match=r"param_space\['x'\] is randn\(0.0, 1.0\), which Optuna has no distribution"):
        searched().set_search_properties("loss", "min", {"x": tune.randn()})


def test_optunas_distributions_may_be_the_space() -> None:
    space = {"opt/lr": FloatDistribution(1e-4, 1, log=True), "n": IntDistribution(1, 9, step=2), "data": "here"}
    config = first({**space, "kind": CategoricalDistribution(["a", "b"])})
    assert config.keys() == {"opt", "n", "data", "kind"}
    assert 1e-4 <= config["opt"]["lr"] <= 1
    assert config["n"] in (1, 3, 5, 7, 9)
    assert config["data"] == "here"
    with pytest.raises(ValueError, match="use one kind"):
        searched({**space, "x": tune.uniform(0, 1)})


def by_run(trial: Any) -> dict[str, Any]:
    if trial.suggest_categorical("kind", ["a", "b"]) == "a":
        trial.suggest_float("a/lr", 1e-4, 1, log=True)
    else:
        trial.suggest_int("b/depth", 1, 5)
    return {"constant": 7}


def test_a_function_may_be_the_space() -> None:
    search = searched(by_run)
    seen = [search.suggest(str(number)) for number in range(20)]
    assert {frozenset(config) for config in seen} == {
        frozenset({"kind", "a", "constant"}),
        frozenset({"kind", "b", "constant"}),
    }
    with pytest.raises(ValueError, match="has returned 3: it has to be a dict of constant values"):
        first(lambda trial: 3)


@pytest.mark.parametrize("space", [EVERY_DOMAIN, {"x": FloatDistribution(0, 1)}, by_run])
def test_a_copy_of_a_searcher_suggests_the_same_objects(space: Any) -> None:
    search = searched(space)
    again = copy.deepcopy(search)
    assert [search.suggest(str(n)) for n in range(9)] == [again.suggest(str(n)) for n in range(9)]


@pytest.mark.parametrize("space", [3, "lr", [("lr", 1)]])
def test_what_is_no_space_is_refused(space: Any) -> None:
    with pytest.raises(ValueError, match="is neither a dict of paceline's domains or Optuna's distributions"):
        searched(space)


def test_the_space_and_the_metric_of_the_tuner_are_taken_where_there_is_none() -> None:
    search = OptunaSearch(seed=3)
    assert search.set_search_properties("loss", "min", {"x": tune.uniform(0, 1)}, num_samples=4, seed=9)
    assert (search.metric, search.mode) == ("loss", "min")
    assert search.suggest("0") == first({"x": tune.uniform(0, 1)}, seed=3)
    unseeded = OptunaSearch()
    assert unseeded.set_search_properties("loss", "min", {"x": tune.uniform(0, 1)}, num_samples=4, seed=9)
    assert unseeded.suggest("0") == first({"x": tune.uniform(0, 1)}, seed=9)


def test_what_the_searcher_was_given_is_not_overridden() -> None:
    space = {"x": tune.uniform(0, 1)}
    with pytest.raises(ValueError, match="only one of them can be searched"):
        searched(space).set_search_properties(None, None, {"y": tune.uniform(0, 1)})
    with pytest.raises(ValueError, match="OptunaSearch has mode='min' and TuneConfig has mode='max'"):
        searched(space).set_search_properties("loss", "max", {})
    search = OptunaSearch(metric=["loss", "size"], mode=["min", "max"])
    assert search.set_search_properties("loss", "min", space)
    assert (search.metric, search.mode) == (["loss", "size"], ["min", "max"])
    assert search.suggest("0").keys() == {"x"}
    assert not search.set_search_properties("loss", "min", space)
    search = searched(space)
    assert search.set_search_properties("loss", "min", {"data": "here"})
    assert search.suggest("0").keys() == {"x", "data"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"mode": "least"}, "mode='least' has 'least': it has to be 'min' or 'max'"),
        ({"metric": ["a", "b"]}, "there has to be one mode for each metric"),
        ({"metric": ["a", "a"], "mode": ["min", "min"]}, "names a metric twice"),
        ({"metric": 3}, "metric=3 is neither a name nor a list of names"),
        ({"seed": "x"}, "seed='x' is not a whole number"),
        ({"sampler": "bayes"}, "sampler='bayes' is neither a sampler of Optuna's nor one of 'tpe'"),
        ({"sampler": 3}, "sampler=3 is neither"),
        ({"points_to_evaluate": {"x": 1}}, "is not a list of configurations"),
        ({"points_to_evaluate": [1]}, "points_to_evaluate has 1, which is not a dict"),
        ({"points_to_evaluate": [{"x": 1}], "evaluated_rewards": [1, 2]}, "one reward for each of the 1"),
    ],
)
def test_arguments_are_refused_by_name(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError) as caught:
        searched({"x": tune.uniform(0, 1)}, **arguments)
    assert said in str(caught.value)


def test_without_a_metric_or_a_space_the_first_suggestion_says_so() -> None:
    with pytest.raises(ValueError, match="metric=None and mode=None: it has to know what to search for"):
        OptunaSearch({"x": tune.uniform(0, 1)}).suggest("0")
    with pytest.raises(ValueError, match="has no space to search in"):
        OptunaSearch(metric="loss", mode="min").suggest("0")


def test_cmaes_without_its_package_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"sampler='cmaes' needs the package cmaes(.|\n)*hint: pip install cmaes"):
        searched({"x": tune.uniform(0, 1)}, sampler="cmaes")


def test_cmaes_finds_the_bottom_of_a_valley() -> None:
    pytest.importorskip("cmaes", reason="cmaes is not installed: the search with it was not checked")
    space = {"x": tune.uniform(-5, 5), "y": tune.uniform(-5, 5), "z": tune.uniform(-5, 5)}

    def best(sampler: str) -> float:
        search = searched(space, sampler=sampler)
        losses = []
        for number in range(150):
            found = search.suggest(str(number))
            assert found is not None
            losses.append((found["x"] - 1) ** 2 + (found["y"] + found["x"]) ** 2 + (found["z"] - found["y"]) ** 2)
            search.on_trial_complete(str(number), {"loss": losses[-1]})
        return min(losses)

    assert best("cmaes") < 0.05 < best("random")


def test_cmaes_takes_a_space_of_mixed_kinds() -> None:
    pytest.importorskip("cmaes", reason="cmaes is not installed: the search with it was not checked")
    minimized(searched(BOX, sampler="cmaes"), 20)


def test_cmaes_is_refused_for_several_objectives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    search = searched(BOX, sampler="cmaes", metric=["a", "b"], mode=["min", "max"])
    with pytest.raises(ValueError, match="sampler='cmaes' searches for one objective, and there are 2 metrics"):
        search.suggest("0")


@pytest.mark.parametrize("name", ["GridSampler", "BruteForceSampler"])
def test_samplers_that_end_a_study_are_refused(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sampler = (
            optuna.samplers.GridSampler({"x": [1]}) if name == "GridSampler" else optuna.samplers.BruteForceSampler()
        )
    with pytest.raises(ValueError, match=f"sampler={name} ends the study by itself"):
        searched(BOX, sampler=sampler)


BOX = {
    "x": tune.uniform(-5, 5),
    "y": tune.loguniform(1e-3, 1e3),
    "n": tune.randint(0, 20),
    "c": tune.choice(["a", "b", "c"]),
}


def loss(config: Mapping[str, Any]) -> float:
    return float(config["x"] ** 2 + abs(config["n"] - 7) + (config["c"] != "b") + abs(config["y"] - 1) ** 0.5)


def minimized(search: OptunaSearch, trials: int, function: Callable[[Any], Any] = loss) -> list[Mapping[str, Any]]:
    configs = []
    for number in range(trials):
        configs.append(search.suggest(str(number)))
        search.on_trial_complete(str(number), {"loss": function(configs[-1])})
    return configs


@pytest.mark.parametrize("sampler", BY_NAME)
def test_every_sampler_runs(sampler: str) -> None:
    space = BOX if sampler != "gp" else {"x": BOX["x"], "c": BOX["c"]}
    configs = minimized(searched(space, sampler=sampler), 16, lambda config: loss({"n": 7, "y": 1, **config}))
    assert len({str(config) for config in configs}) == 16


def test_a_sampler_of_the_users_is_used_with_its_own_seed(caplog: pytest.LogCaptureFixture) -> None:
    once = minimized(searched(BOX, sampler=optuna.samplers.TPESampler(seed=5), seed=None), 14)
    assert caplog.messages == []
    again = minimized(searched(BOX, sampler=optuna.samplers.TPESampler(seed=5), seed=6), 14)
    assert once == again
    assert caplog.messages == ["seed=6 is not used: TPESampler was made with its own"]


def test_points_come_first_and_what_they_leave_open_is_suggested() -> None:
    points = [{"x": 1.5, "c": "b"}, {"y": 0.5, "n": 3, "x": 0.0, "c": "a"}]
    search = searched(BOX, points_to_evaluate=points)
    first, second, third = (search.suggest(str(number)) for number in range(3))
    assert (first["x"], first["c"]) == (1.5, "b")
    assert first["y"] != 0.5
    assert second == {"x": 0.0, "y": 0.5, "n": 3, "c": "a"}
    assert third["x"] not in (0.0, 1.5)


def test_a_point_may_be_an_object_or_under_a_condition() -> None:
    point = {"object": (1, 2), "step": 0.3, "log step": 2.5, "log int step": 16, "alike": True, "made": -1}
    config = first(EVERY_DOMAIN, points_to_evaluate=[point])
    assert {name: config[name] for name in point} == point
    assert config["alike"] is True
    inner = {"model": {"kind": "net", "width": 7, "act": 0.25}}
    assert first(CONDITIONAL, points_to_evaluate=[inner])["model"] == inner["model"]
    assert first(by_run, points_to_evaluate=[{"kind": "b", "b": {"depth": 4}}]) == {
        "kind": "b",
        "b": {"depth": 4},
        "constant": 7,
    }


@pytest.mark.parametrize(
    ("space", "point"),
    [
        (BOX, {"z": 1}),
        (BOX, {"x": 99}),
        (BOX, {"c": "d"}),
        ({"x": FloatDistribution(0, 1)}, {"y": 1}),
        ({"x": FloatDistribution(0, 1)}, {"x": 3}),
    ],
)
def test_a_point_outside_of_the_space_is_refused(space: Any, point: Any) -> None:
    with pytest.raises(ValueError, match="points_to_evaluate"):
        searched(space, points_to_evaluate=[point]).suggest("0")


def test_rewards_are_learned_from_without_a_trial() -> None:
    points = [{"x": x, "y": 1.0, "n": 7, "c": "b"} for x in (-3.0, 0.5, 4.0)]
    search = searched(BOX, points_to_evaluate=points, evaluated_rewards=[9.0, 0.25, 16.0])
    assert search.suggest("0") not in points
    assert [trial.value for trial in search.study.trials] == [9.0, 0.25, 16.0, None]
    assert search.study.best_params == points[1]
    search.add_evaluated_point({"x": 0.1, "y": 1.0, "n": 7, "c": "b"}, 0.01, intermediate_values=[3, 1])
    search.add_evaluated_point({"x": 0.2, "y": 1.0, "n": 7, "c": "b"}, 0.01, error=True)
    assert search.study.best_value == 0.01
    assert search.study.trials[4].intermediate_values == {1: 3, 2: 1}
    assert search.study.trials[5].state == TrialState.FAIL
    with pytest.raises(ValueError, match="is no configuration of the space"):
        searched(BOX, points_to_evaluate=[{"x": 1}], evaluated_rewards=[1]).suggest("0")


def test_trials_are_told_as_complete_pruned_or_failed(caplog: pytest.LogCaptureFixture) -> None:
    search = searched(BOX)
    for trial_id in ("done", "stopped", "full", "failed", "nan", "infinite", "silent", "odd"):
        search.suggest(trial_id)
        search.on_trial_result(trial_id, {"loss": 3.0, "training_iteration": 1})
        search.on_trial_result(trial_id, {"loss": 2.0, "training_iteration": 2})
        search.on_trial_result(trial_id, {"loss": float("nan"), "training_iteration": 3})
    search.on_trial_complete("done", {"loss": 2.0})
    search.on_trial_stopped("stopped", {"loss": 2.0, "training_iteration": 2})
    search.on_trial_stopped("full", {"loss": 2.0, "training_iteration": 3})
    search.on_trial_complete("failed", {"loss": 2.0}, error=True)
    search.on_trial_complete("nan", {"loss": float("nan")})
    search.on_trial_complete("infinite", {"loss": float("inf")})
    search.on_trial_complete("silent", None)
    assert caplog.messages == [
        "trial nan ended without a number for loss, so the search learns nothing from it; its last report has loss=nan"
    ]
    search.on_trial_complete("odd", {"accuracy": 1.0})
    assert "its last report has accuracy=1.0" in caplog.messages[-1]
    told = {trial.user_attrs["trial_id"]: trial for trial in search.study.trials}
    assert {name: trial.state.name for name, trial in told.items()} == {
        "done": "COMPLETE",
        "stopped": "PRUNED",
        "full": "COMPLETE",
        "failed": "FAIL",
        "nan": "FAIL",
        "infinite": "COMPLETE",
        "silent": "FAIL",
        "odd": "FAIL",
    }
    assert told["stopped"].intermediate_values == {1: 3.0, 2: 2.0}


def test_a_failed_trial_that_ran_again_is_learned_from() -> None:
    search = searched(BOX, points_to_evaluate=[{"x": 1.0}, {"x": 2.0}, {"x": 3.0}])
    search.suggest("0")
    search.suggest("1")
    search.on_trial_complete("0", error=True)
    search.on_trial_complete("0", {"loss": 4.0})
    search.on_trial_complete("1", {"loss": 5.0})
    search.on_trial_complete("1", {"loss": 6.0})
    first, second, again = search.study.trials
    assert [trial.state for trial in (first, second, again)] == [TrialState.FAIL, *[TrialState.COMPLETE] * 2]
    assert (again.params, again.user_attrs, again.value) == (first.params, {"trial_id": "0"}, 4.0)
    assert search.suggest("2")["x"] == 3.0


@pytest.mark.parametrize("sampler", ["gp", "nsgaii"])
def test_a_sampler_that_learns_only_from_whole_trials_is_told_stopped_ones_as_such(sampler: str) -> None:
    search = searched(BOX, sampler=sampler)
    search.suggest("0")
    search.on_trial_stopped("0", {"loss": 2.0})
    assert search.study.trials[0].state == TrialState.COMPLETE
    assert search.study.trials[0].value == 2.0


def test_a_metric_may_be_nested_and_numpys() -> None:
    np = pytest.importorskip("numpy")
    search = searched(BOX, metric="eval/loss")
    search.suggest("0")
    search.on_trial_complete("0", {"eval": {"loss": np.float32(0.5)}})
    assert search.study.best_value == 0.5


def test_a_trial_is_suggested_once() -> None:
    search = searched(BOX)
    search.suggest("0")
    with pytest.raises(ValueError, match="trial 0 was suggested already"):
        search.suggest("0")


def test_a_function_that_raises_leaves_no_running_trial() -> None:
    def broken(trial: Any) -> None:
        trial.suggest_float("x", 0, 1)
        raise KeyError("mine")

    search = searched(broken)
    with pytest.raises(KeyError, match="mine"):
        search.suggest("0")
    assert [trial.state for trial in search.study.trials] == [TrialState.FAIL]


@pytest.mark.parametrize("sampler", BY_NAME)
def test_several_objectives_are_searched_for_at_once(sampler: str) -> None:
    search = searched({"x": tune.uniform(0, 1)}, metric=["a", "b"], mode=["min", "max"], sampler=sampler)
    trials = 16 if sampler != "gp" else 12
    for number in range(trials):
        x = search.suggest(str(number))["x"]
        search.on_trial_result(str(number), {"a": x, "b": x, "training_iteration": 1})
        (search.on_trial_stopped if number % 3 == 0 else search.on_trial_complete)(str(number), {"a": x, "b": x})
    assert len(search.study.best_trials) == trials
    assert [direction.name for direction in search.study.directions] == ["MINIMIZE", "MAXIMIZE"]


def test_optuna_is_silent_about_this_study_only(capfd: pytest.CaptureFixture[str]) -> None:
    handler = logging.StreamHandler()
    logging.getLogger("optuna").addHandler(handler)
    try:
        for sampler in BY_NAME:
            search = searched(CONDITIONAL, sampler=sampler)
            for number in range(3):
                search.suggest(str(number))
                search.on_trial_complete(str(number), {"loss": float("inf")})
        assert capfd.readouterr().err == ""
        optuna.create_study()
        assert "A new study created" in capfd.readouterr().err
    finally:
        logging.getLogger("optuna").removeHandler(handler)
    assert optuna.logging.get_verbosity() == logging.INFO
    with pytest.warns(optuna.exceptions.ExperimentalWarning):
        optuna.samplers.QMCSampler()


def test_what_a_users_function_says_is_heard(caplog: pytest.LogCaptureFixture) -> None:
    def space(trial: Any) -> None:
        logging.getLogger("optuna.study.study").warning("from the function")
        warnings.warn("of the function", UserWarning, stacklevel=1)
        trial.suggest_float("x", 0, 1)

    with pytest.warns(UserWarning, match="of the function"):
        first(space)
    assert caplog.messages == ["from the function"]


@settings(max_examples=25, deadline=None)
@given(st.integers(), st.integers(1, 6))
def test_a_seed_gives_the_same_suggestions_again(seed: int, trials: int) -> None:
    assert minimized(searched(BOX, seed=seed), trials) == minimized(searched(BOX, seed=seed), trials)
