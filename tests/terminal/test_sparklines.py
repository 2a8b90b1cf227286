"""A sparkline has one block for each of the last values."""

import math

from hypothesis import given
from hypothesis import strategies as st

from paceline._view.formatting import BLOCKS, GAP, sparkline

values = st.lists(st.one_of(st.none(), st.floats(), st.integers(-(10**20), 10**20)), max_size=50)


@given(values, st.integers(0, 40))
def test_it_is_as_wide_as_there_are_values_and_never_wider(values, width):
    line = sparkline(values, width)
    assert len(line) == min(len(values), width)
    assert set(line) <= {*BLOCKS, GAP}


@given(values, st.integers(1, 40))
def test_a_value_that_is_no_number_is_a_gap_and_a_greater_value_is_never_lower(values, width):
    shown = [*zip(values[-width:], sparkline(values, width), strict=True)]
    assert all((block == GAP) == (value is None or not math.isfinite(value)) for value, block in shown)
    blocks = [block for _, block in sorted((v, b) for v, b in shown if b != GAP)]
    assert blocks == sorted(blocks, key=BLOCKS.index)


def test_a_falling_loss_a_constant_and_the_greatest_floats():
    assert sparkline([8, 7, 6, 5, 4, 3, 2, 1], 8) == "█▇▆▅▄▃▂▁"
    assert sparkline([2.5] * 4, 10) == "▄▄▄▄"
    assert sparkline([-1.7e308, 0, 1.7e308], 3) == "▁▅█"
    assert sparkline([100, 8, 7, 6, 5, 4, 3, 2, 1], 4) == "█▆▃▁"
