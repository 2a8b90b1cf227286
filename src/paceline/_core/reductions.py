"""Metrics that are reduced over the ranks: how a rank marks its own value, and how the values are combined.

A report carries each rank's own value and how to reduce it. The result is computed later, by whoever has the reports of
all ranks: no rank waits for another. Pure, and independent of the order of arrival, because values are combined in rank
order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from functools import partial, reduce
from operator import getitem
from typing import Any, Literal

import msgspec

from paceline._core.arguments import bad_value
from paceline._core.plain_values import from_plain, to_metric_key, to_plain

Reduction = Literal["mean", "sum", "max", "min"]
Path = tuple[str, ...]
Number = int | float

_WEIGHT_LIMIT = 1 << 63


class ReductionMark(msgspec.Struct, frozen=True, array_like=True):
    """The metric at this path is reduced; in a mean it has this weight."""

    path: Path
    how: Reduction
    weight: int | float | None = None


class ReducedMetric:
    """One rank's value of a metric that is reduced over all ranks: what `train.mean(x)` and its siblings return."""

    __slots__ = ("how", "value", "weight")

    def __init__(self, how: Reduction, value: Any, weight: Any = None) -> None:
        self.how = how
        self.value = _check_number(value, f"train.{how}({value!r:.80})")
        self.weight = None if weight is None else _check_number(weight, "weight")
        if self.weight is not None and not 0 <= self.weight < _WEIGHT_LIMIT:  # Also refuses nan.
            raise bad_value("weight", "a non-negative finite number", weight)

    def __repr__(self) -> str:
        weight = f", weight={self.weight!r}" if self.weight is not None else ""
        return f"train.{self.how}({self.value!r}{weight})"


def split_reductions(metrics: dict[Any, Any]) -> tuple[dict[Any, Any], tuple[ReductionMark, ...]]:
    """Split metrics into plain values and the marks of those to reduce."""
    marks: list[ReductionMark] = []
    return _collect_marks(metrics, (), marks), tuple(marks)


def reduce_metrics(reports: Iterable[tuple[dict[str, Any], Sequence[ReductionMark]]]) -> dict[str, Any]:
    """Reduce the reports of several ranks: the metrics of the first, with the marked ones reduced over all.

    The reports come in rank order. A rank that does not mark a metric is left out of its reduction. If ranks mark a
    metric differently, which is an error elsewhere, those that agree with the first count.
    """
    reduced: dict[str, Any] | None = None
    collected: dict[Path, tuple[Reduction, list[tuple[Number, Number | None]]]] = {}
    for metrics, marks in reports:
        reduced = metrics if reduced is None else reduced
        for mark in marks:
            how, values = collected.setdefault(mark.path, (mark.how, []))
            if how == mark.how:
                value: Any = reduce(getitem, mark.path, metrics)
                values.append((value, mark.weight))
    for path, (how, values) in collected.items():
        reduced = _set_at_path(reduced or {}, path, _REDUCERS[how](values))
    return reduced or {}


def _collect_marks(metrics: dict[Any, Any], path: Path, marks: list[ReductionMark]) -> dict[Any, Any]:
    plain: dict[Any, Any] = {}
    for key, value in metrics.items():
        if isinstance(value, ReducedMetric):
            marks.append(ReductionMark((*path, to_metric_key(key, "metrics")), value.how, value.weight))
            plain[key] = value.value
        elif isinstance(value, dict):
            plain[key] = _collect_marks(value, (*path, to_metric_key(key, "metrics")), marks)
        else:
            _refuse_nested(value, key)
            plain[key] = value
    return plain


def _refuse_nested(value: Any, key: Any) -> None:
    if isinstance(value, ReducedMetric):
        raise TypeError(
            f"metrics[{key!r}] has {value!r} in a list: only a value with its own name can be reduced\n\n"
            "hint: use a dict, such as {'loss': {'a': train.mean(x), 'b': train.mean(y)}}"
        )
    if isinstance(value, list | tuple | dict):
        for item in value.values() if isinstance(value, dict) else value:
            _refuse_nested(item, key)


def _set_at_path(metrics: dict[str, Any], path: Path, value: Number) -> dict[str, Any]:
    key, *rest = path
    if not rest:
        return {**metrics, key: value}
    below = metrics.get(key)
    return {**metrics, key: _set_at_path(below if isinstance(below, dict) else {}, tuple(rest), value)}


def _check_number(value: Any, label: str) -> Number:
    number = from_plain(to_plain(value, label))
    if isinstance(number, bool):
        return int(number)
    if not isinstance(number, int | float):
        raise TypeError(f"{label} must be a number, got a {type(value).__name__}")
    return number


WeightedValues = list[tuple[Number, Number | None]]


def _reduce_mean(values: WeightedValues) -> Number:
    weighted = [(value, 1 if weight is None else weight) for value, weight in values]
    # A rank without samples does not count, whatever it got by dividing by their number.
    weighted = [(value, weight) for value, weight in weighted if weight > 0]
    if not weighted:
        return math.nan
    if non_finite := _find_non_finite([value for value, _ in weighted]):
        return non_finite[0]
    weights = _exact_sum([weight for _, weight in weighted])
    try:
        total = _exact_sum([value * weight for value, weight in weighted])
        if isinstance(total, int) and isinstance(weights, int):
            return _to_float(Fraction(total, weights))
        if math.isfinite(total):
            return total / weights
    except OverflowError:  # An integer that is larger than any float.
        pass
    exact = sum((Fraction(value) * Fraction(weight) for value, weight in weighted), Fraction(0))
    return _to_float(exact / Fraction(weights))


def _exact_sum(values: list[Number]) -> Number:
    """The sum, rounded once, so it does not depend on the order. Exact for integers."""
    if all(isinstance(value, int) for value in values):
        return sum(values)
    if non_finite := _find_non_finite(values):
        return non_finite[0]
    try:
        return math.fsum(values)
    except OverflowError:  # In an intermediate sum, or from an integer that is larger than any float.
        return _to_float(sum(map(Fraction, values), Fraction(0)))


def _find_non_finite(values: list[Number]) -> list[float]:
    """The sum of values of which some are not finite, as a list of one; empty if all are finite."""
    non_finite = [value for value in values if isinstance(value, float) and not math.isfinite(value)]
    if not non_finite:
        return []
    return [non_finite[0] if all(value == non_finite[0] for value in non_finite) else math.nan]


def _to_float(exact: Fraction) -> float:
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def _pick_unless_nan(pick: Any, values: WeightedValues) -> Number:
    numbers = [value for value, _ in values]
    if any(value != value for value in numbers):
        return math.nan
    number: Number = pick(numbers)
    return number


_REDUCERS: dict[Reduction, Callable[[WeightedValues], Number]] = {
    "mean": _reduce_mean,
    "sum": lambda values: _exact_sum([value for value, _ in values]),
    "max": partial(_pick_unless_nan, max),
    "min": partial(_pick_unless_nan, min),
}
