"""Searchers around searchers: a limit of trials at a time, and repetitions with averages."""

import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.tune import space as tune
from paceline.tune.search.basic import BasicVariantGenerator
from paceline.tune.search.limiter import ConcurrencyLimiter
from paceline.tune.search.repeater import TRIAL_INDEX, Repeater
from paceline.tune.search.searcher import Searcher


class Counting(Searcher):
    """Suggests 0, 1, 2, ... and writes down what it is told."""

    def __init__(self, count: int = 100, metric: Any = None) -> None:
        super().__init__(metric, "min")
        self.count = count
        self.told: list[Any] = []
        self.suggested = 0
        self.spec: dict[str, Any] = {}

    def set_search_properties(self, metric: Any, mode: Any, config: Mapping[str, Any], **spec: Any) -> bool:
        self.metric, self.mode, self.spec = metric, mode, spec
        return True

    def suggest(self, trial_id: str) -> Mapping[str, Any] | str | None:
        if self.suggested >= self.count:
            return self.FINISHED
        self.suggested += 1
        return {"x": self.suggested - 1}

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        self.told.append(("result", trial_id, result))

    def on_trial_complete(self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False) -> None:
        self.told.append(("complete", trial_id, result, error))

    def on_trial_stopped(self, trial_id: str, result: Mapping[str, Any] | None = None) -> None:
        self.told.append(("stopped", trial_id, result))


def test_a_limited_searcher_is_asked_again_when_a_trial_is_over() -> None:
    inner = Counting()
    limited = ConcurrencyLimiter(inner, 2)
    assert [limited.suggest(str(number)) for number in range(3)] == [{"x": 0}, {"x": 1}, None]
    limited.on_trial_result("0", {"loss": 1})
    limited.on_trial_complete("0", {"loss": 2})
    assert limited.suggest("2") == {"x": 2}
    assert limited.suggest("3") is None
    limited.on_trial_stopped("1", {"loss": 3})
    limited.on_trial_complete("2", error=True)
    assert inner.told == [
        ("result", "0", {"loss": 1}),
        ("complete", "0", {"loss": 2}, False),
        ("stopped", "1", {"loss": 3}),
        ("complete", "2", None, True),
    ]


def test_a_batch_is_told_and_followed_by_the_next_once_all_of_it_is_over() -> None:
    inner = Counting()
    limited = ConcurrencyLimiter(inner, 3, batch=True)
    assert [limited.suggest(str(number)) for number in range(4)] == [{"x": 0}, {"x": 1}, {"x": 2}, None]
    limited.on_trial_complete("1", {"loss": 1})
    limited.on_trial_stopped("0", {"loss": 0})
    assert inner.told == []
    assert limited.suggest("3") is None
    limited.on_trial_complete("2", error=True)
    assert inner.told == [
        ("complete", "1", {"loss": 1}, False),
        ("stopped", "0", {"loss": 0}),
        ("complete", "2", None, True),
    ]
    assert limited.suggest("3") == {"x": 3}


def test_a_batch_that_cannot_be_filled_is_over_all_the_same() -> None:
    class Shy(Counting):
        """Waits for what it has suggested to be told."""

        def suggest(self, trial_id: str) -> Mapping[str, Any] | str | None:
            return None if self.suggested > len(self.told) else super().suggest(trial_id)

    limited = ConcurrencyLimiter(Shy(3), 2, batch=True)
    seen = []
    for number in range(3):
        seen.append(limited.suggest(str(number)))
        assert limited.suggest("next") is None
        limited.on_trial_complete(str(number))
    assert seen == [{"x": 0}, {"x": 1}, {"x": 2}]
    assert limited.suggest("4") == limited.FINISHED


