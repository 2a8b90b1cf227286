"""Domains: what is drawn is inside the bounds, on the grid of the step, and distributed as promised."""

import math
import random
import re
from collections import Counter
from fractions import Fraction
from statistics import NormalDist

import numpy as np
import pytest
from drawn_spaces import NUMBERS
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.tune.space import domains as tune
from paceline.tune.space.domains import KeyedRandom

steps = st.sampled_from([0.001, 0.1, 0.2, 0.25, 0.3, 1.0, 1.5, 7.0])
seeds = st.integers(0, 2**64)


def draws(domain, count=4000):
    return [domain.pick(KeyedRandom(7, number)) for number in range(count)]


def is_multiple(value, q):
    """Of the step as it is written, and itself the float that is nearest to that multiple."""
    step = Fraction(repr(q))
    return value == float(round(Fraction(value) / step) * step)


@settings(max_examples=150)
@given(st.sampled_from([(tune.uniform, -1e300), (tune.loguniform, 1e-300)]), st.data(), seeds)
def test_a_float_is_from_its_lower_bound_up_to_but_not_its_upper(kind, data, seed):
    make, least = kind
    lower, upper = sorted(data.draw(st.tuples(*[st.floats(least, 1e300)] * 2)))
    value = make(lower, upper).pick(KeyedRandom(seed))
    assert type(value) is float
    assert lower <= value < upper or lower == value == upper


@pytest.mark.parametrize("make", [tune.uniform, tune.loguniform])
def test_rounding_does_not_reach_the_upper_bound(make):
    assert {*draws(make(1.0, math.nextafter(1.0, 2.0)), 200)} == {1.0}


@settings(max_examples=150)
@given(st.booleans(), st.floats(-100, 100) | st.integers(-40, 40), st.floats(0, 50), steps, seeds)
def test_a_float_with_a_step_is_a_multiple_inside_both_bounds_which_need_not_be(log, lower, width, q, seed):
    if isinstance(lower, int):
        lower = float(lower * Fraction(repr(q)))
    lower = abs(lower) or q if log else lower
    make, upper, step = (tune.qloguniform if log else tune.quniform), lower + width, Fraction(repr(q))
    if math.ceil(Fraction(repr(lower)) / step) * step > Fraction(repr(upper)):
        with pytest.raises(ValueError, match="no multiple of q"):
            make(lower, upper, q)
        return
    domain = make(lower, upper, q)
    value = domain.pick(KeyedRandom(seed))
    assert lower <= domain.first <= value <= domain.last <= upper
    assert is_multiple(value, q)


@settings(max_examples=150)
@given(st.sampled_from([(tune.randint, -(10**30), 10**30), (tune.lograndint, 1, 10**6)]), st.data(), seeds)
def test_a_whole_number_is_from_lower_up_to_but_not_upper(kind, data, seed):
    make, least, most = kind
    lower, count = data.draw(st.integers(least, most)), data.draw(st.integers(1, most))
    value = make(lower, lower + count).pick(KeyedRandom(seed))
    assert type(value) is int
    assert lower <= value < lower + count


@given(st.integers(1, 10**4), st.integers(0, 10**4), st.integers(2, 9), seeds, st.booleans())
def test_a_whole_number_with_a_step_is_a_multiple_inside_both_bounds(lower, more, q, seed, log):
    upper = lower + more + q
    value = (tune.qlograndint if log else tune.qrandint)(lower, upper, q).pick(KeyedRandom(seed))
    assert lower <= value <= upper
    assert value % q == 0


@pytest.mark.parametrize(
    ("domain", "cdf"),
    [
        (tune.uniform(-5, -1), lambda x: (x + 5) / 4),
        (tune.loguniform(1e-4, 1e-1), lambda x: math.log(x / 1e-4) / math.log(1e3)),
        (tune.randn(10, 2), NormalDist(10, 2).cdf),
    ],
    ids=["uniform", "loguniform", "randn"],
)
def test_continuous_values_have_their_distribution(domain, cdf):
    values = sorted(draws(domain))
    count = len(values)
    distance = max(abs(cdf(value) - (rank + 0.5) / count) for rank, value in enumerate(values))
    assert distance < 1.95 / math.sqrt(count)  # Kolmogorov and Smirnov: less than one in a thousand seeds is above.


SHARES = {
    tune.randint(0, 6): dict.fromkeys(range(6), 1 / 6),
    tune.choice(["a", "b", "c"]): dict.fromkeys(range(3), 1 / 3),
    tune.qrandint(1, 4): dict.fromkeys((1, 2, 3), 1 / 3),
    tune.lograndint(1, 5): {k: math.log((k + 1) / k, 5) for k in range(1, 5)},
    # Rounding gives the values at the two ends half of what others get.
    tune.quniform(0, 1, 0.25): {0.0: 1 / 8, 0.25: 1 / 4, 0.5: 1 / 4, 0.75: 1 / 4, 1.0: 1 / 8},
    tune.qrandint(0, 9, 3): {0: 2 / 10, 3: 3 / 10, 6: 3 / 10, 9: 2 / 10},
    tune.qrandint(0, 8, 2): {0: 1 / 9, 2: 2 / 9, 4: 2 / 9, 6: 2 / 9, 8: 2 / 9},
    tune.qlograndint(1, 4, 2): {2: math.log(3, 5), 4: 1 - math.log(3, 5)},
    tune.qrandn(0, 1, 1): {k: NormalDist().cdf(k + 0.5) - NormalDist().cdf(k - 0.5) for k in range(-7, 8)},
}


