"""The nodes of an expression. `kernels.py` has what they compute, `functions.py` the functions that create them.

Unlike a function, an expression can be inspected: its columns are known, and a reader can rule out a file by its
statistics. Nulls follow Arrow: a comparison with null is null, and a filter drops the row. Integers divided by `//` and
`%` stay integers, as in Python; division by zero gives null.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from paceline._core.arguments import check_bool, check_instance, find_nearest
from paceline._core.call_errors import explain_calls
from paceline.data.block import Block, Column
from paceline.data.column import as_computable
from paceline.data.datatype import as_arrow_type
from paceline.data.expressions.kernels import (
    BINARY_OPERATIONS,
    FUNCTIONS,
    REFUSED,
    UNARY_OPERATIONS,
    bind_options,
    call_function,
    compute_binary,
)


@dataclass(frozen=True)
class RowSpan:
    """Where the rows of a block are in their unit, and the objects that the process keeps for a user's classes."""

    unit: str = ""
    first: int = 0
    get_or_create: Callable[[Any, Callable[[], Any]], Any] = field(default=lambda _, make: make())


def _operators(sign: str) -> tuple[Callable[[Expr, Any], Expr], Callable[[Expr, Any], Expr]]:
    """Return the methods for `expr + other` and for `other + expr`."""

    def apply(self: Expr, other: Any) -> Expr:
        return BinaryNode(sign, self, as_expr(other))

    def apply_reflected(self: Expr, other: Any) -> Expr:
        return BinaryNode(sign, as_expr(other), self)

    return apply, apply_reflected


def _function(name: str) -> Callable[[Expr], Expr]:
    def apply(self: Expr) -> Expr:
        return KernelNode(name, (self,))

    return apply


