"""What all searchers have in common, each with its real library; HEBO by a stand-in where it is not installed."""

import importlib
import importlib.util
import math
import random
import statistics
import sys
import types

import pytest

from paceline import tune
from paceline.tune.search import BasicVariantGenerator, ConcurrencyLimiter, Repeater, Searcher, create_searcher
from paceline.tune.search.library_search import LibraryParameter
from paceline.tune.search.names import SEARCHERS

SPACE = {
    "x": tune.uniform(-1, 1),
    "lr": tune.loguniform(1e-4, 1.0),
    "steps": tune.qrandint(10, 50, 10),
    "share": tune.quniform(0, 1, 0.25),
    "model": tune.choice([{"kind": "a", "depth": tune.lograndint(1, 100)}, {"kind": "b"}]),
    "fixed": 7,
}
PACKAGES = {"optuna": "optuna", "hyperopt": "hyperopt", "bayesopt": "bayes_opt", "ax": "ax", "bohb": "hpbandster"}
PACKAGES |= {"nevergrad": "nevergrad", "zoopt": "zoopt"}
SEEDS = {"random": "random_state", "bayesopt": "random_state"}
SEEDS |= dict.fromkeys(("hyperopt", "hebo"), "random_state_seed")
LIBRARIES = [name for name in SEARCHERS if name not in ("variant_generator", "random")]
FIRST = {"x": 0.5, "lr": 0.01, "steps": 20, "share": 0.75, "model": {"kind": "a", "depth": 3}, "fixed": 7}


SLOW = ("bayesopt", "ax")
ALL = ["random", *(pytest.param(name, marks=pytest.mark.slow) if name == "ax" else name for name in LIBRARIES)]
SOME_SLOW = ["random", *(pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in LIBRARIES)]
ARGUMENTS = {"hyperopt": {"n_initial_points": 5}, "bayesopt": {"random_search_steps": 6}, "zoopt": {"parallel_num": 4}}


@pytest.fixture(scope="module", params=ALL)
def library(request):
    """The name of a searcher whose library is imported: what that leaves in the environment is not the test's."""
    if request.param in PACKAGES:
        pytest.importorskip(PACKAGES[request.param])
        importlib.import_module(f"paceline.tune.search.{request.param}")
    return request.param


@pytest.fixture
def make(library, monkeypatch):
    """Makes a searcher of one kind, with a seed."""
    name = library
    if name == "hebo" and importlib.util.find_spec("hebo") is None:
        install_stand_in_of_hebo(monkeypatch)

    def make_searcher(space=SPACE, seed=3, num_samples=40, **arguments):
        searcher = create_searcher(name, **{SEEDS.get(name, "seed"): seed}, **ARGUMENTS.get(name, {}), **arguments)
        assert searcher.set_search_properties("loss", "min", space, num_samples=num_samples, seed=1)
        return searcher

    make_searcher.name = name
    return make_searcher


def install_stand_in_of_hebo(monkeypatch):
    """The interface of HEBO, as its documentation has it, around random search near the best."""
    pandas = pytest.importorskip("pandas")

    class DesignSpace:
        def parse(self, described):
            self.described = described
            return self

    class HEBO:
        def __init__(self, space, scramble_seed=None):
            self.described, self.best, self.random = space.described, None, random.Random(scramble_seed)

        def suggest(self, n_suggestions=1):
            def draw(each):
                if each["type"] == "cat":
                    return self.random.choice(each["categories"])
                if self.best is None or self.random.random() < 0.3:
                    return self.random.uniform(each["lb"], each["ub"])
                return min(max(self.random.gauss(self.best[1][each["name"]], 0.1), each["lb"]), each["ub"])

            return pandas.DataFrame([{each["name"]: draw(each) for each in self.described}])

        def observe(self, frame, losses):
            assert losses.shape == (len(frame), 1)
            self.best = min(
                [*([self.best] if self.best else []), (losses[0, 0], frame.iloc[0].to_dict())], key=lambda b: b[0]
            )

    names = ("hebo", "hebo.design_space", "hebo.design_space.design_space", "hebo.optimizers", "hebo.optimizers.hebo")
    for name in names:
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["hebo.design_space.design_space"].DesignSpace = DesignSpace
    sys.modules["hebo.optimizers.hebo"].HEBO = HEBO


def compute_loss(config):
    return config["x"] ** 2 + (math.log10(config["lr"]) + 2) ** 2 / 4


