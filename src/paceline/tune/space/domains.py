"""The possible values of a parameter: intervals of numbers, options, and functions of other parameters.

A domain is a frozen value that searchers and schedulers inspect: its kind, bounds, step and options. A pick from it is
a number or the index of an option.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from statistics import NormalDist
from typing import Any, ClassVar

from paceline._core.arguments import is_finite_number
from paceline.tune.space.keyed_random import KeyedRandom


class Domain:
    """Base of all domains."""

    kind: ClassVar[str]
    """`float`, `integer`, `normal`, `categorical`, `grid` or `function`."""

    @property
    def call(self) -> tuple[str, tuple[Any, ...]]:
        """The function of `paceline.tune` that creates this domain, and its arguments."""
        raise NotImplementedError

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
class Float(Domain):
    kind: ClassVar[str] = "float"

    lower: float
    upper: float
    """Exclusive, unless there is a step."""
    log: bool = False
    q: float | None = None
    """The step: values are multiples of it."""

    @property
    def call(self) -> tuple[str, tuple[Any, ...]]:
        name = f"{'q' if self.q is not None else ''}{'log' if self.log else ''}uniform"
        return name, (self.lower, self.upper, *(() if self.q is None else (self.q,)))

    @property
    def first(self) -> float:
        """The smallest value."""
        return self.lower if self.q is None else float(self._multiples[0] * _to_exact_fraction(self.q))

    @property
    def last(self) -> float:
        """The largest value; without a step, the exclusive upper bound."""
        return self.upper if self.q is None else float(self._multiples[1] * _to_exact_fraction(self.q))

    @property
    def is_empty(self) -> bool:
        return self._multiples[0] > self._multiples[1] if self.q is not None else self.lower > self.upper

    def pick(self, chance: KeyedRandom) -> float:
        value = _interpolate(self.lower, self.upper, chance.draw_unit(), self.log)
        if self.q is not None:
            return self.nearest(value)
        return max(self.lower, min(value, math.nextafter(self.upper, self.lower)))

    def contains(self, picked: Any) -> bool:
        if not is_finite_number(picked) or not self.first <= picked <= self.last:
            return False
        return self.q is None or math.isclose(self.nearest(picked), picked, rel_tol=1e-9, abs_tol=self.q * 1e-9)

    def nearest(self, picked: Any) -> float:
        if self.q is None:
            return float(min(max(picked, self.lower), self.upper))
        return float(_nearest_multiple(picked, self.q, *self._multiples) * _to_exact_fraction(self.q))

    @cached_property
    def _multiples(self) -> tuple[int, int]:
        step = _to_exact_fraction(self.q or 1)
        return math.ceil(_to_exact_fraction(self.lower) / step), math.floor(_to_exact_fraction(self.upper) / step)


@dataclass(frozen=True, repr=False)
class Integer(Domain):
    kind: ClassVar[str] = "integer"

    lower: int
    upper: int
    """Exclusive, unless there is a step."""
    log: bool = False
    q: int | None = None
    """The step: values are multiples of it. None is a step of 1."""

    @property
    def call(self) -> tuple[str, tuple[Any, ...]]:
        name = f"{'q' if self.q is not None else ''}{'log' if self.log else ''}randint"
        return name, (self.lower, self.upper, *(() if self.q is None else (self.q,)))

    @property
    def first(self) -> int:
        """The smallest value."""
        return self.lower if self.q is None else -(-self.lower // self.q) * self.q

    @property
    def last(self) -> int:
        """The largest value."""
        return self.upper - 1 if self.q is None else self.upper // self.q * self.q

    @property
    def is_empty(self) -> bool:
        return self.first > self.last

    def pick(self, chance: KeyedRandom) -> int:
        end = self.upper if self.q is None else self.upper + 1
        if self.log:
            value = math.floor(_interpolate(self.lower, end, chance.draw_unit(), log=True))
        else:
            value = self.lower + chance.draw_below(end - self.lower)
        return self.nearest(value)

    def contains(self, picked: Any) -> bool:
        return (
            is_finite_number(picked)
            and self.first <= picked <= self.last
            and picked == int(picked)
            and (self.q is None or int(picked) % self.q == 0)
        )

    def nearest(self, picked: Any) -> int:
        step = self.q or 1
        return _nearest_multiple(picked, step, self.first // step, self.last // step) * step


@dataclass(frozen=True, repr=False)
class Normal(Domain):
    kind: ClassVar[str] = "normal"

    mean: float = 0.0
    sd: float = 1.0
    q: float | None = None
    """The step: values are multiples of it."""

    @property
    def call(self) -> tuple[str, tuple[Any, ...]]:
        return ("randn", (self.mean, self.sd)) if self.q is None else ("qrandn", (self.mean, self.sd, self.q))

    def pick(self, chance: KeyedRandom) -> float:
        return self.nearest(NormalDist(self.mean, self.sd).inv_cdf(chance.draw_unit()))

    def contains(self, picked: Any) -> bool:
        return is_finite_number(picked) and (
            self.q is None or math.isclose(self.nearest(picked), picked, abs_tol=1e-12)
        )

    def nearest(self, picked: Any) -> float:
        value = min(max(float(picked), -sys.float_info.max), sys.float_info.max)
        return value if self.q is None else float(_nearest_multiple(value, self.q) * _to_exact_fraction(self.q))


@dataclass(frozen=True, eq=False, repr=False)
class Categorical(Domain):
    kind: ClassVar[str] = "categorical"

    categories: tuple[Any, ...]
    """The options: any objects, including ones that contain domains."""

    @property
    def call(self) -> tuple[str, tuple[Any, ...]]:
        return "choice", ([*self.categories],)

    def pick(self, chance: KeyedRandom) -> int:
        return chance.draw_below(len(self.categories))

    def _to_value(self, picked: int) -> Any:
        return self.categories[picked]

    def contains(self, picked: Any) -> bool:
        return type(picked) is int and 0 <= picked < len(self.categories)


@dataclass(frozen=True, eq=False, repr=False)
class Grid(Categorical):
    """Options that are all tried, one after the other."""

    kind: ClassVar[str] = "grid"

    @property
    def call(self) -> tuple[str, tuple[Any, ...]]:
        return "grid_search", ([*self.categories],)


@dataclass(frozen=True, eq=False, repr=False)
class Function(Domain):
    """A value computed from the other values."""

    kind: ClassVar[str] = "function"

    func: Callable[[Any], Any]

    @property
    def call(self) -> tuple[str, tuple[Any, ...]]:
        return "sample_from", (self.func,)

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
