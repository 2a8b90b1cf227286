"""Points for plots, where the time went, and what ranks use: the numbers behind the pictures."""

import math
from array import array

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from paceline._control.events import UsageMeasured
from paceline._engine.messages import GpuUsage, RankUsage
from paceline._view import downsampling
from paceline._view.downsampling import downsample
from paceline._view.journal.report_table import MetricColumn, ReportTable
from paceline._view.journal.usage import AttemptWork, UsageHistory, compute_time_breakdown

values = st.floats(width=32) | st.sampled_from([math.nan, math.inf, -math.inf, 1e308, -1e308, 0.0])


def column_of(numbers):
    column = MetricColumn()
    for row, number in enumerate(numbers):
        column.add(row, number)
    return column


def check(points, xs, numbers, at_most):
    known = [number for number in numbers if not math.isnan(number)]
    assert points.num_points == len(numbers)
    assert len(points.x) == len(points.y) == len(points.low) == len(points.high) <= at_most
    assert points.x == sorted(points.x)
    assert set(points.x) <= set(xs)
    assert min((low for low in points.low if low is not None), default=None) == min(known, default=None)
    assert max((high for high in points.high if high is not None), default=None) == max(known, default=None)
    for low, y, high in zip(points.low, points.y, points.high, strict=True):
        assert (low is None) == (y is None) == (high is None)
        assert y is None or low <= y <= high
    assert points.whole == (len(numbers) <= at_most)
    if points.whole:
        assert [None if math.isnan(number) else number for number in numbers] == points.y
    elif numbers:
        assert points.x[0] == xs[0]


def thin_both_ways(*arguments, **options):
    """Without numpy and with it."""
    found = []
    with pytest.MonkeyPatch.context() as patch:
        for many in (downsampling._MIN_NUMPY_POINTS, 0):
            patch.setattr(downsampling, "_MIN_NUMPY_POINTS", many)
            found.append(downsample("m", *arguments, **options))
    return found


@given(st.lists(values, max_size=60), st.integers(1, 20))
@settings(max_examples=100, deadline=None)
@example([0.0, math.inf, -math.inf], 2)
def test_no_extreme_is_lost_the_order_is_kept_and_there_are_never_too_many(numbers, at_most):
    xs = array("q", range(10, 10 + 3 * len(numbers), 3))
    few, many = thin_both_ways(xs, column_of(numbers), at_most=at_most)
    check(few, list(xs), numbers, at_most)
    check(many, list(xs), numbers, at_most)
    assert (few.x, few.low, few.high, few.whole) == (many.x, many.low, many.high, many.whole)
    assert all(a == b or math.isclose(a, b, rel_tol=1e-6, abs_tol=1e300) for a, b in zip(few.y, many.y, strict=True))


@given(
    st.lists(st.tuples(st.integers(0, 5), st.floats(-9, 9)), min_size=1, max_size=40),
    st.floats(-1, 60),
    st.floats(0, 60),
    st.sampled_from(["step", "time"]),
)
@settings(max_examples=80, deadline=None)
def test_a_range_has_the_points_within_it_and_no_others(rows, first, width, x):
    reports = ReportTable()
    for at, (gap, number) in enumerate(rows):
        # Clocks may go back; not every report has the metric.
        metrics = {"m": number} if gap else {"other": 1.0}
        reports.add(1, 2 * at + 1, 100.0 + at - 3 * gap, metrics)
    xs, origin = (reports.seqs, 0.0) if x == "step" else (reports.ats, 90.0)
    column = reports.columns.get("m", MetricColumn())
    expected = [
        (place - origin, number)
        for place, (gap, number) in zip(xs, rows, strict=True)
        if gap and first <= place - origin <= first + width
    ]
    within = (first, first + width)
    for points in thin_both_ways(xs, column, at_most=1000, origin=origin, within=within):
        assert [*zip(points.x, points.y, strict=True)] == expected
    for few in thin_both_ways(xs, column, at_most=3, origin=origin, within=within):
        assert few.num_points == len(expected)
        assert min(few.low, default=None) == min((number for _, number in expected), default=None)


seconds = st.floats(0, 1e4) | st.sampled_from([0.0, 1e-9, 1e300])
times = dict.fromkeys(("wall_s", "setup_s", "data_s", "report_s", "checkpoint_s"), seconds)
uses = st.builds(RankUsage, rank=st.integers(0, 3), **times)
moments = st.floats(0, 2e4)
worked = st.builds(
    AttemptWork, moments, moments, st.none() | moments, st.none() | moments, st.lists(uses, max_size=3).map(tuple)
)


@given(moments, moments, st.lists(worked, max_size=4), st.randoms())
@settings(max_examples=100, deadline=None)
def test_where_the_time_went_sums_to_all_of_it_exactly(began, until, attempts, random):
    found = compute_time_breakdown(began, until, attempts)
    parts = [found.starting_s, found.data_s, found.compute_s, found.report_s, found.checkpoint_s, found.between_s]
    assert all(part >= 0 for part in parts)
    random.shuffle(parts)
    assert sum(parts) == found.wall_s, "in whichever order"
    assert math.isclose(found.wall_s, max(0.0, until - began), abs_tol=1e-5)


def test_time_is_told_apart_by_what_ranks_say_of_it():
    ranks = (
        RankUsage(0, wall_s=90.0, setup_s=5.0, data_s=20.0, report_s=1.0, checkpoint_s=4.0),
        RankUsage(1, wall_s=90.0, setup_s=5.0, data_s=40.0, report_s=1.0, checkpoint_s=4.0),
    )
    one = AttemptWork(began=110.0, until=205.0, measured=205.0, ready=120.0, uses=ranks)
    found = compute_time_breakdown(100.0, 210.0, [one])
    assert (found.wall_s, found.between_s) == (110.0, 15.0)
    assert (found.starting_s, found.data_s, found.report_s, found.checkpoint_s) == (10.0, 30.0, 1.0, 4.0)
    assert found.compute_s == 50.0


def test_use_over_time_has_rates_of_what_was_summed():
    usage = UsageHistory()
    usage.add_measurement(UsageMeasured(1, 10.0, (RankUsage(0, cpu_s=1.0, rss_bytes=5),)))
    usage.add_measurement(
        UsageMeasured(1, 12.0, (RankUsage(0, cpu_s=4.0, rss_bytes=7, gpus=(GpuUsage(0, 3, 9, 0.5),)), RankUsage(1)))
    )
    usage.add_measurement(UsageMeasured(1, 14.0, (RankUsage(0, cpu_s=5.0, rss_bytes=6, gpus=(GpuUsage(0, 4, 9),)),)))
    first, second = usage.series()
    assert (first.at, first.cpu, first.rss_bytes) == ([10.0, 12.0, 14.0], [1.5, 1.5, 0.5], [5, 7, 6])
    assert (first.gpu_used_bytes, first.gpu_busy) == ([[0, 3, 4]], [[None, 0.5, None]])
    assert second.cpu == [0.0]
    assert usage.series(attempt=2) == []


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(values, min_size=1, max_size=5), max_size=5), st.sampled_from(["min", "max"]))
def test_the_best_is_found_again_as_more_comes(parts, mode):
    column, seen = MetricColumn(), []
    for part in parts:
        for number in part:
            column.add(len(seen), number)
            seen.append(number)
        known = [number for number in seen if not math.isnan(number)]
        best = column.find_best(mode)
        if not known:
            assert best is None
        else:
            assert best == seen.index(min(known) if mode == "min" else max(known))