def run_trials(searcher, numbers, loss=compute_loss):
    """The configurations of these trials, one after the other."""
    configs = []
    for number in numbers:
        trial_id = f"{number:05d}"
        config = searcher.suggest(trial_id)
        configs.append(config)
        result = {"loss": loss(config), "training_iteration": 1}
        searcher.on_trial_result(trial_id, result)
        searcher.on_trial_complete(trial_id, result, error=number == 2)
    return configs


def test_suggestions_are_in_the_space_and_begin_with_the_points(make):
    configs = run_trials(make(points_to_evaluate=[FIRST, {"x": -0.5}]), range(6 if make.name in SLOW else 12))
    assert configs[0] == FIRST
    assert configs[1]["x"] == -0.5
    for config in configs:
        assert -1 <= config["x"] <= 1
        assert 1e-4 <= config["lr"] <= 1.0
        assert config["steps"] in (10, 20, 30, 40, 50)
        assert config["share"] in (0, 0.25, 0.5, 0.75, 1)
        assert config["fixed"] == 7
        depth = config["model"].get("depth")
        assert (type(depth) is int and 1 <= depth < 100) if config["model"]["kind"] == "a" else depth is None
    assert len({config["x"] for config in configs}) > 4


@pytest.mark.parametrize("library", SOME_SLOW, indirect=True, scope="module")
def test_a_restored_searcher_suggests_what_the_saved_one_does(make, tmp_path):
    saved = make(points_to_evaluate=[{"x": 0.25}])
    before = run_trials(saved, range(11))
    saved.suggest("00011")
    assert not saved.has_checkpoint(tmp_path)
    saved.save_to_dir(tmp_path, session_str="now")
    restored = make(points_to_evaluate=[{"x": 0.25}], seed=99)
    restored.restore_from_dir(tmp_path)
    assert restored.has_checkpoint(tmp_path)
    after = run_trials(restored, range(12, 15))
    assert after == run_trials(saved, range(12, 15))
    rebuilt = make(points_to_evaluate=[{"x": 0.25}])
    for number, config in enumerate(before):
        rebuilt.rebuild(f"{number:05d}", config)
        result = {"loss": compute_loss(config), "training_iteration": 1}
        rebuilt.on_trial_result(f"{number:05d}", result)
        rebuilt.on_trial_complete(f"{number:05d}", result, error=number == 2)
    rebuilt.suggest("00011")
    assert run_trials(rebuilt, range(12, 15)) == after


@pytest.mark.parametrize("library", SOME_SLOW, indirect=True, scope="module")
def test_a_searcher_that_learns_is_better_than_random_search(make):
    if make.name == "random":
        return
    space = {"x": tune.uniform(-1, 1), "lr": tune.loguniform(1e-4, 1.0)}
    rounds = 20 if make.name in SLOW else 60

    def mean_loss(searcher):
        return sum(map(compute_loss, run_trials(searcher, range(rounds))[-10:])) / 10

    at_random = BasicVariantGenerator(random_state=3)
    at_random.set_search_properties("loss", "min", space, num_samples=100)
    assert mean_loss(make(space, num_samples=rounds)) < 0.75 * mean_loss(at_random)


def test_learns_from_trials_of_another_search_and_knows_what_it_cannot_search(make):
    if make.name == "random":
        return
    trials = [tune.Trial(f"{n}", dict(FIRST, x=n / 10), "TERMINATED", {"loss": n / 10}) for n in range(5)]
    searcher = make()
    searcher.add_evaluated_trials(trials, "loss")
    assert len(searcher.get_state()["history"]) >= 5
    assert -1 <= searcher.suggest("a")["x"] <= 1
    spaces = [({"x": tune.grid_search([1])}, "grid_search"), ({"x": tune.randn()}, "randn")]
    for space, problem in spaces[: 1 if make.name == "hyperopt" else 2]:
        with pytest.raises(ValueError, match=problem):
            make(space)


def test_a_name_that_no_searcher_has():
    with pytest.raises(ValueError, match="search_alg must be 'variant_generator', 'random', 'optuna'"):
        create_searcher("grid")


