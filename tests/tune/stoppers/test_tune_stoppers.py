"""What ends a trial or a search, each stopper on its own."""

import copy
import logging
import math
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.tune.stopper import MaximumIterationStopper as ByAnotherName
from paceline.tune.stoppers import (
    CombinedStopper,
    ExperimentPlateauStopper,
    FunctionStopper,
    MaximumIterationStopper,
    NoopStopper,
    Stopper,
    ThresholdStopper,
    TimeoutStopper,
    TrialPlateauStopper,
    stopper_of,
)


def stops(stopper: Stopper, losses: Sequence[Any], trial_id: str = "a") -> list[bool]:
    return [stopper(trial_id, {"training_iteration": i, "loss": loss}) for i, loss in enumerate(losses, start=1)]


# Iterations


def test_a_trial_ends_at_its_last_iteration() -> None:
    stopper = MaximumIterationStopper(3)
    assert stops(stopper, [0] * 4) == [False, False, True, True]
    assert stops(stopper, [0] * 2, "b") == [False, False]
    assert stopper.why == "it has made 3 iterations (max_iter)"
    assert ByAnotherName is MaximumIterationStopper


def test_iterations_of_what_a_trial_was_cloned_from_count() -> None:
    assert MaximumIterationStopper(10)("a", {"training_iteration": 10})


def test_reports_are_counted_where_they_do_not_say_their_number() -> None:
    stopper = MaximumIterationStopper(2)
    assert [stopper("a", {}), stopper("b", {}), stopper("a", {})] == [False, False, True]


@pytest.mark.parametrize("max_iter", [0, -1, 1.5, True, "3"])
def test_a_number_of_iterations_is_whole(max_iter: Any) -> None:
    with pytest.raises(ValueError, match="max_iter="):
        MaximumIterationStopper(max_iter)


# Dicts


def test_a_dict_stops_when_any_of_its_values_is_reached() -> None:
    stopper = stopper_of({"training_iteration": 10, "accuracy": 0.9})
    assert not stopper("a", {"training_iteration": 9, "accuracy": 0.89})
    assert stopper("a", {"training_iteration": 9, "accuracy": 0.9})
    assert stopper.why == "accuracy 0.9 has reached 0.9"
    assert stopper("a", {"training_iteration": 11, "accuracy": 1.0})
    assert stopper.why == "training_iteration 11 has reached 10, accuracy 1.0 has reached 0.9"


def test_nested_metrics_are_named_by_path_or_by_nested_dicts() -> None:
    for limits in ({"eval/accuracy": 0.9}, {"eval": {"accuracy": 0.9}}):
        stopper = stopper_of(limits)
        assert stopper("a", {"eval": {"accuracy": 0.95}})
        assert stopper("a", {"eval/accuracy": 0.95})
        assert not stopper("a", {"eval": {"accuracy": 0.5}})


def test_nan_reaches_nothing_and_true_reaches_true() -> None:
    assert not ThresholdStopper({"loss": 0.1})("a", {"loss": math.nan})
    assert ThresholdStopper({"done": True})("a", {"done": True})
    assert not ThresholdStopper({"done": True})("a", {"done": False})


def test_a_name_that_the_first_report_is_without_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    stopper = stopper_of({"accuracy": 0.9, "epoch": 5})
    for _ in range(3):
        assert not stopper("00002", {"acuracy": 1.0, "training_iteration": 1, "epoch": "one"})
    first, second = (record.getMessage() for record in caplog.records)
    assert first == (
        "stop: the first report, of trial 00002, has no number 'accuracy' (did you mean 'acuracy'?). Reports without "
        "it stop nothing. It has acuracy, training_iteration, epoch"
    )
    assert "has no number 'epoch' but 'one'." in second
    assert stopper("00002", {"accuracy": 1.0})


def test_a_metric_that_is_there_only_now_and_then_is_not_worth_a_word(caplog: pytest.LogCaptureFixture) -> None:
    stopper = stopper_of({"accuracy": 0.9})
    assert not stopper("a", {"accuracy": 0.5})
    assert not stopper("a", {"loss": 0.5})
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"loss": "0.1"}, "stop={'loss': '0.1'} is not a number"),
        ({"eval": {"loss": None}}, "stop={'eval/loss': None}"),
        ({"loss": math.nan}, "stop={'loss': nan}"),
        ({3: 4}, "has the key 3"),
    ],
)
def test_a_dict_has_names_and_numbers(limits: Any, said: str) -> None:
    with pytest.raises(ValueError) as caught:
        stopper_of(limits)
    assert said in str(caught.value)


