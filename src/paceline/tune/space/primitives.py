"""The functions that a search space is written with. Each checks its arguments and makes a domain."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable
from typing import Any

from paceline.tune.space.domains import Categorical, Float, Function, Grid, Integer, Normal

_LARGEST_LOG = 10**300


def uniform(lower: float, upper: float) -> Float:
    """A float from `lower` up to, but not with, `upper`."""
    return _float("uniform", lower, upper)


def quniform(lower: float, upper: float, q: float) -> Float:
    """A float between `lower` and `upper`, rounded to a multiple of `q` that is inside; `upper` may be drawn."""
    return _float("quniform", lower, upper, _positive("quniform", "q", q))


def loguniform(lower: float, upper: float, base: float = 10) -> Float:
    """A float from `lower` up to, but not with, `upper`, each order of magnitude as likely as the others.

    `base` is of no consequence: the distribution is the same for all of them.
    """
    _check_base("loguniform", base)
    return _float("loguniform", lower, upper, log=True)


def qloguniform(lower: float, upper: float, q: float, base: float = 10) -> Float:
    """As `loguniform`, rounded to a multiple of `q` that is inside; `upper` may be drawn."""
    _check_base("qloguniform", base)
    return _float("qloguniform", lower, upper, _positive("qloguniform", "q", q), log=True)


def randint(lower: int, upper: int) -> Integer:
    """A whole number from `lower` up to, but not with, `upper`."""
    return _integer("randint", lower, upper)


def qrandint(lower: int, upper: int, q: int = 1) -> Integer:
    """A whole number from `lower` to `upper`, rounded to a multiple of `q` that is inside; `upper` may be drawn.

    As in Ray Tune, with `q` 1 this is `randint`, which never draws `upper`.
    """
    step = _step("qrandint", q)
    return _integer("qrandint", lower, upper, None if step == 1 else step)


def lograndint(lower: int, upper: int, base: float = 10) -> Integer:
    """A whole number from `lower` up to, but not with, `upper`, each order of magnitude as likely as the others."""
    _check_base("lograndint", base)
    return _integer("lograndint", lower, upper, log=True)


def qlograndint(lower: int, upper: int, q: int, base: float = 10) -> Integer:
    """As `lograndint`, rounded to a multiple of `q` that is inside; `upper` may be drawn."""
    _check_base("qlograndint", base)
    return _integer("qlograndint", lower, upper, _step("qlograndint", q), log=True)


def randn(mean: float = 0.0, sd: float = 1.0) -> Normal:
    """A float that is normally distributed around `mean`."""
    return Normal(_number("randn", "mean", mean), _positive("randn", "sd", sd))


def qrandn(mean: float, sd: float, q: float) -> Normal:
    """As `randn`, rounded to a multiple of `q`."""
    return Normal(_number("qrandn", "mean", mean), _positive("qrandn", "sd", sd), _positive("qrandn", "q", q))


def choice(categories: Iterable[Any]) -> Categorical:
    """One of the options, all as likely; an option may have domains in it, drawn where it is the one."""
    return Categorical(_options("choice", "categories", categories))


def grid_search(values: Iterable[Any]) -> Grid:
    """Each of the values, in turn. Several of these are tried in all combinations, the last one changing fastest."""
    return Grid(_options("grid_search", "values", values))


def sample_from(func: Callable[[Any], Any]) -> Function:
    """What `func` returns for the other values of the same trial.

    It is called once for a trial, with one argument: `spec.config.lr`, `spec["lr"]` and, for a nested value,
    `spec["model"]["lr"]` are the other values. Those of other `sample_from` functions are there too, whatever the
    order. While it runs, `random` and `numpy.random` are seeded for this trial and this parameter.
    """
    if not callable(func):
        raise ValueError(f"tune.sample_from: func={func!r} is not a function of the other values")
    try:
        inspect.signature(func).bind(None)
    except TypeError as error:
        raise ValueError(
            f"tune.sample_from: func={func!r} cannot be called with one argument: {error}\n\n"
            "hint: it is given the other values, as in lambda spec: spec.config.lr * 10"
        ) from None
    except ValueError:
        pass  # Written in C, without a signature that could be looked at.
    return Function(func)


def _float(name: str, lower: Any, upper: Any, q: float | None = None, log: bool = False) -> Float:
    domain = Float(_number(name, "lower", lower), _number(name, "upper", upper), log, q)
    _check_interval(name, domain)
    return domain


def _integer(name: str, lower: Any, upper: Any, q: int | None = None, log: bool = False) -> Integer:
    domain = Integer(_whole(name, "lower", lower), _whole(name, "upper", upper), log, q)
    _check_interval(name, domain)
    if log and domain.upper > _LARGEST_LOG:
        raise ValueError(f"tune.{name}: upper={upper!r} is above 1e300, the most that is drawn by magnitude")
    return domain


def _check_interval(name: str, domain: Float | Integer) -> None:
    lower, upper = domain.lower, domain.upper
    if lower > upper:
        raise ValueError(f"tune.{name}: lower={lower!r} is above upper={upper!r}")
    if domain.log and lower <= 0:
        raise ValueError(
            f"tune.{name}: lower={lower!r} is not above 0, where orders of magnitude are\n\n"
            f"hint: use {'1' if isinstance(lower, int) else 'a small number such as 1e-6'} or more"
        )
    if domain.is_empty and domain.q is not None:
        raise ValueError(f"tune.{name}: no multiple of q={domain.q!r} is between lower={lower!r} and upper={upper!r}")
    if domain.is_empty:
        raise ValueError(
            f"tune.{name}: there is nothing to draw from lower={lower!r} up to, but not with, upper={upper!r}"
        )


def _number(name: str, argument: str, value: Any) -> float:
    number = _unwrapped(value)
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise ValueError(f"tune.{name}: {argument}={value!r} is not a number")
    try:
        as_float = float(number)
    except OverflowError:
        as_float = math.inf
    if not math.isfinite(as_float):
        raise ValueError(f"tune.{name}: {argument}={value!r} is not a finite number")
    return as_float


def _positive(name: str, argument: str, value: Any) -> float:
    number = _number(name, argument, value)
    if number <= 0:
        raise ValueError(f"tune.{name}: {argument}={value!r} is not above 0")
    return number


def _whole(name: str, argument: str, value: Any) -> int:
    number = _unwrapped(value)
    if isinstance(number, bool) or not isinstance(number, int):
        hint = "\n\nhint: tune.uniform and its kind draw floats" if isinstance(number, float) else ""
        raise ValueError(f"tune.{name}: {argument}={value!r} is not a whole number{hint}")
    return int(number)


def _step(name: str, q: Any) -> int:
    step = _whole(name, "q", q)
    if step < 1:
        raise ValueError(f"tune.{name}: q={q!r} is not a whole number of 1 or more")
    return step


def _check_base(name: str, base: Any) -> None:
    if _positive(name, "base", base) == 1:
        raise ValueError(f"tune.{name}: base={base!r} is no base of a logarithm")


def _unwrapped(value: Any) -> Any:
    """A number of numpy as one of Python's."""
    return value.item() if hasattr(value, "item") and getattr(value, "shape", None) == () else value


def _options(name: str, argument: str, values: Any) -> tuple[Any, ...]:
    if isinstance(values, str | bytes | dict | set | frozenset) or not isinstance(values, Iterable):
        why = ", which has no order" if isinstance(values, set | frozenset) else ""
        raise ValueError(
            f"tune.{name}: {argument}={values!r} is not a list of options{why}\n\nhint: tune.{name}([1, 2, 3])"
        )
    options = tuple(values.tolist() if hasattr(values, "tolist") and hasattr(values, "ndim") else values)
    if not options:
        raise ValueError(f"tune.{name}: {argument} has no options")
    return options
