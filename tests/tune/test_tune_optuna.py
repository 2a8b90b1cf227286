"""What Optuna suggests, for which spaces, what it is told, and a whole search by it."""

import copy
import logging
import re
import warnings

import numpy as np
import pytest

optuna = pytest.importorskip("optuna")

from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution  # noqa: E402
from optuna.trial import TrialState  # noqa: E402
from tuners import make_tuner  # noqa: E402

from paceline import tune  # noqa: E402
from paceline.tune.schedulers import ASHAScheduler  # noqa: E402
from paceline.tune.search import ConcurrencyLimiter  # noqa: E402
from paceline.tune.search.optuna import OptunaSearch  # noqa: E402

BY_NAME = ["gp", "tpe", "qmc", "nsgaii", "nsgaiii", "random"]
BOX = {"x": tune.uniform(-5, 5), "y": tune.loguniform(1e-3, 1e3), "n": tune.randint(0, 20), "c": tune.choice([*"abc"])}


def searched(space=None, **arguments):
    return OptunaSearch(**{"space": space, "metric": "loss", "mode": "min", "seed": 1, **arguments})


def first(space, **arguments):
    return searched(space, **arguments).suggest("0")


def a_function(): ...


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


def test_domains_are_the_distributions_they_should_be():
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


CONDITIONAL = {
    "model": tune.choice(
        [
            {"kind": "tree", "depth": tune.randint(1, 9)},
            {"kind": "net", "width": tune.lograndint(1, 500), "act": tune.choice(["relu", tune.uniform(0, 1)])},
        ]
    ),
    "lr": tune.loguniform(1e-4, 1),
}


def test_what_is_under_a_condition_is_suggested_only_where_it_holds():
    search = searched(CONDITIONAL)
    for number in range(40):
        model = search.suggest(str(number))["model"]
        suggested = search.study.trials[-1].params.keys()
        if model["kind"] == "tree":
            assert model.keys() == {"kind", "depth"}
            assert suggested == {"model", "model/depth", "lr"}
        else:
            inner = {"model/option 1/act/option 1"} if isinstance(model["act"], float) else set()
            assert model.keys() == {"kind", "width", "act"}
            assert suggested == {"model", "model/width", "model/option 1/act", "lr"} | inner
    assert {trial.params["model"] for trial in search.study.trials} == {0, 1}
    whole = searched(tune.choice([{"x": tune.uniform(0, 1)}, {"y": tune.uniform(0, 1)}]))
    assert {" ".join(whole.suggest(str(number))) for number in range(20)} == {"x", "y"}


def test_optunas_distributions_or_a_function_may_be_the_space():
    space = {"opt/lr": FloatDistribution(1e-4, 1, log=True), "n": IntDistribution(1, 9, step=2), "data": "here"}
    config = first({**space, "kind": CategoricalDistribution(["a", "b"])})
    assert config.keys() == {"opt", "n", "data", "kind"}
    assert 1e-4 <= config["opt"]["lr"] <= 1
    assert config["n"] in (1, 3, 5, 7, 9)
    assert config["data"] == "here"
    with pytest.raises(ValueError, match="space mixes Optuna's distributions"):
        searched({**space, "x": tune.uniform(0, 1)})
    search = searched(by_run)
    configs = [search.suggest(str(number)) for number in range(20)]
    assert {tuple(sorted(config)) for config in configs} == {("a", "constant", "kind"), ("b", "constant", "kind")}
    with pytest.raises(ValueError, match="must return a dict of constants or None, got 3"):
        first(lambda trial: 3)


def by_run(trial):
    if trial.suggest_categorical("kind", ["a", "b"]) == "a":
        trial.suggest_float("a/lr", 1e-4, 1, log=True)
    else:
        trial.suggest_int("b/depth", 1, 5)
    return {"constant": 7}


