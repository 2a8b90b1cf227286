"""Grid and random search, and searchers around searchers: a limit of trials at a time, repetitions with averages."""

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.tune.search.basic_variant import BasicVariantGenerator  # where Ray has it
from paceline.tune.search.searcher import Searcher
from paceline.tune.search.wrappers import TRIAL_INDEX, ConcurrencyLimiter, Repeater
from paceline.tune.space import Space
from paceline.tune.space import domains as tune

PARAM_SPACE = {
    "a": tune.uniform(1.0, 4.0),
    "b": tune.grid_search(["Alpha", "Beta"]),
    "c": tune.sample_from(lambda spec: spec.config["a"] * -1),
    "d": {"e": tune.grid_search([1, 2, 3]), "f": "constant"},
}


def searcher(num_samples=1, seed=0, param_space=None, **arguments):
    generator = BasicVariantGenerator(**arguments)
    space = PARAM_SPACE if param_space is None else param_space
    assert generator.set_search_properties(None, None, space, num_samples=num_samples, seed=seed)
    return generator


def all_of(generator, limit=200):
    configs = []
    for number in range(limit):
        config = generator.suggest(f"{number:05}")
        if config == generator.FINISHED:
            return configs
        generator.on_trial_complete(f"{number:05}")
        configs.append(config)
    raise AssertionError(f"more than {limit} trials")


def test_the_grid_is_repeated_num_samples_times_or_without_end():
    generator = searcher(num_samples=3)
    configs = all_of(generator)
    assert generator.total_samples == len(configs) == 18
    grid = [(letter, number) for letter in ("Alpha", "Beta") for number in (1, 2, 3)]
    assert [(config["b"], config["d"]["e"]) for config in configs] == grid * 3
    assert len({config["a"] for config in configs}) == 18
    assert all(config["c"] == -config["a"] and config["d"]["f"] == "constant" for config in configs)
    assert configs == [Space(PARAM_SPACE).draw(number, 0) for number in range(18)]
    assert generator.suggest("x") == generator.suggest("y") == generator.FINISHED
    generator = searcher(num_samples=-1)
    assert generator.total_samples is None
    configs = [generator.suggest(str(number)) for number in range(100)]
    assert [config["b"] for config in configs] == [*(["Alpha"] * 3 + ["Beta"] * 3) * 17][:100]


@given(st.integers(0, 17), st.integers(0, 2**40), st.booleans())
def test_a_rebuilt_searcher_continues_as_the_first_would_have(done, seed, constant):
    arguments = {"constant_grid_search": constant, "points_to_evaluate": [{"a": 2.0, "b": "Beta"}]}
    undisturbed = all_of(searcher(num_samples=3, seed=seed, **arguments))
    again = searcher(num_samples=3, seed=seed, **arguments)
    for number, config in enumerate(undisturbed[:done]):
        again.rebuild(f"{number:05}", config)
        again.on_trial_complete(f"{number:05}")
    assert all_of(again) == undisturbed[done:]


def test_rebuilding_calls_no_function_of_the_space_and_arguments_are_attributes():
    called = []
    generator = searcher(num_samples=2, param_space={"x": tune.sample_from(lambda spec: called.append(1))})
    generator.rebuild("00000", {"x": None})
    assert called == []
    assert generator.suggest("00001") == {"x": None}
    points = [{"a": 2.0}]
    generator = BasicVariantGenerator(points, 3, True, np.random.default_rng(5))
    assert (generator.points_to_evaluate, generator.max_concurrent, generator.constant_grid_search) == (points, 3, True)
    assert type(generator.random_state) is int


@pytest.mark.parametrize("constant", [False, True])
def test_points_come_first_and_what_they_leave_open_is_drawn(constant):
    points = [{"a": 3.0, "b": "Alpha", "d": {"e": 2}}, {"c": -7.0, "b": "Beta"}]
    generator = searcher(num_samples=3, points_to_evaluate=points, constant_grid_search=constant)
    configs = all_of(generator)
    assert generator.total_samples == len(configs) == 1 + 3 + 6
    assert configs[0] == {"a": 3.0, "b": "Alpha", "c": -3.0, "d": {"e": 2, "f": "constant"}}
    assert [(each["b"], each["c"], each["d"]["e"]) for each in configs[1:4]] == [("Beta", -7.0, e) for e in (1, 2, 3)]
    assert len({config["a"] for config in configs}) == (3 if constant else 1 + 3 + 6)
    assert all(1.0 <= config["a"] < 4.0 for config in configs)
    assert [config["d"]["e"] for config in configs[4:]] == [1, 2, 3] * 2


