"""Metrics that are reduced over the ranks: how a rank marks a value of its own, and what becomes of those of all.

A report carries each rank's own value and how it is to be reduced. What all of them come to is found out later, by
whoever has the reports of all ranks: nobody waits for anybody. Pure, and the same in every order of arrival, since
values are taken in the order of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any, Literal

import msgspec

from paceline._core.plain import as_key, plain, unplain

How = Literal["mean", "sum", "max", "min"]
Path = tuple[str, ...]
Number = int | float

_WEIGHT_LIMIT = 1 << 63


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """The metric at this path is reduced; in a mean it counts as much as its weight."""

    path: Path
    how: How
    weight: int | float | None = None


class Reduced:
    """One rank's value of a metric that is reduced over all ranks: what `train.mean(x)` and its siblings give."""

    __slots__ = ("how", "value", "weight")

    def __init__(self, how: How, value: Any, weight: Any = None) -> None:
        self.how = how
        self.value = _number(value, f"train.{how}({value!r:.80})")
        self.weight = None if weight is None else _weight(weight)

    def __repr__(self) -> str:
        weight = f", weight={self.weight!r}" if self.weight is not None else ""
        return f"train.{self.how}({self.value!r}{weight})"


def apart(metrics: dict[Any, Any]) -> tuple[dict[Any, Any], tuple[Mark, ...]]:
    """Metrics with each rank's own values, and which of them are reduced."""
    marks: list[Mark] = []
    return _apart(metrics, (), marks), tuple(marks)


def reduced(reports: Iterable[tuple[dict[str, Any], Sequence[Mark]]]) -> dict[str, Any]:
    """What several ranks report together: the metrics of the first, with what is marked reduced over all.

    The reports come in the order of ranks. A rank that does not mark a metric takes no part in it; where ranks mark
    one differently, which is an error elsewhere, those count that do as the first of them.
    """
    whole: dict[str, Any] | None = None
    found: dict[Path, tuple[How, list[tuple[Number, Number | None]]]] = {}
    for metrics, marks in reports:
        whole = metrics if whole is None else whole
        for mark in marks:
            how, values = found.setdefault(mark.path, (mark.how, []))
            if how == mark.how:
                values.append((_looked_up(metrics, mark.path), mark.weight))
    for path, (how, values) in found.items():
        whole = _with(whole or {}, path, _REDUCED[how](values))
    return whole or {}


def _apart(metrics: dict[Any, Any], path: Path, marks: list[Mark]) -> dict[Any, Any]:
    own: dict[Any, Any] = {}
    for key, value in metrics.items():
        if isinstance(value, Reduced):
            marks.append(Mark((*path, as_key(key, "metrics")), value.how, value.weight))
            own[key] = value.value
        elif isinstance(value, dict):
            own[key] = _apart(value, (*path, as_key(key, "metrics")), marks)
        else:
            _refuse_within(value, key)
            own[key] = value
    return own


def _refuse_within(value: Any, key: Any) -> None:
    if isinstance(value, list | tuple):
        for item in value:
            if isinstance(item, Reduced):
                raise TypeError(
                    f"metrics[{key!r}] has {item!r} in a list: only what has a name of its own can be reduced\n\n"
                    "hint: use a dict, such as {'loss': {'a': train.mean(x), 'b': train.mean(y)}}"
                )
            _refuse_within(item, key)
    elif isinstance(value, dict):
        for item in value.values():
            if isinstance(item, Reduced):
                _refuse_within([item], key)
            _refuse_within(item, key)


def _looked_up(metrics: Any, path: Path) -> Number:
    for key in path:
        metrics = metrics[key]
    number: Number = metrics
    return number


def _with(metrics: dict[str, Any], path: Path, value: Number) -> dict[str, Any]:
    """Metrics with another value at a path; what was given stays as it is."""
    key, *rest = path
    if not rest:
        return {**metrics, key: value}
    below = metrics.get(key)
    return {**metrics, key: _with(below if isinstance(below, dict) else {}, tuple(rest), value)}


def _number(value: Any, what: str) -> Number:
    number = unplain(plain(value, what))
    if isinstance(number, bool):
        return int(number)
    if not isinstance(number, int | float):
        raise TypeError(f"{what}: it has to be a number, not a {type(value).__name__}")
    return number


def _weight(value: Any) -> Number:
    weight = _number(value, f"weight={value!r:.80}")
    if not 0 <= weight < _WEIGHT_LIMIT:  # And not nan.
        raise ValueError(f"weight={value!r:.80} is not a finite number of 0 or more")
    return weight


Values = list[tuple[Number, Number | None]]


def _sum(values: Values) -> Number:
    return _total([value for value, _ in values])


def _mean(values: Values) -> Number:
    weighted = [(value, 1 if weight is None else weight) for value, weight in values]
    # A rank without samples has nothing to say, whatever it divided by their number.
    weighted = [(value, weight) for value, weight in weighted if weight > 0]
    if not weighted:
        return math.nan
    if odd := _not_finite([value for value, _ in weighted]):
        return odd[0]
    weights = _total([weight for _, weight in weighted])
    try:
        total = _total([value * weight for value, weight in weighted])
        if isinstance(total, int) and isinstance(weights, int):
            return _as_float(Fraction(total, weights))
        if math.isfinite(total):
            return total / weights
    except OverflowError:  # Of an integer that is larger than any float.
        pass
    exact = sum((Fraction(value) * Fraction(weight) for value, weight in weighted), Fraction(0))
    return _as_float(exact / Fraction(weights))


def _total(values: list[Number]) -> Number:
    """The sum, rounded once: it does not depend on the order. Of integers it is exact."""
    if all(isinstance(value, int) for value in values):
        return sum(values)
    if odd := _not_finite(values):
        return odd[0]
    try:
        return math.fsum(values)
    except OverflowError:  # On the way, or an integer that is larger than any float.
        return _as_float(sum(map(Fraction, values), Fraction(0)))


def _not_finite(values: list[Number]) -> list[float]:
    """What a sum comes to where some of it is not finite, if that is so."""
    odd = [value for value in values if isinstance(value, float) and not math.isfinite(value)]
    if not odd:
        return []
    return [odd[0] if all(value == odd[0] for value in odd) else math.nan]


def _as_float(exact: Fraction) -> float:
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def _most(values: Values) -> Number:
    return _nan_or(max, values)


def _least(values: Values) -> Number:
    return _nan_or(min, values)


def _nan_or(pick: Any, values: Values) -> Number:
    numbers = [value for value, _ in values]
    if any(value != value for value in numbers):
        return math.nan
    number: Number = pick(numbers)
    return number


_REDUCED = {"mean": _mean, "sum": _sum, "max": _most, "min": _least}