@explain_calls
class Expr:
    """A column, a value, or something computed from them.

    `col("x").str`, `.list`, `.dt`, `.struct`, `.map` and `.arr` hold the functions of one kind of values:
    `col("name").str.upper()`.
    """

    name: Any = None
    """The name that it gives its column: that of `alias`, or of the column that it is."""
    known_type: Any = None
    """The Arrow type of the values, if it is declared."""
    depends_on_row_number: ClassVar[bool] = False
    runs_outside_code: ClassVar[bool] = False
    max_rows: ClassVar[int | None] = None
    """The most rows at a time; None: as they come."""

    def evaluate(self, block: Block, span: RowSpan) -> Any:
        """Return its values for the rows of a block: Arrow data, or one value for all rows."""
        raise NotImplementedError

    def parts(self) -> Iterator[Expr]:
        for part in vars(self).values():
            if isinstance(part, Expr):
                yield part
            elif isinstance(part, tuple):
                yield from (each for each in part if isinstance(each, Expr))

    def walk(self) -> Iterator[Expr]:
        yield self
        for part in self.parts():
            yield from part.walk()

    def columns(self) -> set[str]:
        return {node.name for node in self.walk() if isinstance(node, ColumnNode)}

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

    abs, sign, negate = _function("abs"), _function("sign"), _function("negate")
    ceil, floor, round, trunc = _function("ceil"), _function("floor"), _function("round"), _function("trunc")
    exp, ln, log2, log10 = _function("exp"), _function("ln"), _function("log2"), _function("log10")
    sin, cos, tan = _function("sin"), _function("cos"), _function("tan")
    asin, acos, atan = _function("asin"), _function("acos"), _function("atan")
    is_nan = _function("is_nan")

    def __invert__(self) -> Expr:
        return UnaryNode("not", self)

    def __neg__(self) -> Expr:
        return UnaryNode("-", self)

    def power(self, exponent: Any) -> Expr:
        return KernelNode("power", (self, as_expr(exponent)))

    def is_null(self) -> Expr:
        return UnaryNode("is null", self)

    def is_not_null(self) -> Expr:
        return UnaryNode("is not null", self)

    def is_in(self, values: Sequence[Any] | Expr) -> Expr:
        listed: Any = values.value if isinstance(values, LiteralNode) else values
        if isinstance(listed, Expr):
            raise TypeError(f"values must be a list of values or lit() of one, got {values!r}")
        return IsInNode(self, tuple(listed))

    def not_in(self, values: Sequence[Any] | Expr) -> Expr:
        return ~self.is_in(values)

    def fill_null(self, value: Any) -> Expr:
        """Replace nulls by a value, or by that of another expression."""
        return KernelNode("coalesce", (self, as_expr(value)))

    def cast(self, target_type: Any, *, safe: bool = True) -> Expr:
        """Convert to a `DataType`. With `safe`, a value that would be changed by that, such as 1.5 to 1, raises."""
        options = ("target_type", as_arrow_type("target_type", target_type)), ("safe", check_bool("safe", safe))
        return KernelNode("cast", (self,), options)

    def alias(self, name: builtins.str) -> Expr:
        """Name the column, for `with_columns`."""
        return AliasNode(self, check_instance("name", name, builtins.str, "the name of a column"))

    @property
    def str(self) -> Namespace:
        return Namespace(self, "str")

    @property
    def list(self) -> Namespace:
        return Namespace(self, "list")

    @property
    def dt(self) -> Namespace:
        return Namespace(self, "dt")

    @property
    def struct(self) -> Namespace:
        return Namespace(self, "struct")

    @property
    def map(self) -> Namespace:
        return Namespace(self, "map")

    @property
    def arr(self) -> Namespace:
        return Namespace(self, "arr")

    def structurally_equals(self, other: Any) -> bool:
        """Whether another expression is built in the same way. `==` makes an expression instead."""
        if type(self) is not type(other):
            return False
        mine, theirs = ([*expr.parts()] for expr in (self, other))
        are_equal = all(one.structurally_equals(two) for one, two in zip(mine, theirs, strict=False))
        return len(mine) == len(theirs) and are_equal and _own_values(self) == _own_values(other)

    def to_pyarrow(self) -> pc.Expression:
        """Return the same expression of pyarrow, for its datasets. Raises a ValueError if pyarrow has none."""
        raise ValueError(f"{self!r} must be an expression that pyarrow has, got a {type(self).__name__}")

    def get_type(self, input_schema: pa.Schema) -> pa.DataType | None:
        """Return the Arrow type of its values for columns of these types; None if it is not known without rows."""
        schema = _check_schema(input_schema)
        declared: dict[builtins.str, Any] = {}

        def declare(part: Expr) -> Expr:
            """Put a column of the declared type in the place of code that must not run."""
            if not part.runs_outside_code:
                return replace_parts(part, declare)
            name = f"\0{len(declared)}"
            declared[name] = part.known_type
            return ColumnNode(name)

        expr = declare(self)
        fields = [*schema, *(pa.field(name, kind) for name, kind in declared.items())]
        try:
            return evaluate_column(expr, Block.from_arrow(pa.schema(fields).empty_table())).type
        except (KeyError, TypeError):
            return None

    def nullable(self, input_schema: pa.Schema) -> bool:
        """Whether a value may be null. False only where that is certain."""
        return self.may_be_null(_check_schema(input_schema))

    def may_be_null(self, schema: pa.Schema) -> bool:
        return True

    def to_field(self, input_schema: pa.Schema) -> pa.Field | None:
        """Return name, type and nullability of its column; None without a name, or if the type is not known."""
        kind = None if self.name is None else self.get_type(input_schema)
        return None if kind is None else pa.field(self.name, kind, nullable=self.nullable(input_schema))

    def is_idempotent(self) -> bool:
        """Whether a row's value depends only on its columns, and not on its position, as for `random()`."""
        return not depends_on_row_number(self)

    def __bool__(self) -> bool:
        raise TypeError("an expression has no truth value: join conditions with & and |, not with and / or")


