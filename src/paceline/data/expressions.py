"""Expressions over columns: `(col("age") > 30) & col("name").is_not_null()`.

Unlike a function, an expression can be inspected: its columns are known, and a reader can rule out a file by its
statistics. Nulls follow Arrow: a comparison with null is null, and a filter drops the row. Integers divided by `//` and
`%` stay integers, as in Python; division by zero gives null.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from operator import and_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from paceline._core.lazy_imports import explain_module
from paceline.data.block import Block, Column
from paceline.data.column import as_computable

_REFUSED = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError)


def _divide(left: Any, right: Any) -> Any:
    return pc.divide(pc.cast(left, pa.float64(), safe=False), right)


def _floor_divide(left: Any, right: Any) -> Any:
    if not pa.types.is_integer(left.type) or not pa.types.is_integer(right.type):
        return pc.floor(_divide(left, right))
    right = pc.if_else(pc.equal(right, 0), pa.scalar(None, right.type), right)
    quotient = pc.divide(left, right)  # Arrow truncates towards zero
    rest = pc.subtract(left, pc.multiply(quotient, right))
    below = pc.and_(pc.not_equal(rest, 0), pc.not_equal(pc.less(rest, 0), pc.less(right, 0)))
    return pc.subtract(quotient, pc.cast(below, quotient.type))


def _remainder(left: Any, right: Any) -> Any:
    return pc.subtract(left, pc.multiply(_floor_divide(left, right), right))


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "+": pc.add,
    "-": pc.subtract,
    "*": pc.multiply,
    "/": _divide,
    "//": _floor_divide,
    "%": _remainder,
    "==": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
    "&": pc.and_kleene,
    "|": pc.or_kleene,
}
_UNARY_OPERATIONS = {"not": pc.invert, "-": pc.negate, "is null": pc.is_null, "is not null": pc.is_valid}


def _compute(operation: str, left: Any, right: Any) -> Any:
    compute = _OPERATIONS[operation]
    try:
        return compute(left, right)
    except pa.ArrowInvalid:
        if not all(_is_number(side.type) for side in (left, right)):
            raise
    # Arrow refuses to round a large number to the type of the other side. Use that type if it is as precise.
    for wide, narrow in ((left.type, right), (right.type, left)):
        are_integers = pa.types.is_integer(wide) and pa.types.is_integer(narrow.type)
        if are_integers and isinstance(narrow, pa.Scalar) and narrow.is_valid and narrow.as_py() >= 0:
            other = pc.cast(narrow, wide)
            return compute(left, other) if narrow is right else compute(other, right)
    return compute(pc.cast(left, pa.float64(), safe=False), pc.cast(right, pa.float64(), safe=False))


def _is_number(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _operators(sign: str) -> tuple[Callable[[Expr, Any], Expr], Callable[[Expr, Any], Expr]]:
    """Return the methods for `expr + other` and for `other + expr`."""

    def apply(self: Expr, other: Any) -> Expr:
        return BinaryNode(sign, self, as_expr(other))

    def apply_reflected(self: Expr, other: Any) -> Expr:
        return BinaryNode(sign, as_expr(other), self)

    return apply, apply_reflected


class Expr:
    """A column, a value, or something computed from them."""

    def evaluate(self, block: Block) -> Any:
        """Return its values for the rows of a block: Arrow data, or one value for all rows."""
        raise NotImplementedError

    def columns(self) -> set[str]:
        return {name for part in vars(self).values() if isinstance(part, Expr) for name in part.columns()}

    __add__, __radd__ = _operators("+")
    __sub__, __rsub__ = _operators("-")
    __mul__, __rmul__ = _operators("*")
    __truediv__, __rtruediv__ = _operators("/")
    __floordiv__, __rfloordiv__ = _operators("//")
    __mod__, __rmod__ = _operators("%")
    __and__, __rand__ = _operators("&")
    __or__, __ror__ = _operators("|")
    __lt__, _ = _operators("<")
    __le__, _ = _operators("<=")
    __gt__, _ = _operators(">")
    __ge__, _ = _operators(">=")
    __eq__, _ = _operators("==")  # type: ignore[assignment]
    __ne__, _ = _operators("!=")  # type: ignore[assignment]
    __hash__ = object.__hash__

    def __invert__(self) -> Expr:
        return UnaryNode("not", self)

    def __neg__(self) -> Expr:
        return UnaryNode("-", self)

    def is_null(self) -> Expr:
        return UnaryNode("is null", self)

    def is_not_null(self) -> Expr:
        return UnaryNode("is not null", self)

    def is_in(self, values: Sequence[Any]) -> Expr:
        return IsInNode(self, tuple(values))

    def not_in(self, values: Sequence[Any]) -> Expr:
        return ~IsInNode(self, tuple(values))

    def __bool__(self) -> bool:
        raise TypeError("an expression has no truth value: join conditions with & and |, not with and / or")


@dataclass(frozen=True, eq=False)
class ColumnNode(Expr):
    name: str

    def evaluate(self, block: Block) -> Any:
        return as_computable(block.column(self.name))

    def columns(self) -> set[str]:
        return {self.name}

    def __repr__(self) -> str:
        return f"col({self.name!r})"


@dataclass(frozen=True, eq=False)
class LiteralNode(Expr):
    value: Any

    def evaluate(self, block: Block) -> Any:
        try:
            return pa.scalar(self.value)
        except OverflowError:
            return pa.scalar(self.value, pa.uint64())

    def __repr__(self) -> str:
        return repr(self.value)


@dataclass(frozen=True, eq=False)
class BinaryNode(Expr):
    operation: str
    left: Expr
    right: Expr

    def evaluate(self, block: Block) -> Any:
        return _compute(self.operation, self.left.evaluate(block), self.right.evaluate(block))

    def __repr__(self) -> str:
        return f"({self.left!r} {self.operation} {self.right!r})"


@dataclass(frozen=True, eq=False)
class UnaryNode(Expr):
    operation: str
    operand: Expr

    def evaluate(self, block: Block) -> Any:
        return _UNARY_OPERATIONS[self.operation](self.operand.evaluate(block))

    def __repr__(self) -> str:
        return f"({self.operation} {self.operand!r})"


@dataclass(frozen=True, eq=False)
class IsInNode(Expr):
    operand: Expr
    values: tuple[Any, ...]

    def evaluate(self, block: Block) -> Any:
        operand = self.operand.evaluate(block)
        values = pa.array(self.values)
        return pc.is_in(operand, value_set=values.cast(operand.type) if pa.types.is_null(values.type) else values)

    def __repr__(self) -> str:
        return f"({self.operand!r} in {list(self.values)!r})"


def col(name: str) -> Expr:
    """Refer to a column by name."""
    return ColumnNode(name)


def lit(value: Any) -> Expr:
    """A constant, the same for all rows."""
    return LiteralNode(value)


def as_expr(value: Any) -> Expr:
    return value if isinstance(value, Expr) else LiteralNode(value)


def rename_columns(expr: Expr, names: Mapping[str, str]) -> Expr:
    if isinstance(expr, ColumnNode):
        return ColumnNode(names.get(expr.name, expr.name))
    parts = {field: rename_columns(part, names) for field, part in vars(expr).items() if isinstance(part, Expr)}
    return replace(expr, **parts) if parts else expr  # type: ignore[type-var]


def evaluate_column(expr: Expr, block: Block) -> Column:
    try:
        value = expr.evaluate(block)
    except _REFUSED as error:
        raise TypeError(f"cannot compute {expr!r}: {error}") from None
    if isinstance(value, pa.Scalar):
        value = pa.repeat(value, block.num_rows)
    return value if isinstance(value, pa.ChunkedArray) else pa.chunked_array([value])


_PYTHON = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.And: "&",
    ast.Or: "|",
}


def parse_expression(text: str) -> Expr:
    """Parse Python syntax with columns as names: `"age > 30 and country in ['de', 'fr']"`."""
    try:
        return _parse_node(ast.parse(text.strip(), mode="eval").body)
    except SyntaxError as error:
        raise ValueError(f"cannot parse expr {text!r}: {error.msg}{_HINT}") from None


_HINT = (
    "\n\nhint: use column names, values, comparisons, + - * / // %, and, or, not, in and is None; "
    "a column whose name is not an identifier is col('its name')"
)


def _operator_sign(operator: ast.operator | ast.boolop | ast.cmpop, node: ast.expr) -> str:
    try:
        return _PYTHON[type(operator)]
    except KeyError:
        raise _unsupported_node(node) from None


def _unsupported_node(node: ast.expr) -> ValueError:
    return ValueError(f"{ast.unparse(node)!r} is not an expression over columns{_HINT}")


def _parse_constants(node: ast.expr) -> tuple[Any, ...]:
    try:
        return tuple(ast.literal_eval(node))
    except (ValueError, TypeError):
        raise ValueError(f"{ast.unparse(node)!r} must be a list of values after `in`{_HINT}") from None


def _parse_node(node: ast.expr) -> Expr:
    match node:
        case ast.Name(id=name):
            return ColumnNode(name)
        case ast.Constant(value=value):
            return LiteralNode(value)
        case ast.Call(func=ast.Name(id="col"), args=[ast.Constant(value=str(name))], keywords=[]):
            return ColumnNode(name)
        case ast.UnaryOp(op=ast.Not() | ast.Invert(), operand=operand):
            return ~_parse_node(operand)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=value)) if isinstance(value, int | float):
            return LiteralNode(-value)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_parse_node(operand)
        case ast.BinOp(left=left, op=operator, right=right):
            return BinaryNode(_operator_sign(operator, node), _parse_node(left), _parse_node(right))
        case ast.BoolOp(op=connective, values=terms):
            sign = _operator_sign(connective, node)
            return reduce(lambda left, right: BinaryNode(sign, left, right), map(_parse_node, terms))
        case ast.Compare(left=left, ops=[ast.In() | ast.NotIn() as member], comparators=[among]):
            is_in = IsInNode(_parse_node(left), _parse_constants(among))
            return ~is_in if isinstance(member, ast.NotIn) else is_in
        case ast.Compare(left=left, ops=[ast.Is() | ast.IsNot() as same], comparators=[ast.Constant(value=None)]):
            return _parse_node(left).is_null() if isinstance(same, ast.Is) else _parse_node(left).is_not_null()
        case ast.Compare(left=left, ops=operators, comparators=rest):
            operands = [_parse_node(operand) for operand in (left, *rest)]
            return reduce(
                and_,
                (
                    BinaryNode(_operator_sign(operator, node), *pair)
                    for operator, pair in zip(operators, pairwise(operands), strict=True)
                ),
            )
    raise _unsupported_node(node)


explain_module(__name__)
