"""The functions to write a search space with, and the domains they return: numbers, options, and functions of others.

A domain is a frozen value that searchers and schedulers inspect: its bounds, step and options. A pick from it is
a number or the index of an option. Its randomness is keyed: a draw depends only on its key, not on earlier draws, the
process or the order. The numbers come from a hash of the key, so they are the same in every version of Python.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import math
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from statistics import NormalDist
from typing import Any, ClassVar

from paceline._core.arguments import bad_value, is_finite_number, is_int, is_number

_BITS = 52
"""The number of bits for which a float is never 0 or 1."""
_LARGEST_LOG = 10**300


def uniform(lower: float, upper: float) -> Float:
    """A float from `lower` up to, but excluding, `upper`."""
    return Float(lower, upper)


def quniform(lower: float, upper: float, q: float) -> Float:
    """A float between `lower` and `upper`, rounded to a multiple of `q` within the bounds; `upper` may be drawn."""
    return Float(lower, upper, q=q)


def loguniform(lower: float, upper: float, base: float = 10) -> Float:
    """A float from `lower` up to, but excluding, `upper`; all orders of magnitude are equally likely.

    `base` has no effect: the distribution is the same for any base.
    """
    _check_base("loguniform", base)
    return Float(lower, upper, log=True)


def qloguniform(lower: float, upper: float, q: float, base: float = 10) -> Float:
    """Like `loguniform`, rounded to a multiple of `q` within the bounds; `upper` may be drawn."""
    _check_base("qloguniform", base)
    return Float(lower, upper, log=True, q=q)


def randint(lower: int, upper: int) -> Integer:
    """An integer from `lower` up to, but excluding, `upper`."""
    return Integer(lower, upper)


def qrandint(lower: int, upper: int, q: int = 1) -> Integer:
    """An integer from `lower` to `upper`, rounded to a multiple of `q` within the bounds; `upper` may be drawn.

    As in Ray Tune, with `q` 1 this is `randint`, which never draws `upper`.
    """
    domain = Integer(lower, upper, q=q)
    return domain if domain.q != 1 else Integer(lower, upper)


def lograndint(lower: int, upper: int, base: float = 10) -> Integer:
    """An integer from `lower` up to, but excluding, `upper`; all orders of magnitude are equally likely."""
    _check_base("lograndint", base)
    return Integer(lower, upper, log=True)


def qlograndint(lower: int, upper: int, q: int, base: float = 10) -> Integer:
    """Like `lograndint`, rounded to a multiple of `q` within the bounds; `upper` may be drawn."""
    _check_base("qlograndint", base)
    return Integer(lower, upper, log=True, q=q)


def randn(mean: float = 0.0, sd: float = 1.0) -> Normal:
    """A normally distributed float with mean `mean` and standard deviation `sd`."""
    return Normal(mean, sd)


def qrandn(mean: float, sd: float, q: float) -> Normal:
    """Like `randn`, rounded to a multiple of `q`."""
    return Normal(mean, sd, q)


def choice(categories: Iterable[Any]) -> Categorical:
    """One of the options, all equally likely; domains inside an option are drawn if it is chosen."""
    return Categorical(_check_options("choice", "categories", categories))


def grid_search(values: Iterable[Any]) -> Grid:
    """Try each of the values. Several grids are tried in all combinations; the last one changes fastest."""
    return Grid(_check_options("grid_search", "values", values))


def sample_from(func: Callable[[Any], Any]) -> Function:
    """The return value of `func` for the other values of the same trial.

    It is called once per trial, with one argument that gives access to the other values: `spec.config.lr`, `spec["lr"]`
    and, for a nested value, `spec["model"]["lr"]`. Values of other `sample_from` functions are available too, in any
    order. During the call, `random` and `numpy.random` are seeded for this trial and this parameter.
    """
    if not callable(func):
        raise bad_value("tune.sample_from: func", "a function of the other values", func)
    try:
        inspect.signature(func).bind(None)
    except TypeError as error:
        raise ValueError(
            f"tune.sample_from: func must be a function of one argument, got {func!r}: {error}\n\n"
            "hint: its argument has the other values, as in lambda spec: spec.config.lr * 10"
        ) from None
    except ValueError:
        pass  # Written in C, without a signature to inspect.
    return Function(func)


class Domain:
    """Base of all domains."""

    function: ClassVar[str]
    """The function of `paceline.tune` that creates the domain, without the prefixes `q` and `log`."""
    arguments: ClassVar[tuple[str, ...]]
    """The attributes that are its arguments, besides `q`."""
    q: Any = None

    @property
    def call(self) -> tuple[str, tuple[Any, ...]]:
        """The function of `paceline.tune` that creates this domain, and its arguments."""
        name = f"{'q' if self.q is not None else ''}{'log' if getattr(self, 'log', False) else ''}{self.function}"
        return name, tuple(getattr(self, each) for each in (*self.arguments, *(("q",) if self.q is not None else ())))

    def pick(self, chance: KeyedRandom) -> Any:
        """Draw a random number of the domain, or the index of a random option."""
        raise NotImplementedError

    def sample(self, config: Any = None, size: int = 1, random_state: int | None = None) -> Any:
        """Draw a value outside of a search; with a `size` above 1, a list of that many.

        The same `random_state` gives the same value; without one, `random.seed` determines it. An option is returned as
        it is, even if it contains domains. `config` is the argument for a `sample_from` function.
        """
        seed = random.getrandbits(64) if random_state is None else random_state
        values = [self._to_value(self.pick(KeyedRandom("sample", seed, number))) for number in range(size)]
        return values[0] if size == 1 else values

    def _to_value(self, picked: Any) -> Any:
        return picked

    def contains(self, picked: Any) -> bool:
        """Whether the domain contains this number or option index."""
        raise NotImplementedError

    def nearest(self, picked: Any) -> Any:
        """Return the domain's value nearest to a number; options have no neighbors."""
        return picked

    def __repr__(self) -> str:
        name, arguments = self.call
        return f"{name}({', '.join(map(repr, arguments))})"


