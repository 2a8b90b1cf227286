"""What ends a trial or a search, each stopper on its own."""

import math
import re
from datetime import timedelta

import pytest

from paceline.testing import FakeClock
from paceline.tune.stopper import (  # where Ray has them
    CombinedStopper,
    ExperimentPlateauStopper,
    FunctionStopper,
    MaximumIterationStopper,
    NoopStopper,
    ThresholdStopper,
    TimeoutStopper,
    TrialPlateauStopper,
    stopper_of,
)


def stops(stopper, losses, trial_id="a"):
    return [stopper(trial_id, {"training_iteration": i, "loss": loss}) for i, loss in enumerate(losses, start=1)]


def test_a_trial_ends_at_its_last_iteration_and_reports_without_a_number_are_counted():
    stopper = MaximumIterationStopper(3)
    assert stops(stopper, [0] * 4) == [False, False, True, True]
    assert stops(stopper, [0] * 2, "b") == [False, False]
    assert stopper("a clone", {"training_iteration": 10})
    assert stopper.why == "reached 3 iterations (max_iter)"
    stopper = MaximumIterationStopper(2)
    assert [stopper("a", {}), stopper("b", {}), stopper("a", {})] == [False, False, True]


def test_a_dict_stops_when_any_of_its_values_is_reached_also_nested_ones():
    stopper = stopper_of({"training_iteration": 10, "accuracy": 0.9})
    assert not stopper("a", {"training_iteration": 9, "accuracy": 0.89})
    assert stopper("a", {"training_iteration": 9, "accuracy": 0.9})
    assert stopper.why == "accuracy 0.9 reached 0.9"
    assert stopper("a", {"training_iteration": 11, "accuracy": 1.0})
    assert stopper.why == "training_iteration 11 reached 10, accuracy 1.0 reached 0.9"
    for limits in ({"eval/accuracy": 0.9}, {"eval": {"accuracy": 0.9}}):
        stopper = stopper_of(limits)
        assert stopper("a", {"eval": {"accuracy": 0.95}})
        assert stopper("a", {"eval/accuracy": 0.95})
        assert not stopper("a", {"eval": {"accuracy": 0.5}})
    assert not ThresholdStopper({"loss": 0.1})("a", {"loss": math.nan})
    assert [ThresholdStopper({"done": True})("a", {"done": done}) for done in (True, False)] == [True, False]


def test_a_name_that_the_first_report_lacks_is_named_once(caplog):
    stopper = stopper_of({"accuracy": 0.9, "epoch": 5})
    for _ in range(3):
        assert not stopper("00002", {"acuracy": 1.0, "training_iteration": 1, "epoch": "one"})
    first, second = (record.getMessage() for record in caplog.records)
    assert first == (
        "stop: the first report, of trial 00002, has no number 'accuracy' (did you mean 'acuracy'?). Reports without "
        "it stop nothing; this one has acuracy, training_iteration, epoch"
    )
    assert "has no number 'epoch' but 'one'." in second
    assert stopper("00002", {"accuracy": 1.0})
    caplog.clear()
    seldom = stopper_of({"accuracy": 0.9})
    assert not seldom("a", {"accuracy": 0.5})
    assert not seldom("a", {"loss": 0.5})
    assert not caplog.records


def test_a_trial_ends_when_its_last_results_hardly_differ():
    stopper = TrialPlateauStopper("loss", std=0.1, num_results=3, grace_period=0)
    # 1, 1.2, 1.3 have a deviation of 0.125; 1.2, 1.3, 1.4 of 0.0816.
    assert stops(stopper, [1, 1.2, 1.3, 1.4]) == [False, False, False, True]
    assert stopper.why == "loss reached a plateau: its last 3 values differ by 0.082 (std 0.1)"
    assert stops(TrialPlateauStopper("loss"), [1] * 5) == [False, False, False, True, True]
    assert stops(TrialPlateauStopper("loss", grace_period=5, num_results=2), [1] * 5) == [False] * 4 + [True]
    assert stops(TrialPlateauStopper("loss", grace_period=1, num_results=3), [1] * 3) == [False, False, True]


@pytest.mark.parametrize(("mode", "good", "bad"), [("min", 0.4, 0.6), ("max", 0.6, 0.4)])
def test_a_plateau_has_to_be_good_enough(mode, good, bad):
    stopper = TrialPlateauStopper("loss", metric_threshold=0.5, mode=mode)
    assert stops(stopper, [bad] * 6) == [False] * 6
    assert stops(stopper, [good] * 4, "b") == [False] * 3 + [True]


@pytest.mark.parametrize("odd", [math.nan, math.inf, None, 10**400])
def test_no_plateau_is_made_of_what_is_no_number(odd):
    stopper = TrialPlateauStopper("loss", num_results=2, grace_period=0)
    assert stops(stopper, [1.0, odd, 2.0]) == [False] * 3
    for mode in ("min", "max"):
        stopper = ExperimentPlateauStopper("loss", top=2, mode=mode)
        assert stops(stopper, [math.nan] * 4) == [False] * 4
        assert stops(stopper, [1, math.nan, 1]) == [False, False, True]


