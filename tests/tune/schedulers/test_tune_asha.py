"""ASHA: traces computed by hand, and what holds for any reports in any order."""

import math
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from played_search import Search, curve, fates, negated, searches, shown, state, told_again

from paceline.tune.schedulers import ASHAScheduler, AsyncHyperBandScheduler
from paceline.tune.schedulers.scheduler import Stop
from paceline.tune.trial import Trial


def asha(**options: Any) -> AsyncHyperBandScheduler:
    return ASHAScheduler(**{"metric": "loss", "mode": "min", "max_t": 16, **options})


def decide(scheduler: AsyncHyperBandScheduler, trial_id: str, iteration: float, value: float) -> str:
    answer = scheduler.on_trial_result(
        Trial(trial_id, {}), {scheduler.time_attr: iteration, scheduler.metric or "": value}
    )
    assert all(isinstance(action, Stop) and action.trial_id == trial_id for action in answer)
    return answer[0].why if answer else ""


def add(scheduler: AsyncHyperBandScheduler, *trial_ids: str) -> None:
    for trial_id in trial_ids:
        assert scheduler.on_trial_add(Trial(trial_id, {})) == ()


# Traces


def test_one_in_four_goes_on_at_1_and_at_4() -> None:
    scheduler = asha()
    add(scheduler, *"abcdefghi")
    first = [decide(scheduler, trial, 1, loss) for trial, loss in
             zip("abcdefgh", [0.5, 0.6, 0.4, 0.45, 0.41, 0.3, 0.35, 0.38], strict=True)]  # fmt: skip
    assert [not why for why in first] == [True, False, True, False, False, True, False, False]
    assert first[1] == "loss 0.6 at training_iteration 1 is not the best of 2 trials (needs 0.5)"
    assert first[6] == "loss 0.35 at training_iteration 1 is not the best of 7 trials (needs 0.3)"
    assert first[7] == "loss 0.38 at training_iteration 1 is not among the best 1/4 of 8 trials (needs 0.35)"
    assert not decide(scheduler, "i", 1, 0.34)  # The second best of nine.
    assert [decide(scheduler, "a", i, 0.2) for i in (2, 3)] == ["", ""]
    assert not decide(scheduler, "a", 4, 0.2)
    assert decide(scheduler, "c", 4, 0.21).endswith("is not the best of 2 trials (needs 0.2)")
    assert not decide(scheduler, "f", 4, 0.1)
    assert [decide(scheduler, "f", i, 9.9) for i in range(5, 16)] == [""] * 11
    assert decide(scheduler, "f", 16, 0.1) == "reached max_t: training_iteration 16 of 16"


def test_one_in_two_goes_on_where_more_is_better() -> None:
    scheduler = asha(mode="max", reduction_factor=2, max_t=8)
    add(scheduler, *"abcde")
    # 0.1 | 0.1 0.2 | 0.1 [0.15] 0.2 | 0.1 0.15 0.15 0.2, of which two: a tie goes on | one of them is 0.15
    assert [bool(decide(scheduler, t, 1, v)) for t, v in zip("abcd", [0.1, 0.2, 0.15, 0.15], strict=True)] == [
        False, False, True, False]  # fmt: skip
    assert decide(scheduler, "e", 1, 0.12) == (
        "loss 0.12 at training_iteration 1 is not among the best 1/2 of 5 trials (needs 0.15)"
    )
    assert not decide(scheduler, "a", 2, 0.3)
    assert decide(scheduler, "b", 2, 0.29).endswith("is not the best of 2 trials (needs 0.3)")
    assert decide(scheduler, "d", 2, 0.29).endswith("is not the best of 3 trials (needs 0.3)")
    assert [decide(scheduler, "a", i, 0.0) for i in (3, 4, 5, 6, 7)] == [""] * 5
    assert decide(scheduler, "a", 8, 1.0)


