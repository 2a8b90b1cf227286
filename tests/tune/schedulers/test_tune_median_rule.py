"""The median rule: traces computed by hand, and what holds for any reports in any order."""

import math
import statistics
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from played_search import Search, curve, negated, searches, shown, state, told_again

from paceline.tune.schedulers import MedianStoppingRule
from paceline.tune.schedulers.scheduler import Pause, Stop
from paceline.tune.trial import Trial


def rule(**options: Any) -> MedianStoppingRule:
    chosen = {"time_attr": "training_iteration", "metric": "loss", "mode": "min", "grace_period": 0}
    return MedianStoppingRule(**{**chosen, **options})


def tell(scheduler: MedianStoppingRule, trial_id: str, time: float, loss: float) -> list[tuple[str, str]]:
    return shown([scheduler.on_trial_result(Trial(trial_id, {}), {scheduler.time_attr: time, "loss": loss})])[0]


def add(scheduler: MedianStoppingRule, *trial_ids: str) -> None:
    for trial_id in trial_ids:
        scheduler.on_trial_add(Trial(trial_id, {}))


def test_a_trial_is_stopped_whose_best_is_worse_than_the_median_of_the_means() -> None:
    scheduler = rule()
    add(scheduler, *"abcd")
    for trial, losses in zip("abc", [[4, 2], [6, 4], [8, 8]], strict=True):
        for time, loss in enumerate(losses, start=1):
            assert tell(scheduler, trial, time, loss) == []
    # Means up to 1 are 4, 6, 8, up to 2 they are 3, 5, 8: the medians are 6 and 5.
    assert tell(scheduler, "d", 1, 6) == []
    (stop,) = scheduler.on_trial_result(Trial("d", {}), {"training_iteration": 2, "loss": 5.5})
    assert stop == Stop(
        "d",
        "its best loss by training_iteration 2, 5.5, is worse than the mean so far of 2 of 3 other trials",
    )


def test_the_best_counts_and_not_the_last() -> None:
    scheduler = rule(mode="max", min_samples_required=1)
    add(scheduler, *"ab")
    for time, value in enumerate([1, 2, 3], start=1):
        assert tell(scheduler, "a", time, value) == []
    assert tell(scheduler, "b", 1, 5) == []
    assert tell(scheduler, "b", 3, -5) == []
    assert rule(mode="max", min_samples_required=1) is not scheduler


def test_only_trials_that_have_come_as_far_are_compared() -> None:
    scheduler = rule(min_samples_required=2)
    add(scheduler, *"abc")
    assert tell(scheduler, "a", 1, 1) == []
    assert tell(scheduler, "b", 1.5, 1) == []
    assert tell(scheduler, "c", 1.25, 9) == []  # b alone has come to 1.25, and has nothing up to there.
    assert tell(scheduler, "a", 2, 1) == []
    assert tell(scheduler, "c", 1.75, 9) == []  # Only a.
    assert tell(scheduler, "b", 2, 1) == []
    assert tell(scheduler, "c", 1.8, 9) == [("Stop", "c")]


def test_to_be_worse_than_half_of_an_even_number_is_not_enough() -> None:
    scheduler = rule(min_samples_required=2)
    add(scheduler, *"abcd")
    assert [tell(scheduler, t, 1, v) for t, v in zip("ab", [2, 4], strict=True)] == [[], []]
    assert tell(scheduler, "c", 1, 3.9) == []
    assert tell(scheduler, "d", 1, 4.1) == [("Stop", "d")]


def test_nothing_counts_before_the_grace_period() -> None:
    scheduler = rule(time_attr="time_total_s", grace_period=60.0, min_samples_required=1)
    add(scheduler, *"ab")
    assert tell(scheduler, "a", 30, 100) == []
    assert tell(scheduler, "a", 60, 2) == []
    assert tell(scheduler, "a", 90, 2) == []
    assert tell(scheduler, "b", 59.9, 50) == []
    assert tell(scheduler, "b", 60, 3) == [("Stop", "b")]  # The mean of a is 2, not 51.


def test_nan_is_the_worst_and_infinities_do_no_harm() -> None:
    scheduler = rule(min_samples_required=1)
    add(scheduler, *"abcde")
    assert tell(scheduler, "a", 1, math.nan) == []
    assert tell(scheduler, "b", 1, math.nan) == []
    assert tell(scheduler, "c", 1, -math.inf) == []
    assert tell(scheduler, "d", 1, 10**400) == []
    assert tell(scheduler, "e", 1, 1e308) == []


# Pausing instead of stopping


def test_a_soft_stop_is_a_pause_until_all_others_are_over() -> None:
    scheduler = rule(hard_stop=False, min_samples_required=1)
    add(scheduler, *"abc")
    assert scheduler.on_no_more_trials() == ()
    assert tell(scheduler, "a", 1, 1) == []
    (pause,) = scheduler.on_trial_result(Trial("b", {}), {"training_iteration": 1, "loss": 2})
    assert isinstance(pause, Pause)
    assert "is worse than the mean so far of 1 of 1 other trials" in pause.why
    assert tell(scheduler, "c", 1, 3) == [("Pause", "c")]
    assert shown([scheduler.on_trial_complete(Trial("a", {}), None)]) == [[("Resume", "b"), ("Resume", "c")]]
    assert tell(scheduler, "b", 2, 99) == []  # Nothing is decided about it any more.