def test_a_search_ends_when_its_best_results_hardly_differ():
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
    stopper = ExperimentPlateauStopper("loss", top=2, mode="max", patience=2)
    assert stops(stopper, [1, 1, 0, 0, 0]) == [False, False, False, True, True]
    stopper = ExperimentPlateauStopper("loss", top=2, patience=5)
    assert [stopper("a", {"loss": 1.0}) or stopper.has_plateaued() for _ in range(3)] == [False, True, True]


@pytest.mark.parametrize("timeout", [60, timedelta(minutes=1)])
@pytest.mark.parametrize("ran_s", [0.0, 45.0])
def test_a_search_ends_after_its_time_of_which_earlier_drivers_used_some(timeout, ran_s):
    clock = FakeClock(1000.0)
    stopper = TimeoutStopper(timeout, clock)
    stopper.continued(ran_s)
    clock.advance(500)  # What came before the search does not count.
    assert not stopper.stop_all()
    clock.advance(59 - ran_s)
    assert not stopper.stop_all()
    clock.advance(1)
    assert stopper.stop_all()
    assert not stopper("a", {})
    assert stopper.why == "the search has run for 60 s (timeout)"
    combined = CombinedStopper(MaximumIterationStopper(3), TimeoutStopper(timeout, clock))
    combined.continued(60.0)
    assert combined.stop_all()
    assert combined.why == "the search has run for 60 s (timeout)"


def test_functions_and_several_stoppers_stop_trials():
    def is_low(trial_id, result):
        return trial_id == "a" and result["loss"] < 0.5

    stopper = stopper_of(is_low)
    assert stops(stopper, [1, 0.5, 0.4]) == [False, False, True]
    assert stops(stopper, [0.4], "b") == [False]
    assert stopper.why == "stopped by is_low()"
    assert not stopper.stop_all()
    stopper = CombinedStopper(MaximumIterationStopper(4), TrialPlateauStopper("loss", num_results=2, grace_period=0))
    assert stops(stopper, [1, 2, 2, 2]) == [False, False, True, True]
    assert "plateau" in stopper.why
    assert stopper.why.startswith("reached 4 iterations")
    assert not stopper.stop_all()
    assert not CombinedStopper()("a", {})
    assert FunctionStopper.is_valid_function(is_low)
    assert not any(map(FunctionStopper.is_valid_function, (stopper, 3, lambda only: True)))
    stopper = stopper_of([{"training_iteration": 2}, lambda trial_id, result: result["loss"] > 9])
    assert stops(stopper, [1, 1]) == [False, True]
    assert stops(stopper, [10], "b") == [True]


def test_only_stoppers_that_may_stop_a_trial_keep_it_waiting():
    timeout = TimeoutStopper(60)
    assert not timeout.decides
    assert not CombinedStopper(timeout, NoopStopper()).decides
    assert CombinedStopper(timeout, MaximumIterationStopper(3)).decides
    nothing = stopper_of(None)
    assert stops(nothing, [math.nan] * 3) == [False] * 3
    assert not nothing.stop_all()
    assert not nothing.decides


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: stopper_of(10), "stop must be a dict such as {'training_iteration': 10}"),
        (lambda: stopper_of(NoopStopper), "got the class NoopStopper\n\nhint: use NoopStopper(...)"),
        (lambda: stopper_of(lambda result: True), "stop must be a function of a trial's id and its result"),
        (lambda: stopper_of({"loss": "0.1"}), "stop['loss'] must be a number to reach, got '0.1'"),
        (lambda: stopper_of({"eval": {"loss": None}}), "stop['eval/loss'] must be"),
        (lambda: stopper_of({3: 4}), "the keys of stop must be names of metrics, got 3"),
        (lambda: CombinedStopper({"loss": 1}), "must be a Stopper"),
        (lambda: FunctionStopper(3), "function must be a function, got 3"),
        (lambda: MaximumIterationStopper(0), "max_iter must be a positive integer, got 0"),
        (lambda: TrialPlateauStopper("loss", std=-1), "std must be a non-negative number, got -1"),
        (lambda: TrialPlateauStopper("loss", num_results=1), "num_results must be an integer of at least 2, got 1"),
        (
            lambda: TrialPlateauStopper("loss", metric_threshold=1.0),
            "mode must be 'min' or 'max', got None\n\nhint: metric_threshold is compared according to it",
        ),
        (lambda: TrialPlateauStopper("loss", metric_threshold="low", mode="min"), "metric_threshold must be a number"),
        (lambda: ExperimentPlateauStopper("loss", mode="best"), "mode must be 'min' or 'max', got 'best'"),
        (lambda: ExperimentPlateauStopper("loss", top=1), "top must be an integer of at least 2, got 1"),
        (lambda: ExperimentPlateauStopper("loss", std=0), "std must be a positive number, got 0"),
        (lambda: ExperimentPlateauStopper("loss", patience=-1), "patience must be a non-negative integer, got -1"),
        (lambda: TimeoutStopper(0), "timeout must be a positive number of seconds or a timedelta, got 0"),
        (lambda: TimeoutStopper(timedelta(0)), "timeout must be"),
    ],
)
def test_what_is_no_stopper_is_refused_with_what_would_be(make, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()
