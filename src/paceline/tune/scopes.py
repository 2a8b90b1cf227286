"""How good a trial was, by what it reported: the scopes of `get_best_result`. Pure: numbers in, a number out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeVar, get_args

from paceline._core.plain import looked_up

Scope = Literal["all", "last", "avg", "last-5-avg", "last-10-avg"]
SCOPES: tuple[str, ...] = get_args(Scope)
MODES = ("min", "max")

_AVERAGED = {"avg": 0, "last-5-avg": 5, "last-10-avg": 10}
"""Of how many values from the end the average is; 0: of all."""

T = TypeVar("T")


def check_scope(scope: object) -> None:
    if scope not in SCOPES:
        raise ValueError(f"scope={scope!r} is not one of {', '.join(SCOPES)}")


def check_mode(mode: object, argument: str = "mode") -> None:
    if mode not in MODES:
        raise ValueError(f"{argument}={mode!r} is neither 'min' nor 'max'")


def value_of(metrics: Any, metric: str) -> float | None:
    """A metric under its name, or under a path such as `eval/loss`; None where it is not there, or no number."""
    found = looked_up(metrics, metric)
    return found if isinstance(found, int | float) else None


def is_better(value: float, other: float, mode: str) -> bool:
    """Whether it beats the other. nan beats nothing, and everything else beats nan."""
    if math.isnan(value) or math.isnan(other):
        return math.isnan(other) and not math.isnan(value)
    return value > other if mode == "max" else value < other


def score(values: Sequence[float], scope: str, mode: str, *, only_finite: bool) -> float | None:
    """What a trial that reported these values of a metric is compared by; None: it is not compared.

    `only_finite`: of `all` values, those that are nan or infinite are passed over; a last value or an average that is
    not finite counts as none.
    """
    if scope == "all" and only_finite:
        values = [value for value in values if math.isfinite(value)]
    if not values:
        return None
    found = _in_scope(values, scope, mode)
    return found if not only_finite or math.isfinite(found) else None


def best(scored: Iterable[tuple[T, float]], mode: str) -> tuple[T, float] | None:
    """The one with the best score; of equals the first."""
    leading: tuple[T, float] | None = None
    for candidate in scored:
        if leading is None or is_better(candidate[1], leading[1], mode):
            leading = candidate
    return leading


def _in_scope(values: Sequence[float], scope: str, mode: str) -> float:
    if scope == "last":
        return values[-1]
    if scope == "all":
        leading = best(((value, value) for value in values), mode)
        assert leading is not None
        return leading[0]
    taken = values[-_AVERAGED[scope] :]
    try:
        return math.fsum(taken) / len(taken)
    except (OverflowError, ValueError):  # Numbers that no float holds; or infinities of both signs.
        total = sum(_as_float(value) for value in taken)
        return total / len(taken)


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
