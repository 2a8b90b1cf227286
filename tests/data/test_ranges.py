"""Ranges of rows, compared with plain sets."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.data import ranges

edges = st.tuples(st.integers(0, 30), st.integers(0, 30))
some = st.lists(edges, max_size=6)


def rows(found):
    return [row for begin, stop in found for row in range(begin, stop)]


@settings(deadline=None)
@given(some)
def test_joined_ranges_are_sorted_and_apart(given):
    found = ranges.joined(given)
    assert rows(found) == sorted({*rows(given)})
    assert all(stop < begin for (_, stop), (begin, _) in pairwise(found))
    assert ranges.size(found) == len(rows(found))


@settings(deadline=None)
@given(edges, some)
def test_what_is_left_of_a_range(span, gone):
    assert rows(ranges.without(span, gone)) == sorted({*rows([span])} - {*rows(gone)})


@settings(deadline=None)
@given(some, some)
def test_what_both_have(first, second):
    assert rows(ranges.within(first, second)) == sorted({*rows(first)} & {*rows(second)})


@settings(deadline=None)
@given(some, st.lists(st.integers(0, 12), max_size=5))
def test_rows_are_taken_off_the_front(given, numbers):
    found = ranges.joined(given)
    left, walk = rows(found), ranges.Walk(found)
    for number in numbers:
        assert rows(ranges.head(walk.left, number)) == left[:number]
        assert rows(walk.take(number)) == left[:number]
        left = left[number:]