@pytest.mark.parametrize(("domain", "shares"), SHARES.items(), ids=map(str, SHARES))
def test_discrete_values_have_their_shares(domain, shares):
    count = 6000
    drawn = Counter(draws(domain, count))
    assert drawn.keys() <= shares.keys()
    assert sum(shares.values()) == pytest.approx(1)
    squares = sum((drawn[value] - share * count) ** 2 / (share * count) for value, share in shares.items())
    assert squares < len(shares) + 4 * math.sqrt(2 * len(shares))


@pytest.mark.parametrize("domain", [*NUMBERS.values(), tune.choice([None, 1]), tune.grid_search([1, 2])], ids=str)
def test_a_domain_contains_what_it_draws_and_says_how_it_was_made(domain):
    assert all(domain.contains(value) for value in draws(domain, 200))
    assert all(domain.nearest(value) == value for value in draws(domain, 200))
    name, arguments = domain.call
    again = getattr(tune, name)(*arguments)
    assert draws(again, 50) == draws(domain, 50)
    assert str(again) == str(domain)


@pytest.mark.parametrize(
    ("domain", "values"),
    [
        (tune.uniform(0, 1), [1.5, math.nan, True]),
        (tune.quniform(0, 1, 0.5), [0.4]),
        (tune.randint(0, 3), [3, 1.5]),
        (tune.qrandint(0, 9, 3), [4]),
        (tune.randn(), [math.inf]),
        (tune.qrandn(0, 1, 0.5), [0.6]),
        (tune.choice([1, 2]), [2, True]),
    ],
)
def test_a_domain_does_not_contain_other_values(domain, values):
    assert [value for value in values if domain.contains(value)] == []


def test_numbers_of_numpy_are_bounds_options_have_an_order_and_samples_follow_the_seed_of_random():
    assert tune.randint(np.int64(1), np.int32(5)) == tune.randint(1, 5)
    assert tune.uniform(np.float32(0.5), np.float64(1)) == tune.uniform(0.5, 1)
    assert [type(option) for option in tune.choice(np.arange(2)).categories] == [int, int]
    assert tune.grid_search(x * x for x in range(3)).categories == (0, 1, 4)
    assert tune.choice({"a": 1}.keys()).categories == ("a",)
    random.seed(7)
    first = tune.uniform(0, 1).sample(), tune.uniform(0, 1).sample()
    random.seed(7)
    assert first == (tune.uniform(0, 1).sample(), tune.uniform(0, 1).sample())
    assert first[0] != first[1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tune.uniform(1, 0), "tune.uniform: lower must be at most upper=0.0, got 1.0"),
        (lambda: tune.uniform("0", 1), "tune.uniform: lower must be a finite number, got '0'"),
        (lambda: tune.uniform(0, math.inf), "tune.uniform: upper must be a finite number, got inf"),
        (lambda: tune.uniform(0, 10**400), "upper must be a finite number"),
        (lambda: tune.quniform(0, 1, 0), "tune.quniform: q must be a positive number, got 0"),
        (lambda: tune.quniform(0.1, 0.2, 0.5), "no multiple of q=0.5 is between lower=0.1 and upper=0.2"),
        (lambda: tune.loguniform(0, 1), "tune.loguniform: lower must be positive, got 0.0"),
        (lambda: tune.loguniform(1, 2, base=1), "tune.loguniform: base must be a positive number other than 1, got 1"),
        (lambda: tune.randint(1, 1), "the range from lower=1 up to, but excluding, upper=1 is empty"),
        (lambda: tune.randint(0.5, 3), "tune.randint: lower must be an integer, got 0.5"),
        (lambda: tune.qrandint(0, 9, 0), "tune.qrandint: q must be a positive integer, got 0"),
        (lambda: tune.lograndint(1, 10**400), "upper must be at most 1e300"),
        (lambda: tune.choice([]), "tune.choice: categories must have at least one option"),
        (lambda: tune.choice("abc"), "tune.choice: categories must be a list of options, got 'abc'"),
        (lambda: tune.choice({1, 2}), "must be a list of options (sets have no order)"),
        (lambda: tune.grid_search({"a": 1}), "tune.grid_search: values must be a list of options, got {'a': 1}"),
        (lambda: tune.sample_from(3), "tune.sample_from: func must be a function of the other values, got 3"),
        (lambda: tune.sample_from(lambda: 1), "func must be a function of one argument"),
    ],
)
def test_bad_arguments_are_refused_at_once_and_by_name(make, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


@pytest.mark.parametrize(
    ("domain", "kind"),
    [
        (tune.uniform(0, 1), float),
        (tune.randint(0, 9), int),
        (tune.choice(["a", "b"]), str),
        (tune.sample_from(lambda config: str(config)), str),
    ],
)
def test_a_domain_is_sampled_outside_of_a_search(domain, kind):
    assert type(domain.sample()) is kind
    several = domain.sample(size=40, random_state=3)
    assert {type(value) for value in several} == {kind}
    assert several == domain.sample(size=40, random_state=3)
    assert len(set(several)) > 1 or isinstance(domain, tune.Function)