@dataclass(frozen=True, repr=False)
class Interval(Domain):
    """Numbers from `lower` up to, but excluding, `upper`; with a step `q`, its multiples, which may include `upper`."""

    number_type: ClassVar[type[int] | type[float]]
    arguments = ("lower", "upper")

    lower: Any
    upper: Any
    log: bool = False
    q: Any = None

    def __post_init__(self) -> None:
        name = self.call[0]
        for argument in ("lower", "upper") if self.q is None else ("q", "lower", "upper"):
            object.__setattr__(self, argument, self._check_argument(name, argument))
        lower, upper = self.lower, self.upper
        if lower > upper:
            raise bad_value(f"tune.{name}: lower", f"at most upper={upper!r}", lower)
        if self.log and lower <= 0:
            hint = f"use {'1' if isinstance(lower, int) else 'a small number such as 1e-6'} or more"
            raise bad_value(f"tune.{name}: lower", "positive", lower, hint)
        if self.log and isinstance(upper, int) and upper > _LARGEST_LOG:
            raise bad_value(f"tune.{name}: upper", "at most 1e300", upper)
        if self.first > self.last:
            empty = f"the range from lower={lower!r} up to, but excluding, upper={upper!r} is empty"
            no_multiple = f"no multiple of q={self.q!r} is between lower={lower!r} and upper={upper!r}"
            raise ValueError(f"tune.{name}: {empty if self.q is None else no_multiple}")

    def _check_argument(self, name: str, argument: str) -> Any:
        raise NotImplementedError

    @property
    def first(self) -> Any:
        """The smallest value."""
        return self.lower if self.q is None else self.number_type(self._multiples[0] * _to_exact_fraction(self.q))

    @property
    def last(self) -> Any:
        """The largest value; of floats without a step, the exclusive upper bound."""
        if self.q is None:
            return self.upper - 1 if self.number_type is int else self.upper
        return self.number_type(self._multiples[1] * _to_exact_fraction(self.q))

    def nearest(self, picked: Any) -> Any:
        step = self.q or 1
        return self.number_type(_nearest_multiple(picked, step, *self._multiples) * _to_exact_fraction(step))

    @cached_property
    def _multiples(self) -> tuple[int, int]:
        """The smallest and the largest value, as numbers of steps from zero."""
        step, upper = _to_exact_fraction(self.q or 1), self.last if self.q is None else self.upper
        return math.ceil(_to_exact_fraction(self.lower) / step), math.floor(_to_exact_fraction(upper) / step)


