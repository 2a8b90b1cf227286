"""Metrics that are reduced over the ranks: how a rank marks its own value, and how the values are combined.

A report carries each rank's own value and how to reduce it. The result is computed later, by whoever has the reports of
all ranks: no rank waits for another. Pure, and independent of the order of arrival, because values are combined in rank
order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any, Literal

import msgspec

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
        self.weight = None if weight is None else _check_weight(weight)

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
    whole: dict[str, Any] | None = None
    found: dict[Path, tuple[Reduction, list[tuple[Number, Number | None]]]] = {}
    for metrics, marks in reports:
        whole = metrics if whole is None else whole
        for mark in marks:
            how, values = found.setdefault(mark.path, (mark.how, []))
            if how == mark.how:
                values.append((_get_at_path(metrics, mark.path), mark.weight))
    for path, (how, values) in found.items():
        whole = _set_at_path(whole or {}, path, _REDUCERS[how](values))
    return whole or {}


def _collect_marks(metrics: dict[Any, Any], path: Path, marks: list[ReductionMark]) -> dict[Any, Any]:
    own: dict[Any, Any] = {}
    for key, value in metrics.items():
        if isinstance(value, ReducedMetric):
            marks.append(ReductionMark((*path, to_metric_key(key, "metrics")), value.how, value.weight))
            own[key] = value.value
        elif isinstance(value, dict):
            own[key] = _collect_marks(value, (*path, to_metric_key(key, "metrics")), marks)
        else:
            _refuse_nested(value, key)
            own[key] = value
    return own


def _refuse_nested(value: Any, key: Any) -> None:
    if isinstance(value, list | tuple):
        for item in value:
            if isinstance(item, ReducedMetric):
                raise TypeError(
                    f"metrics[{key!r}] has {item!r} in a list: only what has a name of its own can be reduced\n\n"
                    "hint: use a dict, such as {'loss': {'a': train.mean(x), 'b': train.mean(y)}}"
                )
            _refuse_nested(item, key)
    elif isinstance(value, dict):
        for item in value.values():
            if isinstance(item, ReducedMetric):
                _refuse_nested([item], key)
            _refuse_nested(item, key)


def _get_at_path(metrics: Any, path: Path) -> Number:
    for key in path:
        metrics = metrics[key]
    number: Number = metrics
    return number


def _set_at_path(metrics: dict[str, Any], path: Path, value: Number) -> dict[str, Any]:
    """Return a copy of the metrics with another value at a path."""
    key, *rest = path
    if not rest:
        return {**metrics, key: value}
    below = metrics.get(key)
    return {**metrics, key: _set_at_path(below if isinstance(below, dict) else {}, tuple(rest), value)}


def _check_number(value: Any, what: str) -> Number:
    number = from_plain(to_plain(value, what))
    if isinstance(number, bool):
        return int(number)
    if not isinstance(number, int | float):
        raise TypeError(f"{what}: it has to be a number, not a {type(value).__name__}")
    return number


def _check_weight(value: Any) -> Number:
    weight = _check_number(value, f"weight={value!r:.80}")
    if not 0 <= weight < _WEIGHT_LIMIT:  # Also refuses nan.
        raise ValueError(f"weight={value!r:.80} is not a finite number of 0 or more")
    return weight


WeightedValues = list[tuple[Number, Number | None]]


def _reduce_sum(values: WeightedValues) -> Number:
    return _exact_sum([value for value, _ in values])


def _reduce_mean(values: WeightedValues) -> Number:
    weighted = [(value, 1 if weight is None else weight) for value, weight in values]
    # A rank without samples does not count, whatever it got by dividing by their number.
    weighted = [(value, weight) for value, weight in weighted if weight > 0]
    if not weighted:
        return math.nan
    if odd := _find_non_finite([value for value, _ in weighted]):
        return odd[0]
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
    if odd := _find_non_finite(values):
        return odd[0]
    try:
        return math.fsum(values)
    except OverflowError:  # In an intermediate sum, or from an integer that is larger than any float.
        return _to_float(sum(map(Fraction, values), Fraction(0)))


def _find_non_finite(values: list[Number]) -> list[float]:
    """The sum of values of which some are not finite, as a list of one; empty if all are finite."""
    odd = [value for value in values if isinstance(value, float) and not math.isfinite(value)]
    if not odd:
        return []
    return [odd[0] if all(value == odd[0] for value in odd) else math.nan]


def _to_float(exact: Fraction) -> float:
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def _reduce_max(values: WeightedValues) -> Number:
    return _pick_unless_nan(max, values)


def _reduce_min(values: WeightedValues) -> Number:
    return _pick_unless_nan(min, values)


def _pick_unless_nan(pick: Any, values: WeightedValues) -> Number:
    numbers = [value for value, _ in values]
    if any(value != value for value in numbers):
        return math.nan
    number: Number = pick(numbers)
    return number


_REDUCERS = {"mean": _reduce_mean, "sum": _reduce_sum, "max": _reduce_max, "min": _reduce_min}