def test_a_point_finds_the_option_that_it_is_of():
    size = tune.randint(1, 9)
    options = [{"kind": "net", "width": size}, {"kind": "tree", "depth": size}, (1, tune.randn())]
    space = {"model": tune.choice(options), "flag": tune.choice([1, True])}
    points = [{"model": {"kind": "tree", "depth": 5}}, {"model": {"kind": "net"}}, {"model": (1, 2.5), "flag": True}]
    configs = all_of(searcher(num_samples=3, param_space=space, points_to_evaluate=points))
    assert configs[0]["model"] == {"kind": "tree", "depth": 5}
    assert configs[1]["model"]["kind"] == "net"
    assert 1 <= configs[1]["model"]["width"] < 9
    assert configs[2] == {"model": (1, 2.5), "flag": True}
    assert configs[2]["flag"] is True


def test_no_more_than_max_concurrent_trials_at_a_time():
    generator = searcher(max_concurrent=2)
    assert [generator.suggest(str(number)) is None for number in range(3)] == [False, False, True]
    generator.on_trial_complete("0")
    assert generator.suggest("2")["d"]["e"] == 3
    assert generator.suggest("3") is None
    generator.on_trial_complete("1", error=True)
    generator.on_trial_stopped("2")
    assert generator.suggest("3") is not None
    assert generator.suggest("4") is not None
    assert generator.suggest("5") is None


def test_a_seed_of_its_own_comes_before_that_of_the_search_and_may_be_a_generator():
    assert all_of(searcher(seed=1, random_state=5)) == all_of(searcher(seed=2, random_state=5))
    assert all_of(searcher(seed=1)) != all_of(searcher(seed=2))
    assert (searcher(seed=7).seed, searcher(seed=7, random_state=0).seed) == (7, 0)
    for kind in (np.random.default_rng, np.random.RandomState):
        first, again, other = (searcher(seed=1, random_state=kind(state)).suggest("0") for state in (3, 3, 4))
        assert first == again != other


class Counting(Searcher):
    """Suggests 0, 1, 2, ... and writes down what it is told."""

    def __init__(self, count=100, metric=None):
        super().__init__(metric, "min")
        self.count = count
        self.calls = []
        self.suggested = 0
        self.spec = {}

    def set_search_properties(self, metric, mode, config, **spec):
        self.metric, self.mode, self.spec = metric, mode, spec
        return True

    def suggest(self, trial_id):
        if self.suggested >= self.count:
            return self.FINISHED
        self.suggested += 1
        return {"x": self.suggested - 1}

    def on_trial_result(self, trial_id, result):
        self.calls.append(("result", trial_id, result))

    def on_trial_complete(self, trial_id, result=None, error=False):
        self.calls.append(("complete", trial_id, result, error))

    def on_trial_stopped(self, trial_id, result=None):
        self.calls.append(("stopped", trial_id, result))


def test_a_limit_is_passed_on_and_a_batch_is_followed_by_the_next_once_all_of_it_is_over():
    inner = Counting()
    limited = ConcurrencyLimiter(inner, 2)
    assert [limited.suggest(str(number)) for number in range(3)] == [{"x": 0}, {"x": 1}, None]
    limited.on_trial_result("0", {"loss": 1})
    limited.on_trial_complete("0", {"loss": 2})
    assert limited.suggest("2") == {"x": 2}
    assert limited.suggest("3") is None
    limited.on_trial_stopped("1", {"loss": 3})
    limited.on_trial_complete("2", error=True)
    assert inner.calls == [
        ("result", "0", {"loss": 1}),
        ("complete", "0", {"loss": 2}, False),
        ("stopped", "1", {"loss": 3}),
        ("complete", "2", None, True),
    ]
    inner = Counting()
    limited = ConcurrencyLimiter(inner, 3, batch=True)
    assert [limited.suggest(str(number)) for number in range(4)] == [{"x": 0}, {"x": 1}, {"x": 2}, None]
    limited.on_trial_complete("1", {"loss": 1})
    limited.on_trial_stopped("0", {"loss": 0})
    assert inner.calls == []
    assert limited.suggest("3") is None
    limited.on_trial_complete("2", error=True)
    calls = [("complete", "1", {"loss": 1}, False), ("stopped", "0", {"loss": 0}), ("complete", "2", None, True)]
    assert inner.calls == calls
    assert limited.suggest("3") == {"x": 3}