def _check_schema(schema: Any) -> Any:
    """Return a `pyarrow.Schema`, which may be that of a `Schema`."""
    given = getattr(schema, "base_schema", schema)
    return check_instance("input_schema", given, pa.Schema, "a pyarrow.Schema")


def _own_values(expr: Expr) -> dict[str, Any]:
    return {
        name: len(value) if isinstance(value, tuple) and any(isinstance(each, Expr) for each in value) else value
        for name, value in vars(expr).items()
        if not isinstance(value, Expr)
    }


@dataclass(frozen=True)
class Namespace:
    """The functions of an expression whose values are text, lists, times, structs, maps or arrays."""

    _expr: Expr
    _kind: str

    def __getattr__(self, name: str) -> Callable[..., Expr]:
        function = f"{self._kind}.{name}"
        if name.startswith("__") or function not in FUNCTIONS:
            nearest = find_nearest(name, dir(self))
            hint = f" (did you mean {nearest!r}?)" if nearest else ""
            raise AttributeError(f"{self._kind} has no function {name!r}{hint}; it has {', '.join(dir(self))}")

        def apply(*args: Any, **kwargs: Any) -> Expr:
            return KernelNode(function, (self._expr,), tuple(bind_options(function, args, kwargs).items()))

        apply.__name__ = apply.__qualname__ = function
        return apply

    def __getitem__(self, key: Any) -> Expr:
        match self._kind, key:
            case "list", int():
                return self.get(key)
            case "list", slice():
                return self.slice(key.start, key.stop, key.step)
            case "struct", str():
                return self.field(key)
            case "struct", int():
                return self.field_by_index(key)
        raise TypeError(f"{self._kind} cannot be indexed with {key!r}")

    __iter__ = None  # Python would call __getitem__ forever

    def __dir__(self) -> list[str]:
        return [name.removeprefix(f"{self._kind}.") for name in FUNCTIONS if name.startswith(f"{self._kind}.")]


@dataclass(frozen=True, eq=False)
class ColumnNode(Expr):
    name: str

    def evaluate(self, block: Block, span: RowSpan) -> Any:
        return as_computable(block.column(self.name))

    def to_pyarrow(self) -> pc.Expression:
        return pc.field(self.name)

    def may_be_null(self, schema: pa.Schema) -> bool:
        return self.name not in schema.names or bool(schema.field(self.name).nullable)

    def __repr__(self) -> str:
        return f"col({self.name!r})"


@dataclass(frozen=True, eq=False)
class LiteralNode(Expr):
    value: Any

    def evaluate(self, block: Block, span: RowSpan) -> Any:
        try:
            return pa.scalar(self.value)
        except OverflowError:
            return pa.scalar(self.value, pa.uint64())

    def to_pyarrow(self) -> pc.Expression:
        return pc.scalar(self.value)

    def may_be_null(self, schema: pa.Schema) -> bool:
        return self.value is None

    def __repr__(self) -> str:
        return repr(self.value)


@dataclass(frozen=True, eq=False)
class BinaryNode(Expr):
    operation: str
    left: Expr
    right: Expr

    def evaluate(self, block: Block, span: RowSpan) -> Any:
        return compute_binary(self.operation, self.left.evaluate(block, span), self.right.evaluate(block, span))

    def to_pyarrow(self) -> pc.Expression:
        left, right = self.left.to_pyarrow(), self.right.to_pyarrow()
        if self.operation in ("//", "%"):
            return super().to_pyarrow()
        if self.operation == "/":
            return pc.divide(left.cast(pa.float64(), safe=False), right)
        return BINARY_OPERATIONS[self.operation](left, right)

    def may_be_null(self, schema: pa.Schema) -> bool:
        is_maybe_by_zero = self.operation in ("//", "%")
        return is_maybe_by_zero or self.left.may_be_null(schema) or self.right.may_be_null(schema)

    def __repr__(self) -> str:
        return f"({self.left!r} {self.operation} {self.right!r})"