@pytest.mark.parametrize("module", [*PACKAGES.values(), "hebo"])
def test_a_missing_library_names_its_extra(module, monkeypatch):
    name = {"bayes_opt": "bayesopt", "hpbandster": "bohb"}.get(module, module)
    for each in [
        each for each in sys.modules if f"{each}.".startswith((f"{module}.", f"paceline.tune.search.{name}."))
    ]:
        monkeypatch.delitem(sys.modules, each)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf'pip install "paceline\[{"tune" if module == "optuna" else name}\]"'):
        create_searcher(name)


@pytest.mark.parametrize("domain", [tune.lograndint(1, 9), tune.qloguniform(0.5, 4, 0.5), tune.qrandint(-4, 8, 4)])
def test_every_value_of_a_domain_is_reached_and_comes_back(domain):
    parameter = LibraryParameter("p", domain)
    values = {parameter.from_unit(number / 1000) for number in range(1001)}
    assert values == {value for value in [n / 2 for n in range(-9, 20)] if domain.contains(value)}
    assert all(parameter.from_unit(parameter.to_unit(value)) == value for value in values)


@pytest.mark.parametrize("wrap", [lambda s: ConcurrencyLimiter(s, 4, batch=True), lambda s: Repeater(s, 2)])
def test_wrapped_searchers_are_saved_with_what_they_wrap(wrap, tmp_path):
    space = {"x": tune.uniform(0, 1)}
    searchers = [wrap(BasicVariantGenerator(random_state=seed)) for seed in (1, 2)]
    for searcher in searchers:
        searcher.set_search_properties("loss", "min", space, num_samples=20)
    saved, restored = searchers
    [saved.suggest(f"{n}") for n in range(3)]
    saved.on_trial_complete("1", {"loss": 1.0})
    saved.save(tmp_path / "state")
    restored.restore(tmp_path / "state")
    assert [restored.suggest(f"{n}") for n in range(3, 6)] == [saved.suggest(f"{n}") for n in range(3, 6)]
    with pytest.raises(NotImplementedError, match="BasicVariantGenerator does not learn"):
        saved.add_evaluated_point({"x": 1}, 2.0)


def test_a_generator_makes_trials_until_it_is_finished():
    generator = BasicVariantGenerator(random_state=1)
    generator.add_configurations({"name": {"config": {"x": tune.grid_search([1, 2, 3])}, "num_samples": 1}})
    assert [generator.next_trial().config["x"], generator.next_trial().config["x"]] == [1, 2]
    assert not generator.is_finished()
    generator.set_finished()
    assert generator.is_finished()
    assert generator.next_trial() is None


class Counting(Searcher):
    def __init__(self):
        super().__init__("loss", "min")
        self.events = []

    def suggest(self, trial_id):
        return {"x": len(self.events)}

    def on_pause(self, trial_id):
        self.events.append("pause")

    def on_unpause(self, trial_id):
        self.events.append("unpause")


def test_the_attributes_of_a_searcher_of_the_users_are_saved(tmp_path):
    saved, restored = Counting(), Counting()
    saved.on_pause("a")
    saved.save(tmp_path / "state")
    restored.restore(tmp_path / "state")
    assert restored.events == ["pause"]


def test_a_space_in_the_words_of_its_library_is_converted():
    hp = pytest.importorskip("hyperopt").hp
    from paceline.tune.search.hyperopt import HyperOptSearch

    options = [{"a": hp.loguniform("a", -3, 0)}, {"b": hp.randint("b", 3)}, "c"]
    space = {
        "width": hp.uniform("width", 5, 6),
        "step": hp.quniform("step", 1, 5, 2),
        "between": hp.randint("between", 2, 4),
        "size": hp.uniformint("size", 1, 2),
        "kind": hp.choice("kind", options),
        "own": tune.uniform(0, 1),
        "normal": hp.normal("normal", 100, 1),
        "steps": hp.qnormal("steps", 0, 1, 2),
        "positive": hp.lognormal("positive", 0, 1),
        "rounded": hp.qlognormal("rounded", 0, 1, 1),
        "likely": hp.pchoice("likely", [(0.01, {"rare": tune.uniform(0, 1)}), (0.99, "often")]),
    }
    searcher = HyperOptSearch(space, "loss", "min", random_state_seed=0)
    found = [searcher.suggest(str(number)) for number in range(40)]
    assert all(5 <= each["width"] <= 6 and 0 <= each["own"] <= 1 for each in found)
    assert [{each[name] for each in found} for name in ("between", "size", "step")] == [{2, 3}, {1, 2}, {2, 4}]
    kinds = [each["kind"] for each in found]
    assert all(math.exp(-3) <= kind["a"] <= 1 for kind in kinds if "a" in kind)
    assert {kind["b"] for kind in kinds if "b" in kind} == {0, 1, 2}
    assert "c" in kinds
    assert 99 < statistics.mean(each["normal"] for each in found) < 101
    assert {0, 2} < {each["steps"] for each in found} <= {*range(-8, 9, 2)}
    assert min(each["positive"] for each in found) < 1 < max(each["positive"] for each in found)
    assert {0, 1, 2} < {each["rounded"] for each in found}
    assert [each["likely"] for each in found].count("often") > 35
    for number, each in enumerate(found):
        searcher.on_trial_complete(str(number), {"loss": abs(each["normal"] - 101)})
    assert isinstance(searcher.suggest("later")["rounded"], float)