# Plateaus of a trial


def test_a_trial_ends_when_its_last_results_hardly_differ() -> None:
    stopper = TrialPlateauStopper("loss", std=0.1, num_results=3, grace_period=0)
    # 1, 1.2, 1.3 have a deviation of 0.125; 1.2, 1.3, 1.4 of 0.0816.
    assert stops(stopper, [1, 1.2, 1.3, 1.4]) == [False, False, False, True]
    assert stopper.why == "loss has reached a plateau: its last 3 values differ by 0.082 (std 0.1)"


def test_a_plateau_counts_after_the_grace_period_and_with_enough_results() -> None:
    assert stops(TrialPlateauStopper("loss"), [1] * 5) == [False, False, False, True, True]
    assert stops(TrialPlateauStopper("loss", grace_period=5, num_results=2), [1] * 5) == [False] * 4 + [True]
    assert stops(TrialPlateauStopper("loss", grace_period=1, num_results=3), [1] * 3) == [False, False, True]


@pytest.mark.parametrize(("mode", "good", "bad"), [("min", 0.4, 0.6), ("max", 0.6, 0.4)])
def test_a_plateau_has_to_be_good_enough(mode: str, good: float, bad: float) -> None:
    stopper = TrialPlateauStopper("loss", metric_threshold=0.5, mode=mode)
    assert stops(stopper, [bad] * 6) == [False] * 6
    assert stops(stopper, [good] * 4, "b") == [False] * 3 + [True]


@pytest.mark.parametrize("odd", [math.nan, math.inf, None, 10**400])
def test_no_plateau_is_made_of_what_is_no_number(odd: Any) -> None:
    stopper = TrialPlateauStopper("loss", num_results=2, grace_period=0)
    assert stops(stopper, [1.0, odd, 2.0]) == [False] * 3


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"metric": ""}, "metric=''"),
        ({"metric": "loss", "std": -1}, "std=-1"),
        ({"metric": "loss", "num_results": 1}, "num_results=1"),
        ({"metric": "loss", "grace_period": 1.5}, "grace_period=1.5"),
        ({"metric": "loss", "metric_threshold": 1.0}, "mode=None"),
        ({"metric": "loss", "mode": "least"}, "mode='least'"),
    ],
)
def test_bad_arguments_of_a_plateau_are_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        TrialPlateauStopper(**options)


# Plateaus of a search


def test_a_search_ends_when_its_best_results_hardly_differ() -> None:
    stopper = ExperimentPlateauStopper("loss", std=0.1, top=3)
    assert stops(stopper, [9, 1, 5]) == [False] * 3
    assert stops(stopper, [1.1], "b") == [False]  # 1, 1.1, 5
    assert not stopper.stop_all()
    assert stops(stopper, [1.2], "c") == [True]  # 1, 1.1, 1.2
    assert stopper.stop_all()
    assert stopper.why.startswith("the best 3 values of loss over all trials have differed by no more than 0.1 (std)")
    assert stops(stopper, [7], "c") == [True]  # The best are the same.
    assert stops(stopper, [-9], "c") == [False]
    assert not stopper.stop_all()


def test_a_search_has_patience() -> None:
    stopper = ExperimentPlateauStopper("loss", top=2, mode="max", patience=2)
    assert stops(stopper, [1, 1, 0, 0, 0]) == [False, False, False, True, True]


def test_nan_is_none_of_the_best() -> None:
    for mode in ("min", "max"):
        stopper = ExperimentPlateauStopper("loss", top=2, mode=mode)
        assert stops(stopper, [math.nan] * 4) == [False] * 4
        assert stops(stopper, [1, math.nan, 1]) == [False, False, True]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mode": "best"}, "mode='best'"),
        ({"top": 1}, "top=1"),
        ({"std": 0}, "std=0"),
        ({"patience": -1}, "patience=-1"),
    ],
)
def test_bad_arguments_of_a_search_s_plateau_are_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ExperimentPlateauStopper("loss", **options)


# Time


class Clock:
    def __init__(self) -> None:
        self.at = 1000.0

    def now(self) -> float:
        return self.at

    def wall(self) -> float:
        raise AssertionError("the time of day does not matter")


