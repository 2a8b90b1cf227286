"""The functions that create expressions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from paceline._core.arguments import check_bool, check_callable, check_instance, check_int
from paceline._core.lazy_imports import explain_module
from paceline.data.datatype import as_arrow_type
from paceline.data.expressions.nodes import ColumnNode, Expr, LiteralNode, StarNode, UnnestNode, WhenNode, as_expr
from paceline.data.expressions.outside_calls import DownloadNode, UserClass, UserFunction
from paceline.data.expressions.row_values import RandomNode, RowIdNode, UuidNode


def col(name: str) -> Expr:
    """Refer to a column by name."""
    return ColumnNode(check_instance("name", name, str, "the name of a column"))


def lit(value: Any) -> Expr:
    """A constant, the same for all rows."""
    return LiteralNode(value)


def star() -> Expr:
    """All columns that are there, for `with_columns`, which keeps them anyway."""
    return StarNode()


def when(condition: Any, value: Any) -> WhenNode:
    """Choose a value by conditions: `when(col("x") > 9, "high").when(col("x") > 3, "some").otherwise("low")`.

    The first condition that holds decides. Without `otherwise`, the value is null where none holds.
    """
    return WhenNode((as_expr(condition),), (as_expr(value),), LiteralNode(None))


def udf(return_dtype: Any) -> Callable[[Any], Any]:
    """Decorate a function of whole columns, so that it takes expressions and gives one.

    Each column is passed as a `pyarrow.Array`, and arguments that are no expressions as they are. The function returns
    a value for each row, which must depend on that row alone: how many rows come at a time is not fixed. `return_dtype`
    is a `DataType` or an Arrow type, which the values are converted to.

    A class is created once per process, where the rows are. It is called with the arguments of its constructor first:
    `AddOffset(5)(col("x"))`.
    """
    return_type = as_arrow_type("return_dtype", return_dtype)

    def decorate(fn: Any) -> Any:
        check_callable("fn", fn)
        return UserClass(fn, return_type) if inspect.isclass(fn) else UserFunction(fn, return_type)

    return decorate


def pyarrow_udf(return_dtype: Any) -> Callable[[Any], Any]:
    """The same as `udf`: columns are always Arrow arrays here."""
    return udf(return_dtype)


def download(uri_column_name: str, *, filesystem: Any = None) -> Expr:
    """Read the file of each URI of a column, as bytes; null for null. A file that cannot be read raises."""
    check_instance("uri_column_name", uri_column_name, str, "the name of a column")
    return DownloadNode(ColumnNode(uri_column_name), filesystem)


def random(*, seed: int | None = None, reseed_after_execution: bool = True) -> Expr:
    """A random number for each row, at least 0 and below 1.

    It follows from the seed, the row's unit and its number in it, so a resumed epoch gives the same numbers; with
    `reseed_after_execution`, each epoch gives others. Without a seed, each column has its own numbers.
    """
    check_int("seed", seed, optional=True)
    check_bool("reseed_after_execution", reseed_after_execution)
    return RandomNode(seed=seed, is_new_every_epoch=reseed_after_execution)


def uuid() -> Expr:
    """A UUID for each row, as text. It follows from the column, the row's unit and its number in it.

    It is the same in every epoch and run, and no two rows of a dataset share one. Other datasets with units of the same
    names have the same.
    """
    return UuidNode()


def monotonically_increasing_id() -> Expr:
    """An integer for each row, larger than those of the rows before it, with gaps between units.

    The upper 30 bits are the unit's place in the order of the epoch, the lower 33 the row's number in it.
    """
    return RowIdNode()


def unnest(expr: Expr) -> Expr:
    """One column for each field of a struct, for `with_columns`. A null struct gives nulls."""
    check_instance("expr", expr, Expr, "an expression such as col('x')")
    if isinstance(expr, UnnestNode):
        raise TypeError("unnest cannot be given another unnest: that is already several columns")
    return UnnestNode(expr)


explain_module(__name__)
