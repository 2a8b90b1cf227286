"""Reads expressions from text: Python's syntax, with names of columns as names.

`user.age` is a field of the struct `user`, and a name in backticks a column whose name is no identifier. The functions
of expressions are methods, as in Python: `name.str.starts_with('a')`, `x.abs() > 1`.
"""

from __future__ import annotations

import ast
import re
from functools import reduce
from itertools import pairwise
from operator import and_
from typing import Any

from paceline.data.expressions.kernels import FUNCTIONS, NAMESPACES
from paceline.data.expressions.nodes import BinaryNode, ColumnNode, Expr, IsInNode, LiteralNode

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


_QUOTED = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|`([^`]+)`""")
"""Text in quotes, which stays, or the name of a column in backticks."""
_METHODS = {"is_null", "is_not_null", "fill_null", "is_in", "not_in", *(name for name in FUNCTIONS if "." not in name)}
_METHODS -= {"cast", "coalesce"}
_RAY_FUNCTIONS = {"is_null": "is_null", "is_valid": "is_not_null", "is_nan": "is_nan", "is_in": "is_in"}
"""What Ray writes as functions of a column: `is_null(a)`."""


def parse_expression(text: str) -> Expr:
    """Parse Python syntax with columns as names: `"age > 30 and country in ['de', 'fr']"`."""
    python = _QUOTED.sub(lambda match: f"col({match[1]!r})" if match[1] else match[0], text.strip())
    try:
        return _parse_node(ast.parse(python, mode="eval").body)
    except SyntaxError as error:
        raise ValueError(f"cannot parse expr {text!r}: {error.msg}{_HINT}") from None


_HINT = (
    "\n\nhint: use column names, values, comparisons, + - * / // %, and, or, not, in, is None, fields of structs (a.b) "
    "and functions such as a.abs() and a.str.upper(); a column whose name is not an identifier is `its name`"
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
        case ast.Attribute(value=structs, attr=name):
            return _parse_node(structs).struct.field(name)
        case ast.Call(func=ast.Attribute(value=ast.Attribute(value=of, attr=kind), attr=method)) if kind in NAMESPACES:
            namespace = getattr(_parse_node(of), kind)
            return _call_method(node, namespace, method if method in dir(namespace) else "")
        case ast.Call(func=ast.Attribute(value=of, attr=method)):
            return _call_method(node, _parse_node(of), method if method in _METHODS else "")
        case ast.Call(func=ast.Name(id=function), args=[of, *rest]) if function in _RAY_FUNCTIONS:
            call = ast.Call(node.func, rest, node.keywords)
            return _call_method(call, _parse_node(of), _RAY_FUNCTIONS[function])
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


def _call_method(node: ast.Call, owner: Any, method: str) -> Expr:
    if not method:
        raise _unsupported_node(node)
    try:
        args = [ast.literal_eval(each) for each in node.args]
        kwargs = {str(each.arg): ast.literal_eval(each.value) for each in node.keywords if each.arg}
    except (ValueError, TypeError):
        raise ValueError(f"the arguments of {ast.unparse(node)!r} must be values{_HINT}") from None
    found: Expr = getattr(owner, method)(*args, **kwargs)
    return found