def test_the_last_trial_is_not_paused_for_nobody() -> None:
    scheduler = rule(hard_stop=False, min_samples_required=1)
    add(scheduler, *"abc")
    assert tell(scheduler, "a", 1, 1) == []
    assert tell(scheduler, "b", 1, 2) == [("Pause", "b")]
    assert scheduler.on_trial_error(Trial("a", {})) == ()
    assert scheduler.on_no_more_trials() == ()
    assert tell(scheduler, "c", 1, 9) == [("Resume", "b")]
    assert tell(scheduler, "c", 2, 99) == []


def test_a_trial_makes_room_while_it_cannot_be_judged_and_others_wait() -> None:
    scheduler = rule(min_time_slice=3)
    add(scheduler, *"ab")
    scheduler.on_trial_begin(Trial("a", {}))
    assert [tell(scheduler, "a", time, 1) for time in (1, 2)] == [[], []]
    (pause, _) = scheduler.on_trial_result(Trial("a", {}), {"training_iteration": 3, "loss": 1})
    assert pause == Pause("a", "makes room at training_iteration 3 for 1 that wait")
    scheduler.on_trial_begin(Trial("b", {}))
    assert [tell(scheduler, "b", time, 1) for time in (1, 3)] == [[], [("Pause", "b"), ("Resume", "b")]]
    scheduler.on_trial_begin(Trial("a", {}))
    assert [tell(scheduler, "a", time, 1) for time in (4, 5)] == [[], []]
    scheduler.on_trial_begin(Trial("b", {}))
    assert tell(scheduler, "a", 6, 1) == []  # Nobody is left to make room for.


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"grace_period": -1}, "grace_period=-1"),
        ({"min_samples_required": 0}, "min_samples_required=0"),
        ({"min_time_slice": math.inf}, "min_time_slice=inf"),
    ],
)
def test_bad_arguments_are_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        rule(**options)


# Properties


@settings(max_examples=150, deadline=None)
@given(st.data(), st.sampled_from([0, 1, 2.5]), st.integers(1, 3), st.booleans())
def test_trials_are_stopped_by_the_rule_and_no_others_and_all_end(
    data: st.DataObject, grace: float, samples: int, hard: bool
) -> None:
    scheduler = rule(grace_period=grace, min_samples_required=samples, hard_stop=hard)
    search = data.draw(searches(lambda: scheduler)).play()
    assert set(search.ended) == set(search.fates)
    known: dict[str, list[tuple[float, float]]] = defaultdict(list)
    spared = set()
    for told in search.told:
        spared |= {trial_id for what, trial_id in shown([told.answer])[0] if what == "Resume"}
        if told.what != "result":
            continue
        assert told.trial_id is not None
        assert told.result is not None
        time, loss = told.result.get("training_iteration"), told.result.get("loss")
        decided = any(action.trial_id == told.trial_id for action in told.answer)
        if time is None or loss is None:
            assert not decided
            continue
        known[told.trial_id].append((time, _as_float(loss)))
        if time < grace or told.trial_id in spared:
            assert not decided
            continue
        means = [
            mean for other, reports in known.items() if other != told.trial_id
            for mean in [_mean(reports, grace, time)] if mean is not None
        ]  # fmt: skip
        best = min(loss for _, loss in known[told.trial_id])
        is_worse = len(means) >= samples and best > statistics.median_high(means)
        assert decided == is_worse or not hard
        assert is_worse or not decided


def _as_float(loss: float) -> float:
    return math.inf if loss != loss or loss == 10**400 else -math.inf if loss == -(10**400) else float(loss)


def _mean(reports: list[tuple[float, float]], grace: float, time: float) -> float | None:
    counted = [(t, loss) for t, loss in reports if t >= grace]
    if not counted or not counted[0][0] <= time <= counted[-1][0]:
        return None
    total = 0.0
    upto = [loss for t, loss in counted if t <= time]
    for loss in upto:
        total = math.inf if math.isnan(total + loss) else total + loss
    return total / len(upto)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.booleans())
def test_told_again_it_decides_the_same_whatever_trials_are_called(data: st.DataObject, hard: bool) -> None:
    options: dict[str, Any] = {"min_samples_required": 2, "hard_stop": hard, "min_time_slice": 2}
    search = data.draw(searches(lambda: rule(**options))).play()
    again = rule(**options)
    assert told_again(again, search.told) == search.decisions
    assert state(again) == state(search.scheduler)
    answers = told_again(rule(**options), search.told, lambda trial_id: f"x{trial_id}")
    assert shown(answers) == [
        [(what, f"x{trial_id}") for what, trial_id in answer] for answer in shown(search.decisions)
    ]
    if hard:
        best = rule(**options, mode="max")
        assert shown(told_again(best, negated(search.told))) == shown(search.decisions)


def test_of_trials_that_take_turns_the_better_half_goes_on() -> None:
    fates = {f"{number:05d}": curve([number] * 5) for number in range(10)}
    turn = iter(range(10**6))
    search = Search(rule(), fates, slots=10, pick=lambda n: n - 1 - next(turn) % n).play()
    assert "00000" not in search.stopped
    assert len(search.stopped) >= 4
