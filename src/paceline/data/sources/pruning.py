"""Whether a predicate can hold for any of some rows, given what is known about their columns. Pure functions.

For one row, a predicate is true, false or null. Here the result says which of the three are possible, and errs only
towards "possible": where bounds are missing, where NaNs may exist outside them, or where Arrow would convert one side
of a comparison to a type that rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from paceline.data.expressions.nodes import (
    AliasNode,
    BinaryNode,
    ColumnNode,
    Expr,
    IsInNode,
    LiteralNode,
    UnaryNode,
)

Family = Literal["whole", "float32", "float64", "text", "bool", "date", "time"]

_FLIPPED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_FAMILIES: dict[Any, Family] = {
    pa.float32(): "float32",
    pa.float64(): "float64",
    pa.string(): "text",
    pa.large_string(): "text",
    pa.bool_(): "bool",
    pa.date32(): "date",
}
_EXACT = {"float32": 1 << 24, "float64": 1 << 53}
"""Up to here, the type represents every integer exactly."""


@dataclass(frozen=True)
class ColumnBounds:
    """What is known about the values of a column in some rows."""

    nulls: bool = True
    values: bool = True
    """Whether some may be null, and some not null."""
    family: Family | None = None
    """None: nothing is known about the values."""
    low: Any = None
    high: Any = None
    """No value is below `low` or above `high`, except NaN."""


@dataclass(frozen=True)
class Outcomes:
    true: bool = True
    false: bool = True
    null: bool = True


def can_hold(predicate: Expr, bounds: Callable[[str], ColumnBounds]) -> bool:
    """Whether the predicate may be true for a row whose columns are within `bounds`."""
    return possible_outcomes(predicate, bounds).true


def possible_outcomes(predicate: Expr, bounds: Callable[[str], ColumnBounds]) -> Outcomes:
    match predicate:
        case LiteralNode(value=bool() as value):
            return Outcomes(true=value, false=not value, null=False)
        case ColumnNode(name=name):
            column = bounds(name)
            return _compare("==", column, True) if column.family == "bool" else Outcomes()
        case AliasNode(operand=operand):
            return possible_outcomes(operand, bounds)
        case UnaryNode(operation="not", operand=operand):
            return _negate(possible_outcomes(operand, bounds))
        case UnaryNode(operation="is null", operand=ColumnNode(name=name)):
            return Outcomes(true=bounds(name).nulls, false=bounds(name).values, null=False)
        case UnaryNode(operation="is not null", operand=ColumnNode(name=name)):
            return Outcomes(true=bounds(name).values, false=bounds(name).nulls, null=False)
        case BinaryNode(operation="&", left=left, right=right):
            return _and_outcomes(possible_outcomes(left, bounds), possible_outcomes(right, bounds))
        case BinaryNode(operation="|", left=left, right=right):
            neither = _and_outcomes(*(_negate(possible_outcomes(side, bounds)) for side in (left, right)))
            return _negate(neither)
        case BinaryNode(operation=sign, left=ColumnNode(name=name), right=LiteralNode(value=value)) if sign in _FLIPPED:
            return _compare(sign, bounds(name), value)
        case BinaryNode(operation=sign, left=LiteralNode(value=value), right=ColumnNode(name=name)) if sign in _FLIPPED:
            return _compare(_FLIPPED[sign], bounds(name), value)
        case IsInNode(operand=ColumnNode(name=name), values=values):
            return _is_in_outcomes(bounds(name), values)
    return Outcomes()


def comparison_family(kind: Any) -> Family | None:
    """How values of an Arrow type compare; None if that cannot be relied on."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_integer(kind):
        return "whole"
    # Python's datetime has no nanoseconds, and naive and aware datetimes do not compare.
    if pa.types.is_timestamp(kind) and kind.tz is None and kind.unit != "ns":
        return "time"
    return _FAMILIES.get(kind)


def _negate(outcomes: Outcomes) -> Outcomes:
    return Outcomes(true=outcomes.false, false=outcomes.true, null=outcomes.null)


def _and_outcomes(left: Outcomes, right: Outcomes) -> Outcomes:
    return Outcomes(
        true=left.true and right.true,
        false=left.false or right.false,
        null=(left.null and (right.null or right.true)) or (right.null and (left.null or left.true)),
    )


def _compare(sign: str, column: ColumnBounds, literal: Any) -> Outcomes:
    """The possible results of `column sign value`."""
    if not column.values:
        return Outcomes(true=False, false=False, null=True)
    if not _is_comparable(column, literal):
        return Outcomes()
    value: Any = literal
    low, high = column.low, column.high
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
    # NaN is not covered by the bounds: it compares as false with everything.
    false = false or column.family in _EXACT
    return Outcomes(false, true, column.nulls) if sign == "!=" else Outcomes(true, false, column.nulls)


def _is_in_outcomes(column: ColumnBounds, values: tuple[Any, ...]) -> Outcomes:
    """The possible results of `column in values`: never null, and a null is in `values` if None is."""
    for_null = None in values
    true = column.nulls and for_null
    false = column.nulls and not for_null
    if not column.values:
        return Outcomes(true, false, null=False)
    others = [value for value in values if value is not None]
    # Arrow converts the values to the column type here, which may round them.
    same = column.family not in _EXACT and all(
        _is_comparable(column, value) and not isinstance(value, float) for value in others
    )
    if not same:
        return Outcomes(null=False)
    inside = any(column.low <= value <= column.high for value in others)
    is_constant = column.low == column.high and column.low in others
    return Outcomes(true or inside, false or not is_constant, null=False)


def _is_comparable(column: ColumnBounds, value: Any) -> bool:
    """Whether Python compares them as Arrow does, without rounding either."""
    low, high = column.low, column.high
    match column.family:
        case "whole":
            if isinstance(value, bool | np.bool_):
                return False
            if isinstance(value, int | np.integer):
                return all(abs(int(number)) < 1 << 63 for number in (low, high, value))
            if isinstance(value, float):  # includes np.float64, but no narrower NumPy float
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
