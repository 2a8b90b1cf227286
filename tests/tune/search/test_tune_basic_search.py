"""Grid and random search: every combination, as often as asked, the same whenever it is asked again."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.tune import space as tune
from paceline.tune.search.basic import BasicVariantGenerator
from paceline.tune.space import Space

PARAM_SPACE = {
    "a": tune.uniform(1.0, 4.0),
    "b": tune.grid_search(["Alpha", "Beta"]),
    "c": tune.sample_from(lambda spec: spec.config["a"] * -1),
    "d": {"e": tune.grid_search([1, 2, 3]), "f": "constant"},
}


def searcher(num_samples: int = 1, seed: int | None = 0, param_space: Any = None, **arguments: Any) -> Any:
    made = BasicVariantGenerator(**arguments)
    space = PARAM_SPACE if param_space is None else param_space
    assert made.set_search_properties(None, None, space, num_samples=num_samples, seed=seed)
    return made


def all_of(made: BasicVariantGenerator, limit: int = 200) -> list[Any]:
    configs: list[Any] = []
    for number in range(limit):
        config = made.suggest(f"{number:05}")
        if config == made.FINISHED:
            return configs
        made.on_trial_complete(f"{number:05}")
        configs.append(config)
    raise AssertionError(f"more than {limit} trials")


def test_the_grid_is_repeated_num_samples_times() -> None:
    made = searcher(num_samples=3)
    configs = all_of(made)
    assert made.total_samples == len(configs) == 18
    grid = [(letter, number) for letter in ("Alpha", "Beta") for number in (1, 2, 3)]
    assert [(config["b"], config["d"]["e"]) for config in configs] == grid * 3
    assert len({config["a"] for config in configs}) == 18
    assert all(config["c"] == -config["a"] and config["d"]["f"] == "constant" for config in configs)


def test_trials_are_the_draws_of_the_space() -> None:
    assert all_of(searcher(num_samples=2, seed=4)) == [Space(PARAM_SPACE).draw(number, 4) for number in range(12)]


def test_finished_stays_finished() -> None:
    made = searcher()
    all_of(made)
    assert made.suggest("x") == made.suggest("y") == made.FINISHED


def test_no_end_of_samples() -> None:
    made = searcher(num_samples=-1)
    assert made.total_samples is None
    assert [made.suggest(str(number))["b"] for number in range(100)] == (["Alpha"] * 3 + ["Beta"] * 3) * 16 + [
        "Alpha"
    ] * 3 + ["Beta"]


def test_no_metric_is_needed() -> None:
    assert BasicVariantGenerator().needs_metric is False


@given(st.integers(0, 17), st.integers(0, 2**40), st.booleans())
def test_a_searcher_that_was_rebuilt_goes_on_as_the_first_would_have(done: int, seed: int, constant: bool) -> None:
    arguments: dict[str, Any] = {"constant_grid_search": constant, "points_to_evaluate": [{"a": 2.0, "b": "Beta"}]}
    undisturbed = all_of(searcher(num_samples=3, seed=seed, **arguments))
    again = searcher(num_samples=3, seed=seed, **arguments)
    for number, config in enumerate(undisturbed[:done]):
        again.rebuild(f"{number:05}", config)
        again.on_trial_complete(f"{number:05}")
    assert all_of(again) == undisturbed[done:]


def test_rebuilding_calls_no_function_of_the_space() -> None:
    called: list[int] = []
    made = searcher(num_samples=2, param_space={"x": tune.sample_from(lambda spec: called.append(1))})
    made.rebuild("00000", {"x": None})
    assert called == []
    assert made.suggest("00001") == {"x": None}


def test_random_values_may_be_constant_over_the_grid() -> None:
    configs = all_of(searcher(num_samples=2, constant_grid_search=True))
    assert [len({config["a"] for config in configs[begin : begin + 6]}) for begin in (0, 6)] == [1, 1]
    assert configs[0]["a"] != configs[6]["a"]
    assert len({(config["b"], config["d"]["e"]) for config in configs[:6]}) == 6


@pytest.mark.parametrize("constant", [False, True])
def test_points_come_first_and_what_they_leave_open_is_drawn(constant: bool) -> None:
    points = [{"a": 3.0, "b": "Alpha", "d": {"e": 2}}, {"c": -7.0, "b": "Beta"}]
    made = searcher(num_samples=3, points_to_evaluate=points, constant_grid_search=constant)
    configs = all_of(made)
    assert made.total_samples == len(configs) == 1 + 3 + 6
    assert configs[0] == {"a": 3.0, "b": "Alpha", "c": -3.0, "d": {"e": 2, "f": "constant"}}
    assert [(config["b"], config["c"], config["d"]["e"]) for config in configs[1:4]] == [
        ("Beta", -7.0, e) for e in (1, 2, 3)
    ]
    assert len({config["a"] for config in configs[1:4]}) == (1 if constant else 3)
    assert all(1.0 <= config["a"] < 4.0 for config in configs)
    assert [config["d"]["e"] for config in configs[4:]] == [1, 2, 3] * 2


def test_a_point_finds_the_option_that_it_is_of() -> None:
    options = [
        {"kind": "net", "width": tune.randint(1, 9)},
        {"kind": "tree", "depth": tune.randint(1, 9)},
        (1, tune.randn()),
    ]
    space = {"model": tune.choice(options), "flag": tune.choice([1, True])}
    points = [{"model": {"kind": "tree", "depth": 5}}, {"model": {"kind": "net"}}, {"model": (1, 2.5), "flag": True}]
    configs = all_of(searcher(num_samples=3, param_space=space, points_to_evaluate=points))
    assert configs[0]["model"] == {"kind": "tree", "depth": 5}
    assert configs[1]["model"]["kind"] == "net"
    assert 1 <= configs[1]["model"]["width"] < 9
    assert configs[2] == {"model": (1, 2.5), "flag": True}
    assert configs[2]["flag"] is True


@pytest.mark.parametrize(
    ("point", "message"),
    [
        ({"a": 9.0}, "points_to_evaluate[0]['a']=9.0 is not in uniform(1.0, 4.0)"),
        ({"b": "Gamma"}, "points_to_evaluate[0]['b']='Gamma' is not an option of grid_search(['Alpha', 'Beta'])"),
        ({"z": 1}, "points_to_evaluate[0]['z'] is not in param_space, which has 'a', 'b', 'c', 'd' there"),
        ({"d": {"f": "other"}}, "points_to_evaluate[0]['d']['f']='other' is not what it is in param_space: 'constant'"),
        ({"d": 3}, "points_to_evaluate[0]['d']=3 is not a dict, as in param_space"),
    ],
)
def test_a_point_has_to_be_in_the_space(point: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as refusal:
        searcher(points_to_evaluate=[point])
    assert message in str(refusal.value)


def test_all_points_have_to_be_samples() -> None:
    with pytest.raises(ValueError, match="points_to_evaluate has 2 points and num_samples=1"):
        searcher(points_to_evaluate=[{}, {}])


def test_no_more_than_max_concurrent_trials_at_a_time() -> None:
    made = searcher(max_concurrent=2)
    assert [made.suggest(str(number)) is None for number in range(3)] == [False, False, True]
    made.on_trial_complete("0")
    assert made.suggest("2")["d"]["e"] == 3
    assert made.suggest("3") is None
    made.on_trial_complete("1", error=True)
    made.on_trial_stopped("2")
    assert made.suggest("3") is not None
    assert made.suggest("4") is not None
    assert made.suggest("5") is None


def test_a_seed_of_its_own_comes_before_that_of_the_search() -> None:
    assert all_of(searcher(seed=1, random_state=5)) == all_of(searcher(seed=2, random_state=5))
    assert all_of(searcher(seed=1)) != all_of(searcher(seed=2))
    assert searcher(seed=7).seed == 7
    assert searcher(seed=7, random_state=0).seed == 0


def test_a_generator_of_numpy_is_a_seed() -> None:
    def first(state: Any) -> Any:
        return searcher(seed=1, random_state=state).suggest("0")

    for kind in (np.random.default_rng, np.random.RandomState):
        assert first(kind(3)) == first(kind(3)) != first(kind(4))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"points_to_evaluate": {"a": 1}}, "points_to_evaluate={'a': 1} is not a list of configurations"),
        ({"points_to_evaluate": [1]}, "points_to_evaluate[0]=1 is not a dict of values"),
        ({"max_concurrent": -1}, "max_concurrent=-1 is not a whole number of trials, or 0 for no limit"),
        ({"max_concurrent": True}, "max_concurrent=True is not a whole number"),
        ({"constant_grid_search": 1}, "constant_grid_search=1 is not True or False"),
        ({"random_state": "a"}, "random_state='a' is not a whole number or a generator of numpy"),
        ({"random_state": True}, "random_state=True is not a whole number"),
    ],
)
def test_bad_arguments_are_refused_at_once(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as refusal:
        BasicVariantGenerator(**arguments)
    assert message in str(refusal.value)


def test_a_searcher_is_made_again_from_what_it_shows() -> None:
    points = [{"a": 2.0}]
    made = BasicVariantGenerator(points, 3, True, np.random.default_rng(5))
    assert (made.points_to_evaluate, made.max_concurrent, made.constant_grid_search) == (points, 3, True)
    assert type(made.random_state) is int
    assert BasicVariantGenerator().points_to_evaluate == []


def test_the_name_of_ray_tune_is_there_too() -> None:
    from paceline.tune.search.basic_variant import BasicVariantGenerator as Other

    assert Other is BasicVariantGenerator


@pytest.mark.parametrize("num_samples", [0, -2, 1.5, True, "3"])
def test_num_samples_has_to_be_a_number_of_samples(num_samples: Any) -> None:
    with pytest.raises(ValueError, match="is not a whole number of 1 or more, or -1 for no end"):
        searcher(num_samples=num_samples)


def test_a_searcher_without_a_space_says_so() -> None:
    with pytest.raises(ValueError, match="BasicVariantGenerator was asked before set_search_properties"):
        BasicVariantGenerator().suggest("0")
