"""Whether a predicate can hold for any of some rows, by what is known of their columns. Pure.

A predicate gives true, false or null for a row. Here it gives which of the three are possible, and errs only towards
"possible": where bounds are missing, where a NaN may hide beside them, where Arrow would convert one side of a
comparison to a type that rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from paceline.data.expressions import Binary, Col, Expr, IsIn, Lit, Unary

Family = Literal["whole", "float32", "float64", "text", "bool", "date", "time"]

_FLIPPED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_EXACT = {"float32": 1 << 24, "float64": 1 << 53}
"""Up to here, every whole number is one of these."""


@dataclass(frozen=True)
class Bounds:
    """What is known of the values of a column in some rows."""

    nulls: bool = True
    """Some may be null."""
    values: bool = True
    """Some may be not null."""
    family: Family | None = None
    """None: nothing is known of the values."""
    low: Any = None
    high: Any = None
    """No value is below or above these; a NaN may be there all the same."""


@dataclass(frozen=True)
class Outcomes:
    """What a predicate may be for some of the rows."""

    true: bool = True
    false: bool = True
    null: bool = True


def can_hold(predicate: Expr, bounds: Callable[[str], Bounds]) -> bool:
    """Whether the predicate may be true for a row, where the columns are within `bounds`."""
    return outcomes(predicate, bounds).true


def outcomes(predicate: Expr, bounds: Callable[[str], Bounds]) -> Outcomes:
    match predicate:
        case Lit(value=bool() as value):
            return Outcomes(true=value, false=not value, null=False)
        case Col(name=name):
            known = bounds(name)
            return _compared("==", known, True) if known.family == "bool" else Outcomes()
        case Unary(operation="not", operand=operand):
            inner = outcomes(operand, bounds)
            return Outcomes(true=inner.false, false=inner.true, null=inner.null)
        case Unary(operation="is null", operand=Col(name=name)):
            return Outcomes(true=bounds(name).nulls, false=bounds(name).values, null=False)
        case Unary(operation="is not null", operand=Col(name=name)):
            return Outcomes(true=bounds(name).values, false=bounds(name).nulls, null=False)
        case Binary(operation="&", left=left, right=right):
            return _both(outcomes(left, bounds), outcomes(right, bounds))
        case Binary(operation="|", left=left, right=right):
            return _either(outcomes(left, bounds), outcomes(right, bounds))
        case Binary(operation=sign, left=Col(name=name), right=Lit(value=value)) if sign in _FLIPPED:
            return _compared(sign, bounds(name), value)
        case Binary(operation=sign, left=Lit(value=value), right=Col(name=name)) if sign in _FLIPPED:
            return _compared(_FLIPPED[sign], bounds(name), value)
        case IsIn(operand=Col(name=name), values=values):
            return _among(bounds(name), values)
    return Outcomes()


def family_of(kind: Any) -> Family | None:
    """How values of an Arrow type compare; None where that is better not relied on."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_integer(kind):
        return "whole"
    if pa.types.is_float32(kind):
        return "float32"
    if pa.types.is_float64(kind):
        return "float64"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "text"
    if pa.types.is_boolean(kind):
        return "bool"
    if pa.types.is_date32(kind):
        return "date"
    # Python's own datetime has no nanoseconds, and none without a zone compares with one that has.
    if pa.types.is_timestamp(kind) and kind.tz is None and kind.unit != "ns":
        return "time"
    return None


def _both(left: Outcomes, right: Outcomes) -> Outcomes:
    return Outcomes(
        true=left.true and right.true,
        false=left.false or right.false,
        null=(left.null and (right.null or right.true)) or (right.null and (left.null or left.true)),
    )


def _either(left: Outcomes, right: Outcomes) -> Outcomes:
    return Outcomes(
        true=left.true or right.true,
        false=left.false and right.false,
        null=(left.null and (right.null or right.false)) or (right.null and (left.null or left.false)),
    )


def _compared(sign: str, known: Bounds, given: Any) -> Outcomes:
    """What `column sign value` may be."""
    if not known.values:
        return Outcomes(true=False, false=False, null=True)
    if not _comparable(known, given):
        return Outcomes()
    value: Any = given
    low, high = known.low, known.high
    match sign:
        case "==" | "!=":
            true, false = low <= value <= high, not (low == value == high)
        case "<":
            true, false = low < value, high >= value
        case "<=":
            true, false = low <= value, high > value
        case ">":
            true, false = high > value, low <= value
        case _:
            true, false = high >= value, low < value
    # A NaN is not within the bounds: it compares as false with everything.
    false = false or known.family in _EXACT
    return Outcomes(false, true, known.nulls) if sign == "!=" else Outcomes(true, false, known.nulls)


def _among(known: Bounds, values: tuple[Any, ...]) -> Outcomes:
    """What `column in values` may be: it is never null, and a null is in `values` if None is."""
    for_null = None in values
    true = known.nulls and for_null
    false = known.nulls and not for_null
    if not known.values:
        return Outcomes(true, false, null=False)
    others = [value for value in values if value is not None]
    # Arrow converts the values to the type of the column here, which may round them.
    same = known.family not in _EXACT and all(
        _comparable(known, value) and not isinstance(value, float) for value in others
    )
    if not same:
        return Outcomes(null=False)
    inside = any(known.low <= value <= known.high for value in others)
    whole = known.low == known.high and known.low in others
    return Outcomes(true or inside, false or not whole, null=False)


def _comparable(known: Bounds, value: Any) -> bool:
    """Whether Python compares them as Arrow does, without either being rounded."""
    low, high = known.low, known.high
    match known.family:
        case "whole":
            if isinstance(value, bool | np.bool_):
                return False
            if isinstance(value, int | np.integer):
                return all(abs(int(number)) < 1 << 63 for number in (low, high, value))
            if isinstance(value, float):  # also NumPy's of 64 bits, but no narrower one
                return math.isfinite(value) and all(abs(int(number)) <= _EXACT["float64"] for number in (low, high))
            return False
        case "float32" | "float64" as family:
            if math.isnan(low) or math.isnan(high) or isinstance(value, bool | np.bool_):
                return False
            if isinstance(value, int | np.integer):
                return abs(int(value)) <= _EXACT[family]
            return isinstance(value, float | np.floating) and not math.isnan(value)
        case "text":
            return isinstance(value, str)
        case "bool":
            return isinstance(value, bool)
        case "date":
            return type(value) is date
        case "time":
            return type(value) is datetime and value.tzinfo is None
    return False