@pytest.mark.parametrize("library", ["ax"], indirect=True, scope="module")
def test_ax_takes_a_list_of_its_parameters(library):
    from paceline.tune.search.ax import AxSearch

    parameters = [
        {"name": "lr", "type": "range", "bounds": [1e-4, 1e-1], "log_scale": True, "value_type": "float"},
        {"name": "net/layers", "type": "range", "bounds": [1, 2]},
        {"name": "kind", "type": "choice", "values": ["a", "b"]},
        {"name": "fixed", "type": "fixed", "value": 7},
    ]
    searcher = AxSearch(space=parameters, metric="loss", mode="min", seed=0)
    found = [searcher.suggest(str(number)) for number in range(4)]
    for number, each in enumerate(found):
        assert 1e-4 <= each["lr"] <= 0.1
        assert (each["net"]["layers"] in (1, 2), each["kind"] in ("a", "b"), each["fixed"]) == (True, True, 7)
        searcher.on_trial_complete(str(number), {"loss": each["lr"]})
    with pytest.raises(ValueError, match="the type of 'x' in space must be 'range', 'choice' or 'fixed', got 'ragne'"):
        AxSearch([{"name": "x", "type": "ragne", "bounds": [0, 1]}])


@pytest.mark.filterwarnings("ignore::Warning")
def test_nevergrad_takes_its_own_parameters_and_names_for_those_of_an_optimizer():
    ng = pytest.importorskip("nevergrad")
    from paceline.tune.search.nevergrad import NevergradSearch

    space = ng.p.Dict(
        width=ng.p.Scalar(lower=0, upper=20),
        lr=ng.p.Log(lower=1e-3, upper=1),
        size=ng.p.Scalar(lower=1, upper=2).set_integer_casting(),
        kind=ng.p.Choice([ng.p.Dict(a=ng.p.Scalar(lower=5, upper=6)), "b"]),
        fixed=7,
    )
    searcher = NevergradSearch(ng.optimizers.RandomSearch, space=space, metric="loss", mode="min", seed=0)
    found = [searcher.suggest(str(number)) for number in range(20)]
    assert all(0 <= each["width"] <= 20 and 1e-3 <= each["lr"] <= 1 and each["fixed"] == 7 for each in found)
    assert {each["size"] for each in found} == {1, 2}
    kinds = [each["kind"] for each in found]
    assert "b" in kinds
    assert all(5 <= kind["a"] <= 6 for kind in kinds if kind != "b")

    array = ng.p.Array(shape=(2,)).set_bounds(-1, 1)
    optimizer = ng.optimizers.PSO(parametrization=array, budget=10)
    searcher = NevergradSearch(optimizer, space=["x", "y"], metric="loss", mode="min")
    assert all(-1 <= value <= 1 for value in searcher.suggest("0").values())
    with pytest.raises(ValueError, match="'x' of Nevergrad's parameters must be a number with lower and upper bounds"):
        NevergradSearch(space=ng.p.Dict(x=ng.p.Scalar()))


def test_two_numbers_are_the_bounds_of_a_parameter_for_bayesopt():
    pytest.importorskip("bayes_opt")
    from paceline.tune.search.bayesopt import BayesOptSearch

    searcher = BayesOptSearch({"width": (5, 6), "fixed": 7}, "loss", "min")
    found = [searcher.suggest(str(number)) for number in range(3)]
    assert len({each["width"] for each in found}) == 3
    assert all(5 <= each["width"] <= 6 and each["fixed"] == 7 for each in found)
