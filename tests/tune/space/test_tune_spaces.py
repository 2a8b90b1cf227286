"""Spaces: what is drawn is of the space, depends on number and seed alone, and covers the grid in its order."""

import math
import random
import re
from collections import OrderedDict
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from drawn_spaces import NUMBERS, Model, activation, is_of, same, spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.distributions import FloatDistribution

from paceline.tune.space import Space
from paceline.tune.space import domains as tune
from paceline.tune.space.domains import KeyedRandom
from paceline.tune.space.tree import Option, iter_grid_options

ALL = {
    **NUMBERS,
    "choice": tune.choice(["a", "b", {"c": tune.uniform(0, 1)}]),
    "func": tune.sample_from(lambda spec: spec.config.uniform * 0.01),
    "noise": tune.sample_from(lambda spec: [random.random(), float(np.random.uniform())]),
    "grid": tune.grid_search([32, 64, 128]),
}


@settings(deadline=None, max_examples=75)
@given(spaces(), st.integers(0, 2**64), st.permutations([0, 1, 2, 3, 17, 50]))
def test_what_is_drawn_is_of_the_space_and_does_not_depend_on_other_draws(param_space, seed, numbers):
    space = Space(param_space)
    for number in numbers:
        config = space.draw(number, seed)
        assert is_of(param_space, config)
        assert same(Space(param_space).draw(number, seed), config)


def test_every_number_seed_and_place_draws_differently_and_as_in_every_version():
    space = Space({"a": tune.uniform(0, 1), "b": [tune.randint(0, 1000)], "c": tune.choice(range(30))})
    assert space.draw(3, 9) == {"a": pytest.approx(0.9790966640767892, rel=1e-12), "b": [370], "c": 9}
    space = Space({"a": tune.uniform(0, 1)})
    assert len({space.draw(number, seed)["a"] for number in range(20) for seed in range(20)}) == 400
    one = tune.uniform(0, 1)
    config = Space({"a": one, "b": {"c": one}, "d": [one, one]}).draw(0, 0)
    assert len({config["a"], config["b"]["c"], *config["d"]}) == 4


def test_constants_are_handed_on_containers_are_each_trials_own_and_there_may_be_none():
    thing = Model()
    space = Space({"list": [1, {"a": (2, thing)}], "function": activation})
    first, second = space.draw(0, 0), space.draw(1, 0)
    assert first == second == {"list": [1, {"a": (2, thing)}], "function": activation}
    first["list"][1]["a"] = None
    assert second["list"][1]["a"] == (2, thing)
    assert space.draw(0, 0)["list"][1]["a"][1] is thing
    for mapping in (MappingProxyType({"a": tune.randint(1, 2)}), OrderedDict(a=tune.randint(1, 2))):
        assert same(Space(mapping).draw(0, 0), {"a": 1})
    assert Space(None).draw(3, 0) == Space({}).draw(0, 0) == {}
    assert Space(None).num_grid == 1
    for number, seed in ((-1, 0), (True, 0), (0, None)):
        with pytest.raises(ValueError, match="must be a"):
            Space({}).draw(number, seed)


@settings(deadline=None, max_examples=50)
@given(spaces(functions=False), st.integers(0, 3))
def test_each_sample_has_every_combination_once(param_space, sample):
    space = Space(param_space)
    count = space.num_grid
    # Options may be objects that hide which they are: what is picked is looked at instead.
    seen = {
        tuple(sorted((str(path), index) for path, index in iter_grid_options(space._tree, number % count, {})))
        for number in range(sample * count, (sample + 1) * count)
    }
    assert len(seen) == count
    assert count == 1 or any(isinstance(place.domain, tune.Grid) for place in space.domains().values())


def test_a_nested_grid_counts_only_under_its_option_and_a_grid_may_be_json_or_of_configurations():
    deep = {"layers": tune.grid_search([2, 3])}
    wide = {"layers": tune.grid_search([4, 5, 6]), "x": tune.uniform(0, 1)}
    space = Space({"model": tune.grid_search([deep, {}, wide]), "z": tune.grid_search([0, 1])})
    assert space.num_grid == 12
    configs = [space.draw(number, 0) for number in range(12)]
    tried = [(config["model"].get("layers"), config["z"]) for config in configs]
    assert tried == [(layers, z) for layers in (2, 3, None, 4, 5, 6) for z in (0, 1)]
    space = Space({"x": {"grid_search": [1, 2]}})
    assert [space.draw(number, 0) for number in range(2)] == [{"x": 1}, {"x": 2}]
    space = Space(tune.grid_search([{"a": 1}, {"a": 2, "b": tune.uniform(0, 1)}]))
    assert space.num_grid == 2
    assert space.draw(0, 0) == {"a": 1}
    assert space.draw(1, 0).keys() == {"a", "b"}