@pytest.mark.parametrize("space", [EVERY_DOMAIN, {"x": FloatDistribution(0, 1)}, by_run])
def test_a_copy_of_a_searcher_suggests_the_same_objects(space):
    search = searched(space)
    again = copy.deepcopy(search)
    assert [search.suggest(str(n)) for n in range(9)] == [again.suggest(str(n)) for n in range(9)]


def test_uses_the_tuners_space_and_metric_where_the_searcher_has_none():
    search = OptunaSearch(seed=3)
    assert search.set_search_properties("loss", "min", {"x": tune.uniform(0, 1)}, num_samples=4, seed=9)
    assert (search.metric, search.mode) == ("loss", "min")
    assert search.suggest("0") == first({"x": tune.uniform(0, 1)}, seed=3)
    unseeded = OptunaSearch()
    assert unseeded.set_search_properties("loss", "min", {"x": tune.uniform(0, 1)}, num_samples=4, seed=9)
    assert unseeded.suggest("0") == first({"x": tune.uniform(0, 1)}, seed=9)
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
    ("arguments", "message"),
    [
        ({"space": "lr"}, "space must be a dict of paceline's domains or Optuna's distributions"),
        ({"space": {"a": {"b": tune.grid_search([1, 2])}}}, "space['a']['b'] is a grid_search"),
        ({"space": {"x": tune.randn()}}, "space['x'] is randn(0.0, 1.0), which Optuna does not support"),
        ({"mode": "least"}, "mode must be 'min' or 'max', got 'least'"),
        ({"metric": ["a", "b"]}, "mode must be one mode for each metric"),
        ({"metric": ["a", "a"], "mode": ["min", "min"]}, "metric must be different names"),
        ({"seed": "x"}, "seed must be an integer or None, got 'x'"),
        ({"sampler": "bayes"}, "sampler must be an Optuna sampler, 'tpe'"),
        ({"sampler": "brute force"}, "BruteForceSampler ends the study by itself"),
        ({"points_to_evaluate": {"x": 1}}, "points_to_evaluate must be a list of configurations"),
        ({"points_to_evaluate": [{"z": 1}]}, "points_to_evaluate: unknown key 'z'"),
        ({"points_to_evaluate": [{"c": "d"}], "space": BOX}, "points_to_evaluate['c'] must be an option of choice"),
        ({"points_to_evaluate": [{"x": 3}], "space": {"x": FloatDistribution(0, 1)}}, "points_to_evaluate"),
        ({"points_to_evaluate": [{"x": 1}], "evaluated_rewards": [1, 2]}, "one reward for each of the 1"),
        ({"metric": None, "mode": None}, "OptunaSearch needs a metric and a mode, got metric=None, mode=None"),
        ({"space": None}, "has no search space"),
    ],
)
def test_arguments_are_refused_by_name(arguments, message):
    if arguments.get("sampler") == "brute force":
        with warnings.catch_warnings(action="ignore"):
            arguments = {"sampler": optuna.samplers.BruteForceSampler()}
    with pytest.raises(ValueError, match=re.escape(message)):
        searched(**{"space": {"x": tune.uniform(0, 1)}, **arguments}).suggest("0")


def test_cmaes_names_what_it_needs(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    search = searched(BOX, sampler="cmaes", metric=["a", "b"], mode=["min", "max"])
    with pytest.raises(ValueError, match="sampler='cmaes' supports one objective, got 2 metrics"):
        search.suggest("0")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"sampler='cmaes' needs the package cmaes(.|\n)*hint: pip install cmaes"):
        searched(BOX, sampler="cmaes")


@pytest.mark.slow
def test_cmaes_finds_the_bottom_of_a_valley_and_takes_a_space_of_mixed_kinds():
    pytest.importorskip("cmaes", reason="cmaes is not installed: the search with it was not checked")
    minimized(searched(BOX, sampler="cmaes"), 20)
    space = {"x": tune.uniform(-5, 5), "y": tune.uniform(-5, 5), "z": tune.uniform(-5, 5)}

    def valley(config):
        return float((config["x"] - 1) ** 2 + (config["y"] + config["x"]) ** 2 + (config["z"] - config["y"]) ** 2)

    def best(sampler):
        return min(map(valley, minimized(searched(space, sampler=sampler), 150, valley)))

    assert best("cmaes") < 0.05 < best("random")