@given(st.lists(st.integers(0, 9), max_size=40), st.integers(1, 4), st.booleans())
def test_a_limit_holds_in_any_order_and_a_rebuilt_limiter_goes_on_alike(
    order: list[int], limit: int, batch: bool
) -> None:
    inner, again_inner = Counting(12), Counting(12)
    limited, again = ConcurrencyLimiter(inner, limit, batch), ConcurrencyLimiter(again_inner, limit, batch)
    live: list[str] = []
    made = 0
    for number in order:
        config = limited.suggest(f"{made:05}")
        if config is not None and not isinstance(config, str):
            again.rebuild(f"{made:05}", config)
            live.append(f"{made:05}")
            made += 1
        assert len(live) <= limit
        if live and number < 7:
            over = live.pop(number % len(live))
            limited.on_trial_complete(over, {"loss": number})
            again.on_trial_complete(over, {"loss": number})
    assert again_inner.told == inner.told
    assert again.suggest("next") == limited.suggest("next")


def test_the_limiter_has_the_last_word_over_a_limit_of_the_searcher() -> None:
    inner = BasicVariantGenerator(max_concurrent=1)
    limited = ConcurrencyLimiter(inner, 3)
    limited.set_search_properties(None, None, {}, num_samples=9, seed=0)
    assert [limited.suggest(str(number)) for number in range(4)] == [{}, {}, {}, None]


def test_what_is_around_a_searcher_needs_what_it_needs() -> None:
    for wrapped in (ConcurrencyLimiter(BasicVariantGenerator(), 1), Repeater(BasicVariantGenerator())):
        assert wrapped.needs_metric is False
    inner = Counting(metric="loss")
    for wrapped in (ConcurrencyLimiter(inner, 1), Repeater(inner)):
        assert (wrapped.needs_metric, wrapped.metric, wrapped.mode) == (True, "loss", "min")
        assert wrapped.set_search_properties("acc", "max", {}, num_samples=1, seed=3)
        assert (wrapped.metric, wrapped.mode, inner.spec) == ("acc", "max", {"num_samples": 1, "seed": 3})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ConcurrencyLimiter(3, 1), "searcher=3 is not a Searcher"),
        (lambda: ConcurrencyLimiter(Counting(), 0), "max_concurrent=0 is not a whole number of 1 or more"),
        (lambda: ConcurrencyLimiter(Counting(), True), "max_concurrent=True is not a whole number of 1 or more"),
        (lambda: ConcurrencyLimiter(Counting(), 1, batch=1), "batch=1 is not True or False"),
        (lambda: Repeater(None), "searcher=None is not a Searcher"),
        (lambda: Repeater(Counting(), 0), "repeat=0 is not a whole number of 1 or more"),
        (lambda: Repeater(Counting(), set_index="no"), "set_index='no' is not True or False"),
    ],
)
def test_bad_arguments_are_refused_at_once(make: Any, message: str) -> None:
    with pytest.raises(ValueError) as refusal:
        make()
    assert message in str(refusal.value)


def test_a_limited_grid_is_tried_to_its_end() -> None:
    limited = ConcurrencyLimiter(BasicVariantGenerator(), 2)
    limited.set_search_properties(None, None, {"x": tune.grid_search([1, 2, 3])}, num_samples=2, seed=0)
    assert (limited.counts_samples, limited.total_samples) == (True, 6)
    assert (ConcurrencyLimiter(Counting(), 2).counts_samples, ConcurrencyLimiter(Counting(), 2).total_samples) == (
        False,
        None,
    )


# Repetitions.


def repeated(
    repeat: int = 3, num_samples: int = 9, metric: Any = "loss", **arguments: Any
) -> tuple[Repeater, Counting]:
    inner = Counting()
    wrapped = Repeater(inner, repeat, **arguments)
    assert wrapped.set_search_properties(metric, "min", {}, num_samples=num_samples, seed=0)
    return wrapped, inner


def test_each_suggestion_is_tried_repeat_times() -> None:
    wrapped, inner = repeated(num_samples=7)
    assert inner.spec["num_samples"] == 2
    configs = [wrapped.suggest(str(number)) for number in range(7)]
    assert configs == [{"x": x, TRIAL_INDEX: index} for x in (0, 1) for index in (0, 1, 2)] + [wrapped.FINISHED]
    assert wrapped.suggest("8") == wrapped.FINISHED