def test_a_batch_that_cannot_be_filled_is_over_all_the_same():
    class Shy(Counting):
        """Waits for what it has suggested to be told."""

        def suggest(self, trial_id):
            return None if self.suggested > len(self.calls) else super().suggest(trial_id)

    limited = ConcurrencyLimiter(Shy(3), 2, batch=True)
    configs = []
    for number in range(3):
        configs.append(limited.suggest(str(number)))
        assert limited.suggest("next") is None
        limited.on_trial_complete(str(number))
    assert configs == [{"x": 0}, {"x": 1}, {"x": 2}]
    assert limited.suggest("4") == limited.FINISHED


@given(st.lists(st.integers(0, 9), max_size=40), st.integers(1, 4), st.booleans())
def test_a_limit_holds_in_any_order_and_survives_a_rebuild(order, limit, batch):
    inner, again_inner = Counting(12), Counting(12)
    limited, again = ConcurrencyLimiter(inner, limit, batch), ConcurrencyLimiter(again_inner, limit, batch)
    live = []
    num_suggested = 0
    for number in order:
        config = limited.suggest(f"{num_suggested:05}")
        if config is not None and not isinstance(config, str):
            again.rebuild(f"{num_suggested:05}", config)
            live.append(f"{num_suggested:05}")
            num_suggested += 1
        assert len(live) <= limit
        if live and number < 7:
            over = live.pop(number % len(live))
            limited.on_trial_complete(over, {"loss": number})
            again.on_trial_complete(over, {"loss": number})
    assert again_inner.calls == inner.calls
    assert again.suggest("next") == limited.suggest("next")


def test_what_is_around_a_searcher_needs_and_counts_what_it_does_and_a_limiter_has_the_last_word():
    for wrapped in (ConcurrencyLimiter(BasicVariantGenerator(), 1), Repeater(BasicVariantGenerator())):
        assert wrapped.needs_metric is False
    inner = Counting(metric="loss")
    for wrapped in (ConcurrencyLimiter(inner, 1), Repeater(inner)):
        assert (wrapped.needs_metric, wrapped.metric, wrapped.mode) == (True, "loss", "min")
        assert wrapped.set_search_properties("acc", "max", {}, num_samples=1, seed=3)
        assert (wrapped.metric, wrapped.mode, inner.spec) == ("acc", "max", {"num_samples": 1, "seed": 3})
    limited = ConcurrencyLimiter(BasicVariantGenerator(max_concurrent=1), 2)
    limited.set_search_properties(None, None, {"x": tune.grid_search([1, 2, 3])}, num_samples=2, seed=0)
    assert (limited.counts_samples, limited.total_samples) == (True, 6)
    assert [limited.suggest(str(number)) for number in range(3)] == [{"x": 1}, {"x": 2}, None]
    other = ConcurrencyLimiter(Counting(), 2)
    assert (other.counts_samples, other.total_samples) == (False, None)


def repeated(repeat=3, num_samples=9, metric="loss", **arguments):
    inner = Counting()
    wrapped = Repeater(inner, repeat, **arguments)
    assert wrapped.set_search_properties(metric, "min", {}, num_samples=num_samples, seed=0)
    return wrapped, inner


def test_each_suggestion_is_tried_repeat_times_also_of_a_grid_or_without_end():
    wrapped, inner = repeated(num_samples=7)
    assert inner.spec["num_samples"] == 2
    configs = [wrapped.suggest(str(number)) for number in range(7)]
    assert configs == [{"x": x, TRIAL_INDEX: index} for x in (0, 1) for index in (0, 1, 2)] + [wrapped.FINISHED]
    assert wrapped.suggest("8") == wrapped.FINISHED
    wrapped, _ = repeated(set_index=False)
    assert [wrapped.suggest(str(number)) for number in range(4)] == [{"x": 0}, {"x": 0}, {"x": 0}, {"x": 1}]
    wrapped = Repeater(BasicVariantGenerator(), 2)
    wrapped.set_search_properties(None, None, {"x": tune.grid_search([1, 2, 3])}, num_samples=2, seed=0)
    assert wrapped.counts_samples
    configs = [wrapped.suggest(str(number)) for number in range(7)]
    assert configs == [{"x": x, TRIAL_INDEX: index} for x in (1, 2, 3) for index in (0, 1)] + [wrapped.FINISHED]
    endless = Repeater(BasicVariantGenerator(), 2)
    endless.set_search_properties(None, None, {}, num_samples=-1, seed=0)
    assert [endless.suggest(str(number)) for number in range(4)] == [{TRIAL_INDEX: 0}, {TRIAL_INDEX: 1}] * 2


