"""Search spaces of all kinds, for properties, and what it means for a configuration to be of one."""

import enum
import math

from hypothesis import strategies as st

from paceline.tune.space import domains as tune


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Number(enum.IntEnum):
    ONE = 1


class Model:
    pass


def activation(x):
    return x


THING = object()

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
keys = st.one_of(text, st.sampled_from(["$space", "$tuple", "$domain", "a/b"]), st.integers(-2, 2))
plain_values = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), text)
objects = st.sampled_from([Color.RED, Color.BLUE, Number.ONE, Model, activation, THING, b"bytes", frozenset({1})])
NUMBERS = {
    "uniform": tune.uniform(-5, -1),
    "quniform": tune.quniform(3.2, 5.4, 0.2),
    "loguniform": tune.loguniform(1e-4, 1e-1),
    "qloguniform": tune.qloguniform(1e-4, 1e-1, 5e-5),
    "randint": tune.randint(-9, 15),
    "qrandint": tune.qrandint(-21, 12, 3),
    "lograndint": tune.lograndint(1, 10),
    "qlograndint": tune.qlograndint(1, 10, 2),
    "randn": tune.randn(10, 2),
    "qrandn": tune.qrandn(10, 2, 0.2),
}
numbers = st.sampled_from([*NUMBERS.values()])


def values(functions=True):
    """What may stand anywhere in a space; no grids inside random choices."""

    def nest(inner, with_options):
        several = st.lists(inner, max_size=3)
        options = st.lists(inner, min_size=1, max_size=3).map(with_options)
        return st.one_of(st.dictionaries(keys, inner, max_size=3), several, several.map(tuple), options)

    called = [st.just(tune.sample_from(lambda spec: len(spec.config)))] if functions else []
    leaves = st.one_of(plain_values, objects, numbers, *called)
    without_grids = st.recursive(leaves, lambda inner: nest(inner, tune.choice), max_leaves=6)
    return st.recursive(without_grids, lambda inner: nest(inner, tune.grid_search), max_leaves=4)


def spaces(functions=True):
    return st.dictionaries(keys, values(functions), max_size=4)


def is_of(part, value):
    """Whether a value could have come from this part of a space."""
    match part:
        case tune.Function():
            return isinstance(value, int)
        case tune.Categorical():
            return any(is_of(option, value) for option in part.categories)
        case tune.Domain():
            return part.contains(value)
        case dict():
            return type(value) is dict and [*part] == [*value] and all(is_of(part[key], value[key]) for key in part)
        case list() | tuple():
            return type(value) is type(part) and len(value) == len(part) and all(map(is_of, part, value))
    return same(part, value)


def same(one, other):
    """Equal in value, type and order, nan being equal to nan, and objects being the very same."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return (one == other and math.copysign(1, one) == math.copysign(1, other)) or (one != one and other != other)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return [*one] == [*other] and all(same(one[key], other[key]) for key in one)
    return one is other or (isinstance(one, int | str | bytes) and bool(one == other))