@pytest.mark.parametrize("timeout", [60, 60.0, timedelta(minutes=1)])
def test_a_search_ends_after_its_time(timeout: Any) -> None:
    clock = Clock()
    stopper = TimeoutStopper(timeout, clock)
    clock.at += 500  # What came before the search does not count.
    assert not stopper.stop_all()
    clock.at += 59
    assert not stopper.stop_all()
    clock.at += 1
    assert stopper.stop_all()
    assert not stopper("a", {})
    assert stopper.why == "the search has run for 60 s (timeout)"


def test_a_continued_search_has_what_is_left_of_its_time() -> None:
    clock = Clock()
    stopper = TimeoutStopper(60, clock)
    stopper.continued(45.0)
    assert not stopper.stop_all()
    clock.at += 14
    assert not stopper.stop_all()
    clock.at += 1
    assert stopper.stop_all()
    over = CombinedStopper(MaximumIterationStopper(3), TimeoutStopper(60, clock))
    over.continued(60.0)
    assert over.stop_all()
    assert over.why == "the search has run for 60 s (timeout)"


@pytest.mark.parametrize("timeout", [0, -1, math.nan, math.inf, None, "60", timedelta(0), True])
def test_a_timeout_is_a_time(timeout: Any) -> None:
    with pytest.raises(ValueError, match="timeout="):
        TimeoutStopper(timeout)


# Functions, several, none


def test_a_function_stops_trials() -> None:
    def is_low(trial_id: str, result: dict[str, Any]) -> bool:
        return trial_id == "a" and result["loss"] < 0.5

    stopper = stopper_of(is_low)
    assert stops(stopper, [1, 0.5, 0.4]) == [False, False, True]
    assert stops(stopper, [0.4], "b") == [False]
    assert stopper.why == "is_low() has stopped it"
    assert not stopper.stop_all()


def test_several_stoppers_see_every_result_and_any_stops() -> None:
    stopper = CombinedStopper(MaximumIterationStopper(4), TrialPlateauStopper("loss", num_results=2, grace_period=0))
    assert stops(stopper, [1, 2, 2, 2]) == [False, False, True, True]
    assert "plateau" in stopper.why
    assert stopper.why.startswith("it has made 4 iterations")
    assert not stopper.stop_all()
    assert not CombinedStopper()("a", {})


def test_a_list_is_several() -> None:
    stopper = stopper_of([{"training_iteration": 2}, lambda trial_id, result: result["loss"] > 9])
    assert stops(stopper, [1, 1]) == [False, True]
    assert stops(stopper, [10], "b") == [True]


def test_nothing_stops_nothing() -> None:
    stopper = stopper_of(None)
    assert isinstance(stopper, NoopStopper)
    assert stops(stopper, [math.nan] * 3) == [False] * 3
    assert not stopper.stop_all()
    assert not stopper.decides


def test_only_stoppers_that_may_stop_a_trial_keep_it_waiting() -> None:
    timeout = TimeoutStopper(60)
    assert not timeout.decides
    assert not CombinedStopper(timeout, NoopStopper()).decides
    assert CombinedStopper(timeout, MaximumIterationStopper(3)).decides


def test_what_is_no_stopper_is_refused_with_what_would_be() -> None:
    with pytest.raises(ValueError, match=r"stop=10 is neither a dict such as {'training_iteration': 10}"):
        stopper_of(10)
    with pytest.raises(ValueError, match=r"is a class\n\nhint: stop=NoopStopper\(...\)"):
        stopper_of(NoopStopper)
    with pytest.raises(ValueError, match="cannot be called with a trial's id and its result"):
        stopper_of(lambda result: True)
    with pytest.raises(ValueError, match="is not a Stopper"):
        CombinedStopper({"loss": 1})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="is not a function"):
        FunctionStopper(3)  # type: ignore[arg-type]
    mine = Stopper()
    assert stopper_of(mine) is mine


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([0, 1, 1.001, math.nan, -1])), max_size=30))
def test_told_again_a_stopper_says_the_same(told: list[tuple[str, float]]) -> None:
    stoppers = [
        CombinedStopper(
            TrialPlateauStopper("loss", num_results=2),
            ExperimentPlateauStopper("loss", top=3, patience=1),
            MaximumIterationStopper(9),
            ThresholdStopper({"loss": 1.001}),
        )
    ]
    stoppers.append(copy.deepcopy(stoppers[0]))
    said = [
        [(stopper(trial_id, {"loss": loss}), stopper.stop_all(), stopper.why) for trial_id, loss in told]
        for stopper in stoppers
    ]
    assert said[0] == said[1]