@pytest.mark.parametrize(
    ("results", "average"),
    [
        ([{"loss": 2.0}, None, {"loss": 4.0}], 3.0),
        ([{"loss": 2.0}, {"loss": math.nan}, {}], 2.0),
        ([{"eval": 1}, None, {"loss": "x"}], None),
        ([None, None, None], None),
    ],
)
def test_averages_repetitions_that_have_the_metric(results, average):
    wrapped, inner = repeated()
    for number in range(3):
        wrapped.suggest(str(number))
    wrapped.on_trial_result("0", {"loss": 100.0})
    for number, result in enumerate(results):
        assert inner.calls == [], "not before all repetitions are over"
        wrapped.on_trial_complete(str(number), result, error=result is None)
    ((kind, trial_id, combined, error),) = inner.calls
    assert (kind, trial_id, combined and combined["loss"], error) == ("complete", "0", average, average is None)


def test_metrics_by_path_and_several_of_them_are_averaged():
    wrapped, inner = repeated(repeat=2, num_samples=2, metric=["eval/loss", "size"])
    for number in range(2):
        wrapped.suggest(str(number))
        wrapped.on_trial_complete(str(number), {"eval": {"loss": number}, "size": 10 * number, "n": 1})
    result = inner.calls[0][2]
    assert (result["eval/loss"], result["size"], result["n"]) == (0.5, 5.0, 1)


@given(st.integers(0, 8))
def test_a_rebuilt_repeater_continues_in_the_middle_of_a_group(done):
    first, _ = repeated()
    configs = [first.suggest(str(number)) for number in range(9)]
    again, inner = repeated()
    for number in range(done):
        again.rebuild(str(number), configs[number])
    assert [again.suggest(str(number)) for number in range(done, 9)] == configs[done:]
    for number in range(9):
        again.on_trial_complete(str(number), {"loss": float(number)})
    assert [(call[1], call[2]["loss"]) for call in inner.calls] == [("0", 1.0), ("3", 4.0), ("6", 7.0)]


def with_point(point):
    return searcher(points_to_evaluate=[point])


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (BasicVariantGenerator, {"points_to_evaluate": {"a": 1}}, " must be a list of configurations, got {'a': 1}"),
        (BasicVariantGenerator, {"points_to_evaluate": [1]}, "points_to_evaluate[0] must be a dict of values, got 1"),
        (BasicVariantGenerator, {"max_concurrent": -1}, "max_concurrent must be a non-negative integer, got -1"),
        (BasicVariantGenerator, {"constant_grid_search": 1}, "constant_grid_search must be True or False, got 1"),
        (BasicVariantGenerator, {"random_state": "a"}, "random_state must be an integer or a numpy generator"),
        (BasicVariantGenerator().suggest, {"trial_id": "0"}, "BasicVariantGenerator has no search space"),
        (searcher, {"points_to_evaluate": [{}, {}]}, "must be at least 2, the number of points_to_evaluate, got 1"),
        (searcher, {"num_samples": 0}, "num_samples must be a positive integer, or -1 for no limit, got 0"),
        (searcher, {"num_samples": True}, "num_samples must be a positive integer, or -1 for no limit, got True"),
        (with_point, {"point": {"a": 9.0}}, "points_to_evaluate[0]['a'] must be in uniform(1.0, 4.0), got 9.0"),
        (with_point, {"point": {"b": "x"}}, "[0]['b'] must be an option of grid_search(['Alpha', 'Beta']), got 'x'"),
        (with_point, {"point": {"z": 1}}, "[0]: unknown key 'z'; the keys of param_space there are 'a', 'b', 'c', 'd'"),
        (with_point, {"point": {"d": {"f": "x"}}}, "[0]['d']['f'] must be 'constant' as in param_space, got 'x'"),
        (with_point, {"point": {"d": 3}}, "points_to_evaluate[0]['d'] must be a dict as in param_space, got 3"),
        (ConcurrencyLimiter, {"searcher": 3, "max_concurrent": 1}, "searcher must be a Searcher, got 3"),
        (ConcurrencyLimiter, {"searcher": Counting(), "max_concurrent": 0}, "must be a positive integer, got 0"),
        (ConcurrencyLimiter, {"searcher": Counting(), "max_concurrent": 1, "batch": 1}, "batch must be True or False"),
        (Repeater, {"searcher": Counting(), "repeat": 0}, "repeat must be a positive integer, got 0"),
        (Repeater, {"searcher": Counting(), "set_index": "no"}, "set_index must be True or False, got 'no'"),
        (repeated, {"num_samples": 2}, "num_samples must be at least repeat=3, got 2"),
    ],
)
def test_a_wrong_argument_is_refused_with_its_name(make, arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make(**arguments)
