"""How fast a run goes and when it is done: known, or None."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline._core.cursor import Cursor, count_dataset_epochs
from paceline._view.pace import MIN_SAMPLES, PaceEstimator


def estimator_for(rows, config=None):
    pace = PaceEstimator(config)
    for row in rows:
        pace.add_report(*row)
    return pace


def every(seconds, number, name="epoch", first=0, seq=1, start=100.0, attempt=1):
    return [(start + i * seconds, seq + i, {name: first + i, "loss": 1.0}, attempt) for i in range(number)]


UNKNOWN = {"progress": None, "left_s": None, "kind": None, "steps_per_s": None, "reports_per_s": 1.0}
NO_NUMBERS = (True, "5", None, math.nan, math.inf, -1, 10**400)


@pytest.mark.parametrize(
    ("rows", "config", "at", "expected"),
    [
        (every(10, 4), {"num_epochs": 10}, 130, {"progress": 0.4, "left_s": 60, "steps_per_s": None}),
        (every(10, 4), {"num_epochs": 10}, 130, {"kind": "epoch", "done": 4, "goal": 10, "epochs_per_s": 0.1}),
        ([(100.0 + i, i + 1, {"step": i % 10}, 1) for i in range(35)], {"max_steps": 40}, 134, UNKNOWN),
        (every(1, 30, "step"), {"num_steps": 20}, 130, {"progress": None, "left_s": None, "steps_per_s": 1.0}),
        ([(1.0, 3, {"trainer/global_step": 5}, 1)], {"trainer": {"max_steps": 10}}, 1, {"progress": 0.5}),
        ([(1.0, 3, {"train": {"step": 5}}, 1)], {"training/num_steps": 10}, 1, {"progress": 0.5}),
        ([(1.0, 3, {"training_iteration": 5}, 1)], {"num_iterations": 10.0}, 1, {"progress": 0.5}),
        *(([(1.0, 3, {"step": value}, 1)], {"max_steps": 10}, 1, {"progress": None}) for value in NO_NUMBERS),
        *(([(1.0, 3, {"step": 1}, 1)], {"max_steps": value}, 1, {"progress": None}) for value in NO_NUMBERS),
        ([], {"epochs": 3}, 5, {**UNKNOWN, "reports_per_s": None}),
    ],
)
def test_the_estimate_follows_from_what_was_reported_and_configured(rows, config, at, expected):
    now = estimator_for(rows, config).estimate(at)
    assert {name: getattr(now, name) for name in expected} == pytest.approx(expected)


def test_steps_within_epochs_count_the_epochs_that_are_over():
    rows = [(100.0 + i, i + 1, {"epoch": i // 10, "global_step": i * 5}, 1) for i in range(35)]
    now = estimator_for(rows, {"max_epochs": 6, "max_steps": 300}).estimate(134.0)
    assert now.steps_per_s == pytest.approx(5)
    assert now.progress == pytest.approx(170 / 300)  # The steps, of which more are done than of the epochs.
    assert now.left_s == pytest.approx(130 / 5)


def test_a_resumed_run_counts_from_where_it_resumed_and_one_report_after_that_is_no_rate():
    rows = [*every(10, 6), *every(2, 4, first=3, seq=4, start=1000.0, attempt=2)]
    now = estimator_for(rows, {"epochs": 10}).estimate(1006.0)
    assert now.done == 7
    assert now.epochs_per_s == pytest.approx(0.5)
    assert now.left_s == pytest.approx(6)
    now = estimator_for(rows[:7], {"epochs": 10}).estimate(1006.0)
    assert (now.reports_per_s, now.left_s) == (None, None)
    assert now.progress == pytest.approx(0.4)


def test_an_overdue_report_lowers_the_rate():
    pace = estimator_for(every(10, 4), {"num_epochs": 10})
    assert pace.estimate(140.0).epochs_per_s == pytest.approx(0.1)
    assert pace.estimate(140.0).left_s == pytest.approx(50)
    assert pace.estimate(310.0).epochs_per_s == pytest.approx(3 / 200)
    assert pace.estimate(310.0).left_s > 300
    assert estimator_for(every(10, 10), {"num_epochs": 10}).estimate(191.0).left_s == 0, "nothing is left"


def test_fast_reports_are_sampled():
    pace = estimator_for([(i * 1e-4, i + 1, {"step": i}, 1) for i in range(50_000)], {"max_steps": 100_000})
    now = pace.estimate(5.0)
    assert now.steps_per_s == pytest.approx(10_000, rel=0.01)
    assert now.left_s == pytest.approx(5, rel=0.01)
    assert len(pace._reports._samples) < 100


def test_only_the_last_minute_tells_the_rate_unless_reports_are_rare():
    rows = [*every(1, 100, "step"), *every(0.5, 200, "step", first=100, seq=101, start=200.0)]
    assert estimator_for(rows).estimate(299.5).steps_per_s == pytest.approx(2.0)
    pace = estimator_for(every(600, 20))
    assert pace.estimate(100 + 600 * 19).epochs_per_s == pytest.approx(1 / 600)
    assert len(pace._reports._samples) == MIN_SAMPLES


@pytest.mark.parametrize("base", [0, 1])
def test_epochs_that_take_longer_than_the_window_are_timed_from_one_to_the_next(base):
    rows = [(100.0 + 10 * i, i + 1, {"epoch": base + i // 20}, 1) for i in range(100)]
    now = estimator_for(rows[:91], {"num_epochs": 10}).estimate(1000.0)  # Half of the fifth epoch.
    assert (now.done, now.epochs_per_s) == (4, pytest.approx(1 / 200))
    assert now.left_s == pytest.approx(1100)
    last = estimator_for([*rows, (1100.0, 101, {"epoch": base + 5}, 1)], {"num_epochs": 6}).estimate(1100.0)
    assert (last.done, last.left_s) == (5, pytest.approx(200)), "the last epoch has only begun"
    resumed = [(5000.0 + 10 * i, i + 91, {"epoch": base + (90 + i) // 20}, 2) for i in range(35)]
    now = estimator_for([*rows, *resumed[:20]], {"num_epochs": 10}).estimate(5200.0)
    assert (now.done, now.left_s) == (5, None), "it resumed within an epoch, and none was complete since"
    now = estimator_for([*rows, *resumed], {"num_epochs": 10}).estimate(5340.0)
    assert (now.done, now.left_s) == (6, pytest.approx(4 * 200 - 40))


def test_a_goal_that_is_reported_counts_unless_it_changes():
    rows = [(100.0 + i, i + 1, {"epoch": i + 1, "num_epochs": 10}, 1) for i in range(4)]
    now = estimator_for(rows).estimate(103.0)
    assert (now.kind, now.done, now.goal, now.left_s) == ("epoch", 4, 10, pytest.approx(6))
    assert estimator_for(rows, {"max_epochs": 5}).estimate(103.0).goal == 5, "what was configured comes first"
    rows.append((104.0, 5, {"epoch": 5, "num_epochs": 11}, 1))
    assert estimator_for(rows).estimate(104.0).progress is None


def test_progress_that_is_reported_is_the_progress_and_only_from_0_to_1():
    rows = [(100.0 + i, i + 1, {"progress": i / 10, "step": i}, 1) for i in range(6)]
    now = estimator_for(rows, {"max_steps": 1000}).estimate(105.0)
    assert (now.progress, now.left_s, now.kind) == (0.5, pytest.approx(5), None)
    for value in (50, 0.2):  # In percent; backwards.
        now = estimator_for([*rows, (106.0, 7, {"progress": value}, 1)]).estimate(106.0)
        assert (now.progress, now.left_s) == (None, None)


def test_the_position_in_the_dataset_counts_epochs_if_no_metric_does():
    def cursors(row, total=100, epoch=1):
        return (("train", Cursor(epoch=epoch, row=row, total=total)), ("valid", Cursor(epoch=9)))

    rows = [(100.0 + i, i + 1, {"loss": 1.0}, 1, count_dataset_epochs(cursors(10 * i))) for i in range(6)]
    now = estimator_for(rows, {"num_epochs": 4}).estimate(105.0)
    assert (now.kind, now.done, now.goal) == ("epoch", 1.5, 4)
    assert now.left_s == pytest.approx(25)
    assert estimator_for(rows).estimate(105.0).progress is None, "how many epochs there will be is not known"
    counted = [(*row[:2], {"epoch": 0}, *row[3:]) for row in rows]
    assert estimator_for(counted, {"num_epochs": 4}).estimate(105.0).done == 0
    again = [*rows, (200.0, 4, {}, 2, 1.3), (210.0, 5, {}, 2, 1.4)]
    assert estimator_for(again, {"num_epochs": 4}).estimate(210.0).left_s == pytest.approx(260), "of this attempt only"
    assert count_dataset_epochs(cursors(10, total=None)) is None
    assert count_dataset_epochs(cursors(0, total=None, epoch=2)) == 2
    assert count_dataset_epochs((("a", Cursor(epoch=3)),)) == 3
    assert count_dataset_epochs((("a", Cursor()), ("b", Cursor()))) is None


numbers = st.one_of(st.integers(-5, 60), st.floats(), st.sampled_from(["3", "x"]), st.none(), st.booleans())
rows = st.lists(
    st.tuples(
        st.floats(0, 1e6),
        st.integers(1, 60),
        st.dictionaries(
            st.sampled_from(["epoch", "step", "loss", "iteration", "progress", "num_epochs"]), numbers, max_size=3
        ),
        st.integers(1, 3),
        st.none() | st.floats(0, 10),
    ),
    max_size=20,
)
configs = st.dictionaries(st.sampled_from(["num_epochs", "max_steps", "num_iterations"]), numbers, max_size=3)


@given(rows, configs, st.floats(0, 2e6))
def test_whatever_is_reported_the_estimate_makes_sense(rows, config, at):
    now = estimator_for(rows, config).estimate(at)
    for rate in (now.reports_per_s, now.steps_per_s, now.epochs_per_s):
        assert rate is None or (math.isfinite(rate) and rate >= 0)
    assert now.progress is None or 0 <= now.progress <= 1
    assert now.left_s is None or (math.isfinite(now.left_s) and now.left_s >= 0)
    assert (now.goal is None) == (now.done is None) == (now.kind is None)
    assert now.goal is None or now.progress == now.done / now.goal
    assert now.left_s is None or now.progress is not None


@given(
    st.integers(2, 50), st.floats(0.3, 100), st.integers(0, 1), st.integers(0, 40), st.floats(0, 1), st.integers(1, 4)
)
def test_an_even_run_is_estimated_exactly(number, seconds, base, resumed_at, into_next, attempt):
    of = resumed_at + number + 10
    rows = every(seconds, number, "step", first=resumed_at + base, seq=resumed_at + 1, attempt=attempt)
    now = estimator_for(rows, {"total_steps": of}).estimate(100 + (number - 1 + into_next) * seconds)
    assert now.done == resumed_at + number
    assert now.steps_per_s == pytest.approx(1 / seconds)
    assert now.left_s == pytest.approx((10 - into_next) * seconds)