def test_one_in_three_goes_on_from_a_grace_period_of_2() -> None:
    scheduler = asha(reduction_factor=3, grace_period=2, max_t=20)  # Rungs at 2, 6 and 18.
    add(scheduler, *"abcdef")
    assert [decide(scheduler, t, 1, v) for t, v in zip("abcdef", range(6), strict=True)] == [""] * 6
    assert [bool(decide(scheduler, t, 2, v)) for t, v in zip("abcdef", [3, 2, 4, 1, 5, 1.5], strict=True)] == [
        False, False, True, False, True, False]  # fmt: skip
    assert [bool(decide(scheduler, t, 6, v)) for t, v in zip("abdf", [1, 2, 3, 0], strict=True)] == [
        False, True, True, False]  # fmt: skip
    assert [bool(decide(scheduler, t, 18, v)) for t, v in zip("af", [1, 0.5], strict=True)] == [False, False]
    assert decide(scheduler, "a", 19, 7) == ""
    assert decide(scheduler, "a", 20, 7)


def test_brackets_get_their_shares_and_begin_later() -> None:
    scheduler = asha(brackets=2)  # Rungs at 1 and 4, and at 4 alone; shares 0.731 and 0.269.
    add(scheduler, *"abcdef")
    first = [decide(scheduler, trial, 1, loss) for trial, loss in zip("abcdef", [1, 9, 2, 3, 0, 9], strict=True)]
    assert [bool(why) for why in first] == [False, False, True, True, False, False]
    # a and e are in the first bracket, b and f in the second, where only its own trials count.
    assert [bool(decide(scheduler, t, 4, v)) for t, v in zip("abef", [1, 9, 2, 10], strict=True)] == [
        False, False, True, True]  # fmt: skip
    assert decide(scheduler, "b", 15, 99) == ""


def test_more_brackets_than_rungs_are_as_many_as_differ() -> None:
    scheduler = asha(brackets=9)
    assert [[rung.time for rung in bracket.rungs] for bracket in scheduler._brackets] == [[1, 4], [4], []]


def test_many_trials_are_shared_as_their_brackets_weigh() -> None:
    scheduler = asha(brackets=3)
    add(scheduler, *(f"{number}" for number in range(1000)))
    weights = [math.exp(-number) for number in range(3)]
    for bracket, weight in zip(scheduler._brackets, weights, strict=True):
        assert abs(bracket.num_trials - 1000 * weight / sum(weights)) <= 1


# Reports that are not as one expects


def test_a_report_that_jumps_counts_at_the_last_rung_it_has_passed() -> None:
    scheduler = asha(max_t=100)  # Rungs at 1, 4, 16, 64.
    add(scheduler, *"abc")
    assert not decide(scheduler, "a", 5, 1.0)
    assert decide(scheduler, "b", 4, 1.1)  # Compared with the report at 5.
    assert not decide(scheduler, "c", 20, 9.0)  # Alone at 16, and not counted at 1 and 4.
    assert [len(rung.scores) for rung in scheduler._brackets[0].rungs] == [0, 2, 1, 0]
    assert decide(scheduler, "a", 9, 99.0) == ""


def test_times_need_not_be_whole_numbers() -> None:
    scheduler = asha(time_attr="time_total_s", grace_period=0.5, max_t=3.5, reduction_factor=2)  # 0.5, 1, 2
    add(scheduler, *"ab")
    assert [decide(scheduler, "a", t, 1.0) for t in (0.49, 0.5, 0.99, 1.7, 2.01, 3.49)] == [""] * 6
    assert decide(scheduler, "a", 3.5, 1.0) == "reached max_t: time_total_s 3.5 of 3.5"
    assert decide(scheduler, "b", 0.75, 2.0) == "loss 2 at time_total_s 0.75 is not the best of 2 trials (needs 1)"


@pytest.mark.parametrize("mode", ["min", "max"])
def test_nan_is_the_worst_in_either_mode(mode: str) -> None:
    scheduler = asha(mode=mode)
    add(scheduler, *"abcdefghi")
    assert not decide(scheduler, "a", 1, math.nan)
    assert not decide(scheduler, "b", 1, math.nan)  # No worse than the other.
    assert not decide(scheduler, "c", 1, 1e9 if mode == "min" else -1e9)
    assert decide(scheduler, "d", 1, math.nan).startswith(
        "loss nan at training_iteration 1 is not the best of 4 trials"
    )
    for trial in "efgh":  # Two of eight go on, and only one of them is a number.
        assert decide(scheduler, trial, 1, math.nan)


