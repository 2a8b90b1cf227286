"""The median rule: traces computed by hand, what holds for any reports in any order, and its running means."""

import math
import statistics
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from played_search import add, searches, tell, without_reasons

from paceline.tune.schedulers import MedianStoppingRule
from paceline.tune.schedulers import median as module
from paceline.tune.schedulers.median import TrialMeans
from paceline.tune.schedulers.scheduler import Pause, Resume
from paceline.tune.trial import Trial


def rule(**options):
    chosen = {"time_attr": "training_iteration", "metric": "loss", "mode": "min", "grace_period": 0}
    return MedianStoppingRule(**{**chosen, **options})


def test_a_soft_stop_is_a_pause_until_all_others_are_over_and_the_last_one_is_not_paused():
    scheduler = rule(hard_stop=False, min_samples_required=1)
    add(scheduler, *"abc")
    assert scheduler.on_no_more_trials() == ()
    assert tell(scheduler, "a", 1, 1) == []
    (pause,) = scheduler.on_trial_result(Trial("b", {}), {"training_iteration": 1, "loss": 2})
    why = "its best loss by training_iteration 1, 2, is worse than the mean so far of 1 of 1 other trials"
    assert pause == Pause("b", why)
    assert tell(scheduler, "c", 1, 3) == [("Pause", "c")]
    assert without_reasons([scheduler.on_trial_complete(Trial("a", {}), None)]) == [[("Resume", "b"), ("Resume", "c")]]
    assert tell(scheduler, "b", 2, 99) == []  # Nothing is decided about it any more.
    scheduler = rule(hard_stop=False, min_samples_required=1)
    add(scheduler, *"abc")
    assert tell(scheduler, "a", 1, 1) == []
    assert tell(scheduler, "b", 1, 2) == [("Pause", "b")]
    assert scheduler.on_trial_error(Trial("a", {})) == ()
    assert scheduler.on_no_more_trials() == ()
    assert tell(scheduler, "c", 1, 9) == [("Resume", "b")]
    assert tell(scheduler, "c", 2, 99) == []


def test_a_trial_makes_room_while_it_cannot_be_judged_and_others_wait():
    scheduler = rule(min_time_slice=3)
    add(scheduler, *"ab")
    scheduler.on_trial_begin(Trial("a", {}))
    assert [tell(scheduler, "a", time, 1) for time in (1, 2)] == [[], []]
    (pause, _) = scheduler.on_trial_result(Trial("a", {}), {"training_iteration": 3, "loss": 1})
    assert pause == Pause("a", "makes room at training_iteration 3 for 1 waiting trial")
    scheduler.on_trial_begin(Trial("b", {}))
    assert [tell(scheduler, "b", time, 1) for time in (1, 3)] == [[], [("Pause", "b"), ("Resume", "b")]]
    scheduler.on_trial_begin(Trial("a", {}))
    assert [tell(scheduler, "a", time, 1) for time in (4, 5)] == [[], []]
    scheduler.on_trial_begin(Trial("b", {}))
    assert tell(scheduler, "a", 6, 1) == []  # Nobody is left to make room for.


@settings(max_examples=150, deadline=None)
@given(st.data(), st.sampled_from([0, 1, 2.5]), st.integers(1, 3), st.booleans())
def test_trials_are_stopped_by_the_rule_and_no_others_and_all_end(data, grace, samples, hard):
    scheduler = rule(grace_period=grace, min_samples_required=samples, hard_stop=hard)
    search = data.draw(searches(lambda: scheduler))
    assert set(search.ended) == set(search.fates)
    reports_of = defaultdict(list)
    spared = set()
    for call in search.calls:
        spared |= {action.trial_id for action in call.answer if isinstance(action, Resume)}
        if call.method != "on_trial_result":
            continue
        time, loss = call.result.get("training_iteration"), call.result.get("loss")
        decided = any(action.trial_id == call.trial_id for action in call.answer)
        if time is None or loss is None:
            assert not decided
            continue
        reports_of[call.trial_id].append((time, _as_float(loss)))
        if time < grace or call.trial_id in spared:
            assert not decided
            continue
        means = [
            mean for other, reports in reports_of.items() if other != call.trial_id
            for mean in [_mean(reports, grace, time)] if mean is not None
        ]  # fmt: skip
        best = min(loss for _, loss in reports_of[call.trial_id])
        is_worse = len(means) >= samples and best > statistics.median_high(means)
        assert decided == is_worse or not hard
        assert is_worse or not decided


def _as_float(loss):
    return math.inf if loss != loss or loss == 10**400 else -math.inf if loss == -(10**400) else float(loss)


def _mean(reports, grace, time):
    counted = [(t, loss) for t, loss in reports if t >= grace]
    if not counted or not counted[0][0] <= time <= counted[-1][0]:
        return None
    total = 0.0
    upto = [loss for t, loss in counted if t <= time]
    for loss in upto:
        total = math.inf if math.isnan(total + loss) else total + loss
    return total / len(upto)


reports = st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from([0.5, 1, 2]), st.integers(-4, 4)), max_size=80)


@settings(max_examples=150, deadline=None)
@given(reports, st.lists(st.tuples(st.floats(0, 20) | st.integers(0, 20), st.floats(-4, 4)), min_size=1, max_size=20))
def test_means_are_counted_as_if_every_trial_were_looked_at(reported, questions):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_LEAST_BLOCK", 3)
        means = TrialMeans()
        curves = {}
        for trial_id, later, score in reported:
            curve = curves.setdefault(trial_id, [])
            time = (curve[-1][0] if curve else 0) + later
            curve.append((time, score))
            means.add_score(trial_id, time, score)
    assert len(means.started.blocks) >= means.started.count / 10
    for time, score in questions:
        current = [
            sum(s for t, s in curve if t <= time) / sum(t <= time for t, _ in curve)
            for curve in curves.values()
            if curve[0][0] <= time <= curve[-1][0]
        ]
        assert means.count_better(time, score) == (len(current), sum(mean > score for mean in current))


def test_a_trial_that_begins_anew_is_another_one():
    means = TrialMeans()
    for time, score in ((1, 5.0), (2, 3.0), (3, 1.0)):
        means.add_score("a", time, score)
    means.forget("a")
    means.add_score("a", 1, 9.0)
    assert means.count_better(1, 0.0) == (2, 2)  # What it had been at 1 and at 2 stays known.
    assert means.count_better(2, 3.5) == (1, 1)
    assert means.count_better(3, 0.0) == (0, 0)
    means.forget("b")