def loss(config):
    return float(config["x"] ** 2 + abs(config["n"] - 7) + (config["c"] != "b") + abs(config["y"] - 1) ** 0.5)


def minimized(search, trials, function=loss):
    configs = []
    for number in range(trials):
        configs.append(search.suggest(str(number)))
        search.on_trial_complete(str(number), {"loss": function(configs[-1])})
    return configs


def test_a_sampler_of_the_users_is_used_with_its_own_seed(caplog):
    once = minimized(searched(BOX, sampler=optuna.samplers.TPESampler(seed=5), seed=None), 14)
    assert caplog.messages == []
    again = minimized(searched(BOX, sampler=optuna.samplers.TPESampler(seed=5), seed=6), 14)
    assert once == again
    assert caplog.messages == ["seed=6 is ignored: TPESampler has its own"]


def test_points_come_first_also_objects_and_under_conditions_and_the_rest_is_suggested():
    points = [{"x": 1.5, "c": "b"}, {"y": 0.5, "n": 3, "x": 0.0, "c": "a"}]
    search = searched(BOX, points_to_evaluate=points)
    part, whole, free = (search.suggest(str(number)) for number in range(3))
    assert (part["x"], part["c"]) == (1.5, "b")
    assert part["y"] != 0.5
    assert whole == {"x": 0.0, "y": 0.5, "n": 3, "c": "a"}
    assert free["x"] not in (0.0, 1.5)
    point = {"object": (1, 2), "step": 0.3, "log step": 2.5, "log int step": 16, "alike": True, "made": -1}
    config = first(EVERY_DOMAIN, points_to_evaluate=[point])
    assert {name: config[name] for name in point} == point
    assert config["alike"] is True
    inner = {"model": {"kind": "net", "width": 7, "act": 0.25}}
    assert first(CONDITIONAL, points_to_evaluate=[inner])["model"] == inner["model"]
    point = {"kind": "b", "b": {"depth": 4}}
    assert first(by_run, points_to_evaluate=[point]) == {**point, "constant": 7}


def test_rewards_are_learned_from_without_a_trial():
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
    with pytest.raises(ValueError, match="an evaluated point must be a full configuration of the space"):
        searched(BOX, points_to_evaluate=[{"x": 1}], evaluated_rewards=[1]).suggest("0")


def test_reports_trials_to_optuna_as_complete_pruned_or_failed(caplog):
    search = searched(BOX)
    names = ("done", "stopped", "full", "failed", "nan", "infinite", "silent", "odd")
    for trial_id in names:
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
        "trial nan did not report a number for loss, so the search learns nothing from it; its last report has loss=nan"
    ]
    search.on_trial_complete("odd", {"accuracy": 1.0})
    assert "its last report has accuracy=1.0" in caplog.messages[-1]
    trials = {trial.user_attrs["trial_id"]: trial for trial in search.study.trials}
    states = "COMPLETE PRUNED COMPLETE FAIL FAIL COMPLETE FAIL FAIL"
    assert [trials[name].state.name for name in names] == states.split()
    assert trials["stopped"].intermediate_values == {1: 3.0, 2: 2.0}


