"""Scores a trial by its reports: the scopes of `get_best_result`. Pure: numbers in, a number out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeVar, get_args

from paceline._core.plain_values import get_metric

Scope = Literal["all", "last", "avg", "last-5-avg", "last-10-avg"]
SCOPES: tuple[str, ...] = get_args(Scope)
MODES = ("min", "max")

_AVERAGED = {"avg": 0, "last-5-avg": 5, "last-10-avg": 10}
"""How many of the last values are averaged; 0: all."""

T = TypeVar("T")


def get_metric_value(metrics: Any, metric: str) -> float | None:
    """Look up a metric by name or by a path such as `eval/loss`; None if it is missing or not a number."""
    value = get_metric(metrics, metric)
    return value if isinstance(value, int | float) else None


def is_better(value: float, other: float, mode: str) -> bool:
    """Whether `value` beats `other`. nan beats nothing, and everything else beats nan."""
    if math.isnan(value) or math.isnan(other):
        return math.isnan(other) and not math.isnan(value)
    return value > other if mode == "max" else value < other


def score_values(values: Sequence[float], scope: str, mode: str, *, only_finite: bool) -> float | None:
    """Return the value a trial with these reports is compared by; None: it has none, or none that is finite."""
    if scope == "all" and only_finite:
        values = [value for value in values if math.isfinite(value)]
    if not values:
        return None
    score = _values_in_scope(values, scope, mode)
    return score if not only_finite or math.isfinite(score) else None


def select_best(scored: Iterable[tuple[T, float]], mode: str) -> tuple[T, float] | None:
    """Return the item with the best score; the first in a tie."""
    leading: tuple[T, float] | None = None
    for candidate in scored:
        if leading is None or is_better(candidate[1], leading[1], mode):
            leading = candidate
    return leading


def _values_in_scope(values: Sequence[float], scope: str, mode: str) -> float:
    if scope == "last":
        return values[-1]
    if scope == "all":
        leading = select_best(((value, value) for value in values), mode)
        assert leading is not None
        return leading[0]
    averaged = values[-_AVERAGED[scope] :]
    try:
        return math.fsum(averaged) / len(averaged)
    except (OverflowError, ValueError):  # Numbers beyond the range of floats, or infinities of both signs.
        return sum(map(as_float, averaged)) / len(averaged)


def as_float(value: float) -> float:
    """Convert a number to a float; an integer beyond the range of floats becomes infinite."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
