"""Ranges of rows, compared with plain sets."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.data.order import row_ranges

edges = st.tuples(st.integers(0, 30), st.integers(0, 30))
some = st.lists(edges, max_size=6)


def rows(found):
    return [row for begin, stop in found for row in range(begin, stop)]


@settings(deadline=None)
@given(some)
def test_joined_ranges_are_sorted_and_apart(given):
    found = row_ranges.join_ranges(given)
    assert rows(found) == sorted({*rows(given)})
    assert all(stop < begin for (_, stop), (begin, _) in pairwise(found))
    assert row_ranges.num_rows_in(found) == len(rows(found))


@settings(deadline=None)
@given(edges, some)
def test_what_is_left_of_a_range(span, gone):
    assert rows(row_ranges.subtract_ranges(span, gone)) == sorted({*rows([span])} - {*rows(gone)})


@settings(deadline=None)
@given(some, some)
def test_what_both_have(first, second):
    assert rows(row_ranges.intersect_ranges(first, second)) == sorted({*rows(first)} & {*rows(second)})


@settings(deadline=None)
@given(some, st.lists(st.integers(0, 12), max_size=5))
def test_rows_are_taken_off_the_front(given, numbers):
    found = row_ranges.join_ranges(given)
    left, walk = rows(found), row_ranges.RangeCursor(found)
    for number in numbers:
        assert rows(row_ranges.take_head(walk.remaining, number)) == left[:number]
        assert rows(walk.take(number)) == left[:number]
        left = left[number:]