class Float(Interval):
    number_type = float
    function = "uniform"

    def _check_argument(self, name: str, argument: str) -> float:
        return (_check_positive if argument == "q" else _check_number)(name, argument, getattr(self, argument))

    def pick(self, chance: KeyedRandom) -> float:
        value = _interpolate(self.lower, self.upper, chance.draw_unit(), self.log)
        if self.q is not None:
            return float(self.nearest(value))
        return float(max(self.lower, min(value, math.nextafter(self.upper, self.lower))))

    def contains(self, picked: Any) -> bool:
        if not is_finite_number(picked) or not self.first <= picked <= self.last:
            return False
        return self.q is None or math.isclose(self.nearest(picked), picked, rel_tol=1e-9, abs_tol=self.q * 1e-9)

    def nearest(self, picked: Any) -> float:
        return float(super().nearest(picked) if self.q is not None else min(max(picked, self.lower), self.upper))


class Integer(Interval):
    number_type = int
    function = "randint"

    def _check_argument(self, name: str, argument: str) -> int:
        value = getattr(self, argument)
        number = to_python_number(value)
        if not is_int(number):
            hint = "tune.uniform and its kind draw floats" if isinstance(number, float) else None
            raise bad_value(f"tune.{name}: {argument}", "an integer", value, hint)
        if argument == "q" and number < 1:
            raise bad_value(f"tune.{name}: q", "a positive integer", value)
        return int(number)

    def pick(self, chance: KeyedRandom) -> int:
        end = self.upper if self.q is None else self.upper + 1
        if self.log:
            value = math.floor(_interpolate(self.lower, end, chance.draw_unit(), log=True))
        else:
            value = self.lower + chance.draw_below(end - self.lower)
        return int(self.nearest(value))

    def contains(self, picked: Any) -> bool:
        return is_finite_number(picked) and self.first <= picked <= self.last and picked == self.nearest(picked)


@dataclass(frozen=True, repr=False)
class Normal(Domain):
    function, arguments = "randn", ("mean", "sd")
    log: ClassVar[bool] = False
    """Whether it is the logarithm of the value that is normally distributed."""

    mean: float = 0.0
    sd: float = 1.0
    q: float | None = None
    """The step: values are multiples of it."""

    def __post_init__(self) -> None:
        name = self.call[0]
        object.__setattr__(self, "mean", _check_number(name, "mean", self.mean))
        for argument in ("sd",) if self.q is None else ("sd", "q"):
            object.__setattr__(self, argument, _check_positive(name, argument, getattr(self, argument)))

    def pick(self, chance: KeyedRandom) -> float:
        return self.nearest(NormalDist(self.mean, self.sd).inv_cdf(chance.draw_unit()))

    def contains(self, picked: Any) -> bool:
        if not is_finite_number(picked):
            return False
        return self.q is None or math.isclose(self.nearest(picked), picked, abs_tol=1e-12)

    def nearest(self, picked: Any) -> float:
        value = min(max(float(picked), -sys.float_info.max), sys.float_info.max)
        return value if self.q is None else float(_nearest_multiple(value, self.q) * _to_exact_fraction(self.q))


@dataclass(frozen=True, eq=False, repr=False)
class Categorical(Domain):
    function = "choice"

    categories: tuple[Any, ...]
    """The options: any objects, including ones that contain domains."""

    @property
    def call(self) -> tuple[str, tuple[Any, ...]]:
        return self.function, ([*self.categories],)

    def pick(self, chance: KeyedRandom) -> int:
        return chance.draw_below(len(self.categories))

    def _to_value(self, picked: int) -> Any:
        return self.categories[picked]

    def contains(self, picked: Any) -> bool:
        return type(picked) is int and 0 <= picked < len(self.categories)


class Grid(Categorical):
    """Options that are all tried, one after the other."""

    function = "grid_search"