def test_the_index_of_a_repetition_may_be_left_out() -> None:
    wrapped, _ = repeated(set_index=False)
    assert [wrapped.suggest(str(number)) for number in range(4)] == [{"x": 0}, {"x": 0}, {"x": 0}, {"x": 1}]


def test_the_searcher_is_told_the_average_once_all_repetitions_are_over() -> None:
    wrapped, inner = repeated()
    for number in range(6):
        wrapped.suggest(str(number))
    wrapped.on_trial_result("0", {"loss": 100.0})
    wrapped.on_trial_complete("2", {"loss": 6.0})
    wrapped.on_trial_complete("3", {"loss": 50.0})
    wrapped.on_trial_complete("0", {"loss": 1.0})
    assert inner.told == []
    wrapped.on_trial_stopped("1", {"loss": 2.0})
    ((kind, trial_id, result, error),) = inner.told
    assert (kind, trial_id, result["loss"], error) == ("complete", "0", 3.0, False)


@pytest.mark.parametrize(
    ("results", "average"),
    [
        ([{"loss": 2.0}, None, {"loss": 4.0}], 3.0),
        ([{"loss": 2.0}, {"loss": math.nan}, {}], 2.0),
        ([{"eval": 1}, None, {"loss": "x"}], None),
        ([None, None, None], None),
    ],
)
def test_repetitions_without_the_metric_are_left_out_of_the_average(results: list[Any], average: float | None) -> None:
    wrapped, inner = repeated()
    for number in range(3):
        wrapped.suggest(str(number))
    for number, result in enumerate(results):
        wrapped.on_trial_complete(str(number), result, error=result is None)
    ((_, trial_id, told, error),) = inner.told
    assert (trial_id, told and told["loss"], error) == ("0", average, average is None)


def test_metrics_by_path_and_several_of_them_are_averaged() -> None:
    wrapped, inner = repeated(repeat=2, num_samples=2, metric=["eval/loss", "size"])
    for number in range(2):
        wrapped.suggest(str(number))
        wrapped.on_trial_complete(str(number), {"eval": {"loss": number}, "size": 10 * number, "n": 1})
    told = inner.told[0][2]
    assert (told["eval/loss"], told["size"], told["n"]) == (0.5, 5.0, 1)


@given(st.integers(0, 8))
def test_a_rebuilt_repeater_goes_on_in_the_middle_of_a_group(done: int) -> None:
    first, _ = repeated()
    configs = [first.suggest(str(number)) for number in range(9)]
    again, inner = repeated()
    for number in range(done):
        again.rebuild(str(number), configs[number])
    assert [again.suggest(str(number)) for number in range(done, 9)] == configs[done:]
    for number in range(9):
        again.on_trial_complete(str(number), {"loss": float(number)})
    assert [(told[1], told[2]["loss"]) for told in inner.told] == [("0", 1.0), ("3", 4.0), ("6", 7.0)]


def test_a_repeated_grid_is_tried_to_its_end() -> None:
    wrapped = Repeater(BasicVariantGenerator(), 2)
    wrapped.set_search_properties(None, None, {"x": tune.grid_search([1, 2, 3])}, num_samples=2, seed=0)
    assert wrapped.counts_samples
    configs = [wrapped.suggest(str(number)) for number in range(7)]
    assert configs[:-1] == [{"x": x, TRIAL_INDEX: index} for x in (1, 2, 3) for index in (0, 1)]
    assert configs[-1] == wrapped.FINISHED


def test_fewer_samples_than_repetitions_are_refused() -> None:
    with pytest.raises(ValueError, match="num_samples=2 is less than repeat=3, so nothing would be run"):
        repeated(num_samples=2)


def test_samples_without_end_are_repeated_without_end() -> None:
    wrapped = Repeater(BasicVariantGenerator(), 2)
    wrapped.set_search_properties(None, None, {}, num_samples=-1, seed=0)
    assert [wrapped.suggest(str(number)) for number in range(4)] == [{TRIAL_INDEX: 0}, {TRIAL_INDEX: 1}] * 2