def test_lists_domains_with_their_conditions():
    space = Space(
        {"m": tune.choice([{"lr": tune.uniform(0, 1)}, {"lr": tune.randint(0, 9), "k": tune.randn()}]), "n": 3}
    )
    places = space.domains()
    assert [*places] == [("m",), ("m", Option(0), "lr"), ("m", Option(1), "lr"), ("m", Option(1), "k")]
    assert [place.condition for place in places.values()] == [(), ((("m",), 0),), ((("m",), 1),), ((("m",), 1),)]
    assert [place.name for place in places.values()] == ["m", "m/option 0/lr", "m/option 1/lr", "m/k"]
    assert [place.config_keys for place in places.values()] == [("m",), ("m", "lr"), ("m", "lr"), ("m", "k")]
    integer = places["m", Option(1), "lr"].domain
    assert (type(integer), integer.first, integer.last, integer.log, integer.q) == (tune.Integer, 0, 8, False, None)


@settings(deadline=None, max_examples=50)
@given(spaces(), st.integers(0, 5))
def test_a_configuration_is_put_together_from_what_was_picked(param_space, number):
    space = Space(param_space)
    places = space.domains().values()
    assert len({place.name for place in places}) == len(places)
    picked = {path: place.domain.pick(KeyedRandom(number, place.name)) for path, place in space.domains().items()}
    used = {}

    def pick(place):
        used[place.path] = picked[place.path]
        return picked[place.path]

    config = space.assemble_config(pick, number)
    assert same(space.assemble_config(lambda place: used[place.path], number), config)
    for path in used:
        less = {other: value for other, value in used.items() if other != path}
        with pytest.raises(KeyError):
            space.assemble_config(lambda place, less=less: less[place.path], number)


def test_what_is_picked_must_be_in_the_domain():
    space = Space({"a": tune.uniform(0, 1), "b": tune.choice(["x", "y"]), "q": tune.quniform(0, 1, 0.1)})

    def assemble(**changes):
        picks = {"a": 0.5, "b": 1, "q": 0.30000000000000004, **changes}
        return space.assemble_config(lambda place: picks[place.name])

    assert assemble() == {"a": 0.5, "b": "y", "q": 0.3}
    with pytest.raises(ValueError, match=r"param_space\['a'\] must be in uniform.*, got 2"):
        assemble(a=2)
    with pytest.raises(ValueError, match=r"param_space\['b'\] must be the index of an option of choice.*, got 'y'"):
        assemble(b="y")


def test_functions_see_the_other_values_in_each_way_and_need_each_other_in_any_order():
    space = Space(
        {
            "a": tune.randint(5, 6),
            "deep": {"b": [tune.randint(7, 8)]},
            "spec": tune.sample_from(lambda spec: spec.config.a + spec.config.deep.b[0]),
            "dict": tune.sample_from(lambda config: config["a"] + config["deep"]["b"][0]),
            "both": tune.sample_from(lambda spec: spec.config["a"] + spec.deep["b"][0]),
            "named": tune.sample_from(lambda spec: spec["config"]["a"]),
        }
    )
    assert space.draw(0, 0) == {"a": 5, "deep": {"b": [7]}, "spec": 12, "dict": 12, "both": 12, "named": 5}
    space = Space(
        {
            "c": tune.sample_from(lambda spec: spec.config.b + 1),
            "list": [tune.sample_from(lambda spec: spec.config.list[1] * 2), tune.sample_from(lambda spec: spec["c"])],
            "b": tune.sample_from(lambda spec: spec.config.a + 1),
            "a": tune.sample_from(lambda spec: 1),
        }
    )
    assert space.draw(0, 0) == {"c": 3, "list": [6, 3], "b": 2, "a": 1}


def test_a_function_is_called_once_for_a_trial_and_only_where_its_option_is_chosen():
    called = []
    once = tune.sample_from(lambda spec: called.append(1) or len(called))
    again = tune.sample_from(lambda spec: spec.config.once)
    assert Space({"x": again, "once": once, "y": again}).draw(0, 0) == {"x": 1, "once": 1, "y": 1}
    called.clear()
    space = Space({"x": tune.choice([1, {"made": tune.sample_from(lambda spec: called.append(1))}])})
    configs = [space.draw(number, 0) for number in range(40)]
    assert 0 < len(called) == sum(isinstance(config["x"], dict) for config in configs) < 40


