"""Times, sizes and numbers as a person reads them, and sparklines: a block for each of the last values."""

import math
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline._view import formatting
from paceline._view.formatting import BLOCKS, GAP, sparkline


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0 s"),
        (0.42, "0.4 s"),
        (59.6, "1:00"),
        (247, "4:07"),
        (3599.6, "1 h 00 min"),
        (2 * 86400 + 4 * 3600, "2 d 04 h"),
        (-3, "0 s"),
        (math.nan, "?"),
    ],
)
def test_a_duration_has_its_two_largest_parts(seconds, text):
    assert formatting.duration(seconds) == text


@given(st.floats(0, 1e9), st.floats(0, 1e9))
def test_a_longer_duration_never_reads_as_a_shorter_one(one, other):
    low, high = sorted((one, other))
    assert _seconds(formatting.duration(low)) <= _seconds(formatting.duration(high))


def _seconds(text):
    units = {"s": 1, "min": 60, "h": 3600, "d": 86400}
    if ":" in text:
        minutes, seconds = text.split(":")
        return int(minutes) * 60 + int(seconds)
    parts = text.split()
    return sum(float(amount) * units[unit] for amount, unit in zip(parts[::2], parts[1::2], strict=True))


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(999, "999 B"), (1540, "1.5 KB"), (24_400_000, "24 MB"), (999_600_000, "1.0 GB"), (5e21, "5000 EB")],
)
def test_a_size_has_two_or_three_digits(num_bytes, text):
    assert formatting.size(num_bytes) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.123456, "0.1235"),
        (123456, "123456"),
        (123456.0, "1.235e+05"),
        (-math.inf, "-inf"),
        (10**400, "about 2**1329"),
        (10**30, "1e+30"),
        (None, "?"),
    ],
)
def test_a_number_has_four_digits_and_an_integer_all_of_them(value, text):
    assert formatting.number(value) == text


def test_a_slow_rate_is_shown_as_the_time_of_one():
    rates = {1234.5: "1234 steps/s", 12.34: "12 steps/s", 0.5: "0.5 steps/s", 0.133: "7.5 s a step", 0: "0 steps/s"}
    assert {per_s: formatting.rate(per_s, "step") for per_s in rates} == rates
    assert formatting.rate(0.01, "epoch") == "1:40 an epoch"


def test_ages_counts_values_and_dates():
    assert (formatting.age(0.2), formatting.age(65)) == ("just now", "1:05 ago")
    assert (formatting.format_count(1, "worker"), formatting.format_count(0, "worker")) == ("1 worker", "0 workers")
    assert (
        formatting.values({"loss": 0.25, "name": "x" * 50, "of": [1, 2]}) == f"loss=0.25, name={'x' * 39}…, of=[1, 2]"
    )
    noon = 1_750_000_000.0
    assert len(formatting.when(noon, now=noon)) == len("12:00:00")
    assert formatting.when(noon, now=noon + 86400 * 3).startswith("2025-06-1")
    assert formatting.when(1e300) == "?"


@given(st.text())
def test_no_text_does_anything_to_a_terminal(text):
    shown = formatting.escape_unprintable(text)
    assert not {unicodedata.category(character) for character in shown} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    shown.encode()


def test_harmless_text_stays_as_it_is():
    assert formatting.escape_unprintable("schön  ▁ 数 loss") == "schön ▁ 数 loss"
    assert formatting.escape_unprintable("a\x1b[2Jb\nc") == "a\\x1b[2Jb c"
    assert formatting.escape_unprintable("\u202eabc") == "\\u202eabc"


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