def test_a_failed_trial_that_ran_again_is_learned_from_and_each_is_suggested_once():
    search = searched(BOX, metric="eval/loss", points_to_evaluate=[{"x": 1.0}, {"x": 2.0}, {"x": 3.0}])
    search.suggest("0")
    search.suggest("1")
    with pytest.raises(ValueError, match="trial 0 was already suggested"):
        search.suggest("0")
    search.on_trial_complete("0", error=True)
    search.on_trial_complete("0", {"eval": {"loss": np.float32(4.0)}})
    search.on_trial_complete("1", {"eval": {"loss": 5.0}})
    search.on_trial_complete("1", {"eval": {"loss": 6.0}})
    first, second, again = search.study.trials
    assert [trial.state for trial in (first, second, again)] == [TrialState.FAIL, *[TrialState.COMPLETE] * 2]
    assert (again.params, again.user_attrs, again.value) == (first.params, {"trial_id": "0"}, 4.0)
    assert search.suggest("2")["x"] == 3.0
    whole = searched(BOX, sampler="nsgaii")
    whole.suggest("0")
    whole.on_trial_stopped("0", {"loss": 2.0})
    assert whole.study.trials[0].state == TrialState.COMPLETE, "this one learns only from whole trials"


@pytest.mark.parametrize("sampler", [*BY_NAME[1:], pytest.param("gp", marks=pytest.mark.slow)])
def test_several_objectives_are_searched_for_at_once(sampler):
    search = searched({"x": tune.uniform(0, 1)}, metric=["a", "b"], mode=["min", "max"], sampler=sampler)
    trials = 16 if sampler != "gp" else 12
    for number in range(trials):
        x = search.suggest(str(number))["x"]
        search.on_trial_result(str(number), {"a": x, "b": x, "training_iteration": 1})
        (search.on_trial_stopped if number % 3 == 0 else search.on_trial_complete)(str(number), {"a": x, "b": x})
    assert len(search.study.best_trials) == trials
    assert [direction.name for direction in search.study.directions] == ["MINIMIZE", "MAXIMIZE"]


def test_optuna_is_silent_about_this_study_only(capfd):
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


def test_what_a_users_function_says_is_heard_and_one_that_raises_leaves_no_running_trial(caplog):
    def space(trial):
        logging.getLogger("optuna.study.study").warning("from the function")
        warnings.warn("of the function", UserWarning, stacklevel=1)
        trial.suggest_float("x", 0, 1)

    with pytest.warns(UserWarning, match="of the function"):
        first(space)
    assert caplog.messages == ["from the function"]

    def broken(trial):
        trial.suggest_float("x", 0, 1)
        raise KeyError("mine")

    search = searched(broken)
    with pytest.raises(KeyError, match="mine"):
        search.suggest("0")
    assert [trial.state for trial in search.study.trials] == [TrialState.FAIL]


def trained(config):
    for step in range(1, 5):
        tune.report({"loss": abs(config["x"]) + 1 / step, "size": config["act"](config["x"])})


SPACE = {"x": tune.uniform(-5, 5), "act": tune.choice([abs, float])}


def test_trials_that_a_scheduler_stops_are_pruned_and_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    search = OptunaSearch(seed=1)
    scheduler = ASHAScheduler(max_t=4, grace_period=1, reduction_factor=2)
    limited = ConcurrencyLimiter(search, max_concurrent=1)
    about = {"num_samples": 8, "search_alg": limited, "scheduler": scheduler, "metric": "loss", "mode": "min"}
    results = make_tuner(tmp_path, trained, SPACE, **about).fit()
    trials = {trial.user_attrs["trial_id"]: trial for trial in search.study.trials}
    assert len(results) == len(trials) == 8
    states = [trial.state for trial in trials.values()]
    assert {*states} == {TrialState.PRUNED, TrialState.COMPLETE}
    for trial in trials.values():
        assert (len(trial.intermediate_values) == 4) == (trial.state is TrialState.COMPLETE)
    assert results.get_best_result().config["x"] == search.study.best_params["x"]
    figure = results.plot()
    figure.savefig(tmp_path / "search.png")
    drawn = {shown.get_gid(): len(shown.get_segments()) for shown in figure.axes[0].collections}
    assert drawn["stopped"] == states.count(TrialState.PRUNED)
    assert sum(drawn.values()) == 8
    assert [len(results.plot(kind).axes) for kind in ("parallel", "importance", "curves")] == [2, 1, 1]
    with pytest.raises(RuntimeError, match="no trial has reported 'acc'"):
        results.plot(metric="acc", mode="max")