@dataclass(frozen=True, eq=False, repr=False)
class Function(Domain):
    """A value computed from the other values."""

    function, arguments = "sample_from", ("func",)

    func: Callable[[Any], Any]

    def sample(self, config: Any = None, size: int = 1, random_state: int | None = None) -> Any:
        values = [self.func(config) for _ in range(size)]
        return values[0] if size == 1 else values

    def pick(self, chance: KeyedRandom) -> Any:
        raise TypeError(f"{self} cannot be drawn by itself: it is called with the other values")

    def contains(self, picked: Any) -> bool:
        return True


def _interpolate(lower: float, upper: float, share: float, log: bool) -> float:
    if log:
        value = math.exp(math.log(lower) * (1 - share) + math.log(upper) * share)
    else:
        value = lower * (1 - share) + upper * share  # The difference of the two can overflow.
    return max(lower, min(value, upper))


def _nearest_multiple(value: float, step: float, first: int | None = None, last: int | None = None) -> int:
    """Return the nearest multiple within the bounds, as a number of steps from zero."""
    multiple = math.floor(Fraction(value) / _to_exact_fraction(step) + Fraction(1, 2))
    if first is not None:
        multiple = max(multiple, first)
    return multiple if last is None else min(multiple, last)


def _to_exact_fraction(number: float) -> Fraction:
    """Return the number as written: 0.1 is a tenth, so its multiples are the ones a person would write."""
    return Fraction(repr(number))


def _check_number(name: str, argument: str, value: Any) -> float:
    number = to_python_number(value)
    try:
        as_float = float(number) if is_number(number) else math.nan
    except OverflowError:
        as_float = math.inf
    if not math.isfinite(as_float):
        raise bad_value(f"tune.{name}: {argument}", "a finite number", value)
    return as_float


def _check_positive(name: str, argument: str, value: Any) -> float:
    number = _check_number(name, argument, value)
    if number <= 0:
        raise bad_value(f"tune.{name}: {argument}", "a positive number", value)
    return number


def _check_base(name: str, base: Any) -> None:
    if _check_positive(name, "base", base) == 1:
        raise bad_value(f"tune.{name}: base", "a positive number other than 1", base)


def to_python_number(value: Any) -> Any:
    """Convert a numpy number to a Python one."""
    return value.item() if hasattr(value, "item") and getattr(value, "shape", None) == () else value


def _check_options(name: str, argument: str, values: Any) -> tuple[Any, ...]:
    if isinstance(values, str | bytes | dict | set | frozenset) or not isinstance(values, Iterable):
        expected = "a list of options" + (" (sets have no order)" if isinstance(values, set | frozenset) else "")
        raise bad_value(f"tune.{name}: {argument}", expected, values, f"tune.{name}([1, 2, 3])")
    options = tuple(values.tolist() if hasattr(values, "tolist") and hasattr(values, "ndim") else values)
    if not options:
        raise ValueError(f"tune.{name}: {argument} must have at least one option")
    return options


class KeyedRandom:
    """A stream of random numbers identified by a key: the same key gives the same stream."""

    def __init__(self, *key: int | str) -> None:
        self._key = json.dumps(key).encode()
        self._num_drawn = 0

    def draw_unit(self) -> float:
        """Draw uniformly between 0 and 1, both excluded."""
        return ((self._draw_integer(8) >> (64 - _BITS)) + 0.5) / (1 << _BITS)

    def draw_below(self, count: int) -> int:
        """Draw uniformly from 0, 1, ..., `count` - 1; any `count`."""
        # With 64 extra bits, the bias of the modulo is negligible.
        return self._draw_integer(count.bit_length() // 8 + 9) % count

    def _draw_integer(self, num_bytes: int) -> int:
        self._num_drawn += 1
        return int.from_bytes(hashlib.shake_256(b"%s#%d" % (self._key, self._num_drawn)).digest(num_bytes))


@contextlib.contextmanager
def seed_global_generators(chance: KeyedRandom) -> Iterator[None]:
    """Seed `random` and `numpy.random` from `chance` inside the block, and restore their state afterwards."""
    import numpy as np

    before, numpy_before = random.getstate(), np.random.get_state()
    random.seed(chance.draw_below(1 << 64))
    np.random.seed(chance.draw_below(1 << 32))
    try:
        yield
    finally:
        random.setstate(before)
        np.random.set_state(numpy_before)
