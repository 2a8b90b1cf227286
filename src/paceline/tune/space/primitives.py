"""The functions to write a search space with. Each checks its arguments and returns a domain."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable
from typing import Any

from paceline._core.arguments import bad_value, is_int, is_number
from paceline.tune.space.domains import Categorical, Float, Function, Grid, Integer, Normal

_LARGEST_LOG = 10**300


def uniform(lower: float, upper: float) -> Float:
    """A float from `lower` up to, but excluding, `upper`."""
    return _make_float("uniform", lower, upper)


def quniform(lower: float, upper: float, q: float) -> Float:
    """A float between `lower` and `upper`, rounded to a multiple of `q` within the bounds; `upper` may be drawn."""
    return _make_float("quniform", lower, upper, _check_positive("quniform", "q", q))


def loguniform(lower: float, upper: float, base: float = 10) -> Float:
    """A float from `lower` up to, but excluding, `upper`; all orders of magnitude are equally likely.

    `base` has no effect: the distribution is the same for any base.
    """
    _check_base("loguniform", base)
    return _make_float("loguniform", lower, upper, log=True)


def qloguniform(lower: float, upper: float, q: float, base: float = 10) -> Float:
    """Like `loguniform`, rounded to a multiple of `q` within the bounds; `upper` may be drawn."""
    _check_base("qloguniform", base)
    return _make_float("qloguniform", lower, upper, _check_positive("qloguniform", "q", q), log=True)


def randint(lower: int, upper: int) -> Integer:
    """An integer from `lower` up to, but excluding, `upper`."""
    return _make_integer("randint", lower, upper)


def qrandint(lower: int, upper: int, q: int = 1) -> Integer:
    """An integer from `lower` to `upper`, rounded to a multiple of `q` within the bounds; `upper` may be drawn.

    As in Ray Tune, with `q` 1 this is `randint`, which never draws `upper`.
    """
    step = _check_step("qrandint", q)
    return _make_integer("qrandint", lower, upper, None if step == 1 else step)


def lograndint(lower: int, upper: int, base: float = 10) -> Integer:
    """An integer from `lower` up to, but excluding, `upper`; all orders of magnitude are equally likely."""
    _check_base("lograndint", base)
    return _make_integer("lograndint", lower, upper, log=True)


def qlograndint(lower: int, upper: int, q: int, base: float = 10) -> Integer:
    """Like `lograndint`, rounded to a multiple of `q` within the bounds; `upper` may be drawn."""
    _check_base("qlograndint", base)
    return _make_integer("qlograndint", lower, upper, _check_step("qlograndint", q), log=True)


def randn(mean: float = 0.0, sd: float = 1.0) -> Normal:
    """A normally distributed float with mean `mean` and standard deviation `sd`."""
    return Normal(_check_number("randn", "mean", mean), _check_positive("randn", "sd", sd))


def qrandn(mean: float, sd: float, q: float) -> Normal:
    """Like `randn`, rounded to a multiple of `q`."""
    return Normal(
        _check_number("qrandn", "mean", mean), _check_positive("qrandn", "sd", sd), _check_positive("qrandn", "q", q)
    )


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


def _make_float(name: str, lower: Any, upper: Any, q: float | None = None, log: bool = False) -> Float:
    domain = Float(_check_number(name, "lower", lower), _check_number(name, "upper", upper), log, q)
    _check_interval(name, domain)
    return domain


def _make_integer(name: str, lower: Any, upper: Any, q: int | None = None, log: bool = False) -> Integer:
    domain = Integer(_check_integer(name, "lower", lower), _check_integer(name, "upper", upper), log, q)
    _check_interval(name, domain)
    if log and domain.upper > _LARGEST_LOG:
        raise bad_value(f"tune.{name}: upper", "at most 1e300", upper)
    return domain


def _check_interval(name: str, domain: Float | Integer) -> None:
    lower, upper = domain.lower, domain.upper
    if lower > upper:
        raise bad_value(f"tune.{name}: lower", f"at most upper={upper!r}", lower)
    if domain.log and lower <= 0:
        hint = f"use {'1' if isinstance(lower, int) else 'a small number such as 1e-6'} or more"
        raise bad_value(f"tune.{name}: lower", "positive", lower, hint)
    if domain.is_empty and domain.q is not None:
        raise ValueError(f"tune.{name}: no multiple of q={domain.q!r} is between lower={lower!r} and upper={upper!r}")
    if domain.is_empty:
        raise ValueError(f"tune.{name}: the range from lower={lower!r} up to, but excluding, upper={upper!r} is empty")


def _check_number(name: str, argument: str, value: Any) -> float:
    number = _to_python_number(value)
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


def _check_integer(name: str, argument: str, value: Any) -> int:
    number = _to_python_number(value)
    if not is_int(number):
        hint = "tune.uniform and its kind draw floats" if isinstance(number, float) else None
        raise bad_value(f"tune.{name}: {argument}", "an integer", value, hint)
    return int(number)


def _check_step(name: str, q: Any) -> int:
    step = _check_integer(name, "q", q)
    if step < 1:
        raise bad_value(f"tune.{name}: q", "a positive integer", q)
    return step


def _check_base(name: str, base: Any) -> None:
    if _check_positive(name, "base", base) == 1:
        raise bad_value(f"tune.{name}: base", "a positive number other than 1", base)


def _to_python_number(value: Any) -> Any:
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
