"""Times, sizes and numbers as a person reads them."""

import math
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline._view import words


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0, "0 s"),
        (0.04, "0 s"),
        (0.42, "0.4 s"),
        (0.96, "1 s"),
        (3.2, "3 s"),
        (59.4, "59 s"),
        (59.6, "1:00"),
        (247, "4:07"),
        (3599.6, "1 h 00 min"),
        (7380, "2 h 03 min"),
        (2 * 86400 + 4 * 3600, "2 d 04 h"),
        (-3, "0 s"),
        (None, "?"),
        (math.inf, "?"),
        (math.nan, "?"),
    ],
)
def test_a_duration_is_told_by_its_two_largest_parts(seconds, told):
    assert words.duration(seconds) == told


@given(st.floats(0, 1e9), st.floats(0, 1e9))
def test_a_longer_duration_never_reads_as_a_shorter_one(one, other):
    low, high = sorted((one, other))
    assert _seconds(words.duration(low)) <= _seconds(words.duration(high))


def _seconds(text):
    units = {"s": 1, "min": 60, "h": 3600, "d": 86400}
    if ":" in text:
        minutes, seconds = text.split(":")
        return int(minutes) * 60 + int(seconds)
    parts = text.split()
    return sum(float(amount) * units[unit] for amount, unit in zip(parts[::2], parts[1::2], strict=True))


@pytest.mark.parametrize(
    ("num_bytes", "told"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 KB"),
        (1540, "1.5 KB"),
        (24_400_000, "24 MB"),
        (999_600_000, "1.0 GB"),
        (1.39e11, "139 GB"),
        (5e21, "5000 EB"),
        (None, "?"),
    ],
)
def test_a_size_has_two_or_three_digits(num_bytes, told):
    assert words.size(num_bytes) == told


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (0.123456, "0.1235"),
        (1e-9, "1e-09"),
        (123456, "123456"),
        (123456.0, "1.235e+05"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
        (True, "True"),
        (10**400, "about 2**1329"),
        (10**30, "1e+30"),
        (None, "?"),
    ],
)
def test_a_number_has_four_digits_and_an_integer_all_of_them(value, told):
    assert words.number(value) == told


def test_values_are_named_and_texts_cut():
    assert words.values({"loss": 0.25, "name": "x" * 50, "of": [1, 2]}) == f"loss=0.25, name={'x' * 39}…, of=[1, 2]"


@pytest.mark.parametrize(
    ("per_s", "told"),
    [
        (1234.5, "1234 steps/s"),
        (12.34, "12 steps/s"),
        (0.5, "0.5 steps/s"),
        (0.133, "7.5 s a step"),
        (0.01, "1:40 a step"),
    ],
)
def test_what_is_slow_is_told_by_how_long_it_takes(per_s, told):
    assert words.rate(per_s, "step") == told


def test_a_rate_of_nothing_and_an_article():
    assert words.rate(0, "step") == "0 steps/s"
    assert words.rate(0.2, "epoch") == "5.0 s an epoch"


def test_today_is_told_by_the_hour_and_another_day_by_its_date():
    noon = 1_750_000_000.0
    assert len(words.when(noon, now=noon)) == len("12:00:00")
    assert words.when(noon, now=noon + 86400 * 3).startswith("2025-06-1")
    assert words.when(1e300) == "?"


def test_ages_and_counts():
    assert [words.age(0.2), words.age(65), words.counted(1, "worker"), words.counted(0, "worker")] == [
        "just now",
        "1:05 ago",
        "1 worker",
        "0 workers",
    ]


@given(st.text())
def test_no_text_does_anything_to_a_terminal(text):
    shown = words.harmless(text)
    assert not {unicodedata.category(character) for character in shown} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    shown.encode()


def test_what_is_harmless_stays_as_it_is():
    assert words.harmless("schön  ▁ 数 loss") == "schön ▁ 数 loss"
    assert words.harmless("a\x1b[2Jb\nc") == "a\\x1b[2Jb c"
    assert words.harmless("\u202eabc") == "\\u202eabc"