@dataclass(frozen=True, eq=False)
class UnaryNode(Expr):
    operation: str
    operand: Expr

    def evaluate(self, block: Block, span: RowSpan) -> Any:
        return UNARY_OPERATIONS[self.operation](self.operand.evaluate(block, span))

    def to_pyarrow(self) -> pc.Expression:
        return UNARY_OPERATIONS[self.operation](self.operand.to_pyarrow())

    def may_be_null(self, schema: pa.Schema) -> bool:
        return "null" not in self.operation and self.operand.may_be_null(schema)

    def __repr__(self) -> str:
        return f"({self.operation} {self.operand!r})"


@dataclass(frozen=True, eq=False)
class IsInNode(Expr):
    operand: Expr
    values: tuple[Any, ...]

    def evaluate(self, block: Block, span: RowSpan) -> Any:
        operand = self.operand.evaluate(block, span)
        values = pa.array(self.values)
        return pc.is_in(operand, value_set=values.cast(operand.type) if pa.types.is_null(values.type) else values)

    def to_pyarrow(self) -> pc.Expression:
        return self.operand.to_pyarrow().isin(pa.array(self.values))

    def may_be_null(self, schema: pa.Schema) -> bool:
        return False

    def __repr__(self) -> str:
        return f"({self.operand!r} in {[*self.values]!r})"


@dataclass(frozen=True, eq=False)
class AliasNode(Expr):
    operand: Expr
    name: str

    def evaluate(self, block: Block, span: RowSpan) -> Any:
        return self.operand.evaluate(block, span)

    def to_pyarrow(self) -> pc.Expression:
        return self.operand.to_pyarrow()

    def may_be_null(self, schema: pa.Schema) -> bool:
        return self.operand.may_be_null(schema)

    def __repr__(self) -> str:
        return f"{self.operand!r}.alias({self.name!r})"


@dataclass(frozen=True, eq=False)
class KernelNode(Expr):
    """A function of the table in `kernels.py`."""

    function: str
    operands: tuple[Expr, ...]
    options: tuple[tuple[str, Any], ...] = ()

    def evaluate(self, block: Block, span: RowSpan) -> Any:
        values = [operand.evaluate(block, span) for operand in self.operands]
        return call_function(self.function, values, dict(self.options))

    def to_pyarrow(self) -> pc.Expression:
        operands = [operand.to_pyarrow() for operand in self.operands]
        if self.function == "cast":
            options = dict(self.options)
            return operands[0].cast(options["target_type"], safe=options["safe"])
        try:
            return FUNCTIONS[self.function](*operands, **dict(self.options))
        except (AttributeError, TypeError):  # made of several functions of Arrow, which look at the values
            return super().to_pyarrow()

    def may_be_null(self, schema: pa.Schema) -> bool:
        found = [operand.may_be_null(schema) for operand in self.operands]
        return all(found) if self.function == "coalesce" else "." in self.function or any(found)

    def __repr__(self) -> str:
        first, *rest = map(repr, self.operands)
        return f"{first}.{self.function}({', '.join([*rest, *(f'{name}={value!r}' for name, value in self.options)])})"


@dataclass(frozen=True, eq=False)
class WhenNode(Expr):
    """`when(condition, value)`: null where no condition holds, unless `otherwise` gives another value."""

    conditions: tuple[Expr, ...]
    values: tuple[Expr, ...]
    default: Expr

    def when(self, condition: Any, value: Any) -> WhenNode:
        return WhenNode((*self.conditions, as_expr(condition)), (*self.values, as_expr(value)), self.default)

    def otherwise(self, value: Any) -> Expr:
        return replace(self, default=as_expr(value))

    def evaluate(self, block: Block, span: RowSpan) -> Any:
        chosen = self.default.evaluate(block, span)
        for condition, value in zip(reversed(self.conditions), reversed(self.values), strict=True):
            holds = pc.fill_null(condition.evaluate(block, span), False)
            chosen = pc.if_else(holds, value.evaluate(block, span), chosen)
        return chosen

    def to_pyarrow(self) -> pc.Expression:
        chosen = self.default.to_pyarrow()
        for condition, value in zip(reversed(self.conditions), reversed(self.values), strict=True):
            chosen = pc.if_else(pc.coalesce(condition.to_pyarrow(), False), value.to_pyarrow(), chosen)
        return chosen

    def may_be_null(self, schema: pa.Schema) -> bool:
        return any(value.may_be_null(schema) for value in (*self.values, self.default))

    def __repr__(self) -> str:
        pairs = zip(self.conditions, self.values, strict=True)
        whens = ".".join(f"when({condition!r}, {value!r})" for condition, value in pairs)
        return f"{whens}.otherwise({self.default!r})"