def test_a_report_without_metric_or_time_is_not_judged_and_the_next_one_is(caplog: pytest.LogCaptureFixture) -> None:
    scheduler = asha()
    add(scheduler, *"ab")
    assert not decide(scheduler, "a", 1, 0.5)
    for result in ({"training_iteration": 1}, {"loss": 9.0}, {"training_iteration": 2, "loss": None}):
        assert scheduler.on_trial_result(Trial("b", {}), result) == ()
    assert scheduler.on_trial_result(Trial("b", {}), {"training_iteration": "3", "loss": 9.0}) == ()
    assert decide(scheduler, "b", 4, 9.0) == ""  # The first at rung 4.
    (record,) = caplog.records
    assert "time_attr='training_iteration'" in record.getMessage()
    assert "trial b" in record.getMessage()


def test_a_budget_holds_without_the_metric_too() -> None:
    scheduler = asha()
    add(scheduler, "a")
    (stop,) = scheduler.on_trial_result(Trial("a", {}), {"training_iteration": 16})
    assert isinstance(stop, Stop)


def test_the_metric_may_be_nested() -> None:
    scheduler = asha(metric="eval/loss")
    add(scheduler, *"ab")
    assert scheduler.on_trial_result(Trial("a", {}), {"training_iteration": 1, "eval": {"loss": 1}}) == ()
    assert scheduler.on_trial_result(Trial("b", {}), {"training_iteration": 1, "eval": {"loss": 2}}) != ()


def test_last_trials_go_on_if_they_are_to() -> None:
    scheduler = asha(stop_last_trials=False)
    add(scheduler, "a")
    assert [decide(scheduler, "a", i, 1.0) for i in range(1, 40)] == [""] * 39


# Arguments


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_t": 0}, "max_t=0 is not a number above 0"),
        ({"grace_period": -1}, "grace_period=-1"),
        ({"grace_period": 17}, "grace_period=17 is more than max_t=16"),
        ({"reduction_factor": 1}, "reduction_factor=1 is not a number above 1"),
        ({"brackets": 0}, "brackets=0 is not a whole number of 1 or more"),
        ({"brackets": 1.5}, "brackets=1.5"),
        ({"mode": "low"}, "mode='low' is neither 'min' nor 'max'"),
        ({"metric": ["a", "b"]}, "one metric"),
        ({"time_attr": None}, "time_attr=None"),
        ({"max_t": math.nan}, "max_t=nan"),
    ],
)
def test_bad_arguments_are_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said.replace("[", r"\[")):
        asha(**options)


def test_a_search_without_a_metric_is_refused_when_its_first_trial_is_made() -> None:
    scheduler = ASHAScheduler(mode="min")
    with pytest.raises(ValueError, match="metric=None, mode='min'"):
        add(scheduler, "a")
    assert scheduler.set_search_properties("loss", "min")
    add(scheduler, "a")
    assert not scheduler.set_search_properties("accuracy", "max")
    with pytest.raises(ValueError, match="mode='up'"):
        ASHAScheduler().set_search_properties("loss", "up")


# Properties

factors = st.sampled_from([2, 3, 4, 2.5])


@settings(max_examples=150, deadline=None)
@given(st.data(), factors, st.sampled_from([1, 2, 0.75]), st.integers(1, 3))
def test_a_trial_goes_on_just_if_it_is_among_the_best_of_its_rung_so_far(
    data: st.DataObject, factor: float, grace: float, brackets: int
) -> None:
    def make() -> AsyncHyperBandScheduler:
        return asha(reduction_factor=factor, grace_period=grace, max_t=9, brackets=brackets)

    search = data.draw(searches(make)).play()
    bracket_of, rungs = _brackets(make(), [told.trial_id for told in search.told if told.what == "add"])
    came: dict[tuple[int, float], list[float]] = defaultdict(list)
    last: dict[str, float] = {}
    for told in search.told:
        if told.what != "result":
            continue
        assert told.trial_id is not None
        assert told.result is not None
        time, loss = told.result.get("training_iteration"), told.result.get("loss")
        if time is None:
            assert told.answer == ()
            continue
        if time >= 9:
            assert len(told.answer) == 1
            continue
        if loss is None:
            assert told.answer == ()
            continue
        mine = bracket_of[told.trial_id]
        passed = [rung for rung in rungs[mine] if last.get(told.trial_id, 0) < rung <= time]
        if not passed:
            assert told.answer == ()
            continue
        last[told.trial_id] = passed[-1]
        losses = came[mine, passed[-1]]
        losses.append(math.inf if loss != loss else loss)
        num_better = sum(other < losses[-1] for other in losses)
        goes_on = num_better < max(1, math.floor(len(losses) / factor))
        if losses[-1] == math.inf and num_better:
            goes_on = False
        assert (told.answer == ()) is goes_on
        assert goes_on or num_better >= 1  # The best so far is never stopped.