def test_refuses_functions_that_depend_on_each_other_in_a_circle():
    a, b = {"x": tune.sample_from(lambda spec: spec.config.b)}, tune.sample_from(lambda spec: spec.config.c)
    space = Space({"a": a, "b": b, "c": tune.sample_from(lambda spec: spec.config.a.x)})
    circle = "param_space['a']['x'] needs param_space['b'] needs param_space['c'] needs param_space['a']['x']"
    with pytest.raises(ValueError, match=re.escape(circle)):
        space.draw(0, 0)
    with pytest.raises(ValueError, match=r"param_space\['a'\] needs param_space\['a'\]"):
        Space({"a": tune.sample_from(lambda spec: dict(spec.config))}).draw(0, 0)


def test_a_function_may_return_what_it_was_shown():
    shown = {"a": (1, [tune.randint(2, 3)]), "b": tune.sample_from(lambda spec: 4)}
    space = Space({"x": shown, "y": tune.sample_from(lambda spec: [spec.config.x, spec.config.x.a])})
    config = space.draw(0, 0)
    assert same(config["y"], [{"a": (1, [2]), "b": 4}, (1, [2])])
    config["y"][0]["a"][1].append(5)
    assert config["x"]["a"] == (1, [2])


def test_an_error_of_a_function_stays_its_own_and_says_whose_it_is_and_what_there_is():
    with pytest.raises(ZeroDivisionError) as failure:
        Space({"m": {"f": tune.sample_from(lambda spec: 1 / 0)}}).draw(0, 0)
    assert failure.value.__notes__ == ["in the sample_from function of param_space['m']['f']"]
    with pytest.raises(ValueError, match=r"function of param_space\['f'\] must return a value, got uniform\(0.0, 1.0"):
        Space({"f": tune.sample_from(lambda spec: [tune.uniform(0, 1)])}).draw(0, 0)
    with pytest.raises(AttributeError, match="unknown name 'lr'; the values are 'rate', 'f'"):
        Space({"rate": 1, "f": tune.sample_from(lambda spec: spec.config.lr)}).draw(0, 0)
    with pytest.raises(KeyError, match="unknown name 'lr'"):
        Space({"rate": 1, "f": tune.sample_from(lambda spec: spec["lr"])}).draw(0, 0)
    assert Space({"rate": 1, "f": tune.sample_from(lambda spec: spec.get("lr", 5))}).draw(0, 0)["f"] == 5
    assert Space({"rate": 1, "f": tune.sample_from(lambda spec: "lr" in spec)}).draw(0, 0)["f"] is False


def test_the_usual_generators_are_seeded_for_a_function_and_left_as_they_were():
    space = Space({"x": ALL["noise"], "y": ALL["noise"]})
    random.seed(1)
    np.random.seed(1)
    expected = random.Random(1).random(), np.random.RandomState(1).random_sample()
    first = space.draw(0, 0)
    assert (random.random(), np.random.random_sample()) == expected
    assert space.draw(0, 0) == first
    assert len({*first["x"], *first["y"], *space.draw(1, 0)["x"], *space.draw(0, 1)["x"]}) == 8


class Odd(dict[str, Any]):
    pass


def _circle():
    circle = {"a": [1]}
    circle["a"].append(circle)
    return circle


@pytest.mark.parametrize(
    ("param_space", "message"),
    [
        ([1], "param_space must be a dict of parameters, got [1]"),
        (tune.grid_search([{"a": 1}, 2]), "param_space must be a dict of parameters, got 2"),
        ({"a": Odd(b=tune.uniform(0, 1))}, "param_space['a'] is a Odd with uniform(0.0, 1.0) in it"),
        ({"a": {(1, 2): tune.randn()}}, "param_space['a'] is a dict with randn(0.0, 1.0) in it"),
        ({"a": {math.nan: 1}}, "the keys of param_space['a'] must be strings or finite numbers, got nan"),
        ({"a": {"grid_search": []}}, "param_space['a'] is a grid_search without values"),
        ({"a": {"grid_search": 3}}, "param_space['a']['grid_search'] must be a list of values, got 3"),
        ({"a": {"grid_serach": [1]}}, "unknown key 'grid_serach' in param_space['a']"),
        ({"a": tune.uniform}, "param_space['a'] is the function tune.uniform itself"),
        ({"a": [FloatDistribution(0, 1)]}, "param_space['a'][0] is a optuna.distributions.FloatDistribution"),
        (_circle(), "param_space['a'][1] contains itself"),
        (
            {"m": {"a": tune.choice([1, {"b": tune.grid_search([1, 2])}])}},
            "param_space['m']['a'](option 1)['b'] is a grid_search inside an option of the choice at param_space['m']",
        ),
    ],
)
def test_what_is_no_space_is_refused_at_once_by_its_path(param_space, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Space(param_space)