@dataclass(frozen=True, eq=False)
class UnnestNode(Expr):
    """One column for each field of a struct. Only `with_columns` takes it."""

    operand: Expr

    def evaluate(self, block: Block, span: RowSpan) -> Any:
        raise TypeError(f"{self!r} makes several columns\n\nhint: pass it to Dataset.with_columns by itself")

    def evaluate_fields(self, block: Block, span: RowSpan) -> dict[str, Column]:
        structs = evaluate_column(self.operand, block, span)
        if not pa.types.is_struct(structs.type):
            raise TypeError(f"{self!r} must be given structs, got {structs.type}")
        # Not `flatten()`: a null struct gives null fields.
        return {each.name: pc.struct_field(structs, [index]) for index, each in enumerate(structs.type)}

    def known_fields(self, types: Mapping[str, Any]) -> Sequence[str] | None:
        """The names of the fields, if the type is known without rows."""
        kind = types.get(self.operand.name) if isinstance(self.operand, ColumnNode) else self.operand.known_type
        return [each.name for each in kind] if isinstance(kind, pa.StructType) else None

    def __repr__(self) -> str:
        return f"unnest({self.operand!r})"


class StarNode(Expr):
    """All columns. Only `with_columns` takes it."""

    def evaluate(self, block: Block, span: RowSpan) -> Any:
        raise TypeError("star() is all columns\n\nhint: pass it to Dataset.with_columns by itself")

    def __repr__(self) -> str:
        return "star()"


def as_expr(value: Any) -> Expr:
    return value if isinstance(value, Expr) else LiteralNode(value)


def replace_parts(expr: Expr, change: Callable[[Expr], Expr]) -> Expr:
    """Return the expression with its parts changed."""
    changed: dict[str, Any] = {}
    for name, part in vars(expr).items():
        if isinstance(part, Expr):
            changed[name] = change(part)
        elif isinstance(part, tuple) and any(isinstance(each, Expr) for each in part):
            changed[name] = tuple(change(each) if isinstance(each, Expr) else each for each in part)
    return replace(expr, **changed) if changed else expr  # type: ignore[type-var]


def rename_columns(expr: Expr, names: Mapping[str, str]) -> Expr:
    if isinstance(expr, ColumnNode):
        return ColumnNode(names.get(expr.name, expr.name))
    return replace_parts(expr, lambda part: rename_columns(part, names))


def depends_on_row_number(expr: Expr) -> bool:
    """Whether a row's value depends on its number in its unit, so that no row before it may be left out."""
    return any(node.depends_on_row_number for node in expr.walk())


def runs_outside_code(expr: Expr) -> bool:
    return any(node.runs_outside_code for node in expr.walk())


def max_rows_at_once(expr: Expr) -> int | None:
    return min((node.max_rows for node in expr.walk() if node.max_rows), default=None)


def evaluate_column(expr: Expr, block: Block, span: RowSpan | None = None) -> Column:
    try:
        value = expr.evaluate(block, span or RowSpan())
    except REFUSED as error:
        if runs_outside_code(expr):
            raise
        raise TypeError(f"cannot compute {expr!r}: {error}") from None
    if isinstance(value, pa.Scalar):
        value = pa.repeat(value, block.num_rows)
    return value if isinstance(value, pa.ChunkedArray) else pa.chunked_array([value])