def _brackets(
    scheduler: AsyncHyperBandScheduler, trial_ids: list[str | None]
) -> tuple[dict[str | None, int], list[list[float]]]:
    """Which bracket each trial gets, by counting after every one; and the times of the brackets."""
    found = {}
    for trial_id in trial_ids:
        before = [bracket.num_trials for bracket in scheduler._brackets]
        scheduler.on_trial_add(Trial(trial_id or "", {}))
        after = [bracket.num_trials for bracket in scheduler._brackets]
        (found[trial_id],) = [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    return found, [[rung.time for rung in bracket.rungs] for bracket in scheduler._brackets]


@settings(max_examples=60, deadline=None)
@given(searches(lambda: asha(max_t=6, reduction_factor=2)))
def test_every_trial_ends_within_its_budget(search: Search) -> None:
    search.play()
    assert set(search.ended) == set(search.fates)
    for trial_id, made in search.made.items():
        times = [report.get("training_iteration", 0) for report in search.fates[trial_id].reports[:made]]
        assert all(time < 6 for time in times[:-1])


@settings(max_examples=60, deadline=None)
@given(searches(lambda: asha(max_t=9, reduction_factor=2, brackets=2)), st.permutations([f"x{n}" for n in range(40)]))
def test_told_again_it_decides_the_same_whatever_trials_are_called(search: Search, names: list[str]) -> None:
    search.play()
    again = asha(max_t=9, reduction_factor=2, brackets=2)
    assert told_again(again, search.told) == search.decisions
    assert state(again) == state(search.scheduler)
    other = asha(max_t=9, reduction_factor=2, brackets=2)
    called = {trial_id: names[int(trial_id)] for trial_id in search.fates}
    answers = told_again(other, search.told, lambda trial_id: called.get(trial_id, trial_id))
    assert shown(answers) == [
        [(what, called[trial_id]) for what, trial_id in answer] for answer in shown(search.decisions)
    ]


@settings(max_examples=60, deadline=None)
@given(searches(lambda: asha(max_t=9, reduction_factor=3)))
def test_the_most_of_negated_values_is_the_least_of_values(search: Search) -> None:
    search.play()
    other = asha(max_t=9, reduction_factor=3, mode="max")
    assert shown(told_again(other, negated(search.told))) == shown(search.decisions)


@settings(max_examples=30, deadline=None)
@given(st.permutations(range(24)), st.sampled_from([2, 3, 4]))
def test_in_any_order_about_as_many_go_on_as_the_factor_says(order: list[int], factor: int) -> None:
    search = Search(asha(max_t=100, reduction_factor=factor), {f"{n:05d}": curve([n]) for n in order}).play()
    went_on = [n for n in order if f"{n:05d}" not in search.stopped]
    assert min(order) in went_on
    best_first = Search(asha(reduction_factor=factor), {f"{n:05d}": curve([n]) for n in range(24)}).play()
    assert len(best_first.stopped) == 23
    for count, value in enumerate(order, start=1):
        rank = sorted(order[:count]).index(value) + 1
        assert (value in went_on) == (rank <= max(1, count // factor))


@settings(max_examples=20, deadline=None)
@given(fates())
def test_fifo_says_nothing(found: Any) -> None:
    from paceline.tune.schedulers import FIFOScheduler

    search = Search(FIFOScheduler(), found, slots=2).play()
    assert not any(search.decisions)
    assert not FIFOScheduler.decides
    assert [*search.ended.values()].count("failed") == sum(fate.fails for fate in found.values())
