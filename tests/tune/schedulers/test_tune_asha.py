"""ASHA: traces computed by hand, and what holds for any reports in any order."""

import math
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from played_search import add, searches

from paceline.tune.schedulers import ASHAScheduler
from paceline.tune.schedulers.scheduler import Stop
from paceline.tune.trial import Trial


def asha(**options):
    return ASHAScheduler(**{"metric": "loss", "mode": "min", "max_t": 16, **options})


def decide(scheduler, trial_id, iteration, value):
    answer = scheduler.on_trial_result(Trial(trial_id, {}), {scheduler.time_attr: iteration, scheduler.metric: value})
    assert all(isinstance(action, Stop) and action.trial_id == trial_id for action in answer)
    return answer[0].why if answer else ""


def test_promotes_one_in_four_at_rungs_1_and_4():
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


def test_trials_are_shared_as_their_brackets_weigh_of_which_there_are_as_many_as_differ():
    scheduler = asha(brackets=9)
    assert [[rung.time for rung in bracket.rungs] for bracket in scheduler._brackets] == [[1, 4], [4], []]
    add(scheduler, *(f"{number}" for number in range(1000)))
    weights = [math.exp(-number) for number in range(3)]
    for bracket, weight in zip(scheduler._brackets, weights, strict=True):
        assert abs(bracket.num_trials - 1000 * weight / sum(weights)) <= 1


def test_accepts_fractional_times_nested_metrics_and_trials_without_end():
    scheduler = asha(time_attr="time_total_s", grace_period=0.5, max_t=3.5, reduction_factor=2)  # 0.5, 1, 2
    add(scheduler, *"ab")
    assert [decide(scheduler, "a", t, 1.0) for t in (0.49, 0.5, 0.99, 1.7, 2.01, 3.49)] == [""] * 6
    assert decide(scheduler, "a", 3.5, 1.0) == "reached max_t: time_total_s 3.5 of 3.5"
    assert decide(scheduler, "b", 0.75, 2.0) == "loss 2 at time_total_s 0.75 is not the best of 2 trials (needs 1)"
    scheduler = asha(metric="eval/loss")
    add(scheduler, *"ab")
    assert scheduler.on_trial_result(Trial("a", {}), {"training_iteration": 1, "eval": {"loss": 1}}) == ()
    assert scheduler.on_trial_result(Trial("b", {}), {"training_iteration": 1, "eval": {"loss": 2}}) != ()
    scheduler = asha(stop_last_trials=False)
    add(scheduler, "a")
    assert [decide(scheduler, "a", i, 1.0) for i in range(1, 40)] == [""] * 39


def test_a_report_without_metric_or_time_is_not_judged_and_the_next_one_is(caplog):
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


def test_a_search_without_a_metric_is_refused_when_its_first_trial_is_made():
    scheduler = ASHAScheduler(mode="min")
    with pytest.raises(ValueError, match="metric=None, mode='min'"):
        add(scheduler, "a")
    assert scheduler.set_search_properties("loss", "min")
    add(scheduler, "a")
    assert not scheduler.set_search_properties("accuracy", "max")
    with pytest.raises(ValueError, match="mode must be 'min', 'max' or None, got 'up'"):
        ASHAScheduler().set_search_properties("loss", "up")


@settings(max_examples=150, deadline=None)
@given(st.data(), st.sampled_from([2, 3, 4, 2.5]), st.sampled_from([1, 2, 0.75]), st.integers(1, 3))
def test_a_trial_continues_exactly_if_it_is_among_the_best_of_its_rung_so_far(data, factor, grace, brackets):
    def make():
        return asha(reduction_factor=factor, grace_period=grace, max_t=9, brackets=brackets)

    search = data.draw(searches(make))
    assert set(search.ended) == set(search.fates)
    bracket_of, rungs = _brackets(make(), [call.trial_id for call in search.calls if call.method == "on_trial_add"])
    came = defaultdict(list)
    last = {}
    for call in search.calls:
        if call.method != "on_trial_result":
            continue
        time, loss = call.result.get("training_iteration"), call.result.get("loss")
        if time is not None and time >= 9:
            assert len(call.answer) == 1
            continue
        mine = bracket_of[call.trial_id]
        passed = [rung for rung in rungs[mine] if time is not None and last.get(call.trial_id, 0) < rung <= time]
        if not passed or loss is None:
            assert call.answer == ()
            continue
        last[call.trial_id] = passed[-1]
        losses = came[mine, passed[-1]]
        losses.append(math.inf if loss != loss else loss)
        num_better = sum(other < losses[-1] for other in losses)
        goes_on = num_better < max(1, math.floor(len(losses) / factor))
        if losses[-1] == math.inf and num_better:
            goes_on = False
        assert (call.answer == ()) is goes_on
        assert goes_on or num_better >= 1  # The best so far is never stopped.


def _brackets(scheduler, trial_ids):
    """Which bracket each trial gets, by counting after every one; and the times of the brackets."""
    bracket_of = {}
    for trial_id in trial_ids:
        before = [bracket.num_trials for bracket in scheduler._brackets]
        scheduler.on_trial_add(Trial(trial_id or "", {}))
        after = [bracket.num_trials for bracket in scheduler._brackets]
        (bracket_of[trial_id],) = [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    return bracket_of, [[rung.time for rung in bracket.rungs] for bracket in scheduler._brackets]
