"""Nodes that run code or read files from outside: functions of users, and downloads."""

from __future__ import annotations

import inspect
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from paceline.data.block import Block
from paceline.data.column import as_arrow, as_column
from paceline.data.expressions.nodes import ColumnNode, Expr, RowSpan
from paceline.data.sources.files import FilesystemHandle, InputFile, PathResolver, explain_read_errors

_DOWNLOAD_THREADS = 16


@dataclass(frozen=True, eq=False)
class UserFunction:
    """A function of whole columns, called with expressions: what the decorator `udf` returns."""

    fn: Any
    return_type: Any
    constructor: tuple[tuple[Any, ...], Mapping[str, Any]] | None = None
    """The arguments of a class; None for a function."""
    key: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def name(self) -> str:
        return getattr(self.fn, "__name__", None) or type(self.fn).__name__

    def prepare(self, span: RowSpan) -> Any:
        if self.constructor is None:
            return self.fn
        args, kwargs = self.constructor
        return span.get_or_create(self, lambda: self.fn(*args, **kwargs))

    def __call__(self, *args: Any, **kwargs: Any) -> Expr:
        if not any(isinstance(each, Expr) for each in (*args, *kwargs.values())):
            raise TypeError(f"{self.name} must be given an expression such as col('x'), got only values")
        called = self.fn if self.constructor is None else self.fn.__call__
        try:
            inspect.signature(called).bind(*(() if self.constructor is None else (None,)), *args, **kwargs)
        except ValueError:
            pass  # a built-in function, which does not say what it takes
        except TypeError as error:
            raise TypeError(f"{self.name}: {error}") from None
        return UserFunctionNode(self, (*args, *kwargs.values()), tuple(kwargs))


@dataclass(frozen=True, eq=False)
class UserClass:
    """A class decorated with `udf`. Called with the arguments of its constructor, it gives a function."""

    cls: Any
    return_type: Any

    def __call__(self, *args: Any, **kwargs: Any) -> UserFunction:
        return UserFunction(self.cls, self.return_type, (args, kwargs))


@dataclass(frozen=True, eq=False)
class UserFunctionNode(Expr):
    runs_outside_code = True

    function: UserFunction
    operands: tuple[Any, ...]
    """Expressions, and values that are passed on as they are."""
    names: tuple[str, ...] = ()
    """Of the last operands, which are passed by name."""

    @property
    def known_type(self) -> Any:
        return self.function.return_type

    def evaluate(self, block: Block, span: RowSpan) -> Any:
        values = [_as_array(each.evaluate(block, span)) if isinstance(each, Expr) else each for each in self.operands]
        num_args = len(values) - len(self.names)
        named = dict(zip(self.names, values[num_args:], strict=True))
        result = self.function.prepare(span)(*values[:num_args], **named)
        if result is None or isinstance(result, str | bytes | pa.Scalar) or not hasattr(result, "__len__"):
            expected = "a value for each row, as an array, a series or a list"
            raise TypeError(f"{self.function.name} must return {expected}, got {type(result).__name__}")
        if len(result) != block.num_rows:
            expected = f"a value for each of {block.num_rows} rows"
            raise ValueError(f"{self.function.name} must return {expected}, got {len(result)}")
        column = as_arrow(as_column(self.function.name, result))
        return column if column.type == self.function.return_type else column.cast(self.function.return_type)

    def __repr__(self) -> str:
        num_args = len(self.operands) - len(self.names)
        named = zip(self.names, self.operands[num_args:], strict=True)
        shown = [*map(repr, self.operands[:num_args]), *(f"{name}={value!r}" for name, value in named)]
        return f"{self.function.name}({', '.join(shown)})"


def _as_array(values: Any) -> Any:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


@dataclass(frozen=True, eq=False)
class DownloadNode(Expr):
    runs_outside_code = True
    max_rows = 256
    known_type = pa.large_binary()

    uris: ColumnNode
    filesystem: Any = None

    def evaluate(self, block: Block, span: RowSpan) -> Any:
        resolve = PathResolver(self.filesystem)
        located = [None if uri is None else resolve(uri) for uri in self.uris.evaluate(block, span).to_pylist()]
        with ThreadPoolExecutor(_DOWNLOAD_THREADS) as threads:
            return pa.array(threads.map(_read_whole, located), pa.large_binary())

    def __repr__(self) -> str:
        return f"download({self.uris.name!r})"


def _read_whole(place: tuple[FilesystemHandle, str] | None) -> bytes | None:
    if place is None:
        return None
    handle, path = place
    file = InputFile(path, 0, handle, path)
    with explain_read_errors(file), file.open() as opened:
        content: bytes = opened.read()
    return content
