"""Transforms of columns: they need no user function, so the planner can inspect them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paceline._core.arguments import bad_value, check_instance
from paceline.data.block import Block, as_arrow
from paceline.data.expressions import Expr, evaluate_column
from paceline.data.planning.plan import Transform, TransformScope


@dataclass(frozen=True)
class _ColumnTransform(Transform):
    """Transforms one block at a time, and keeps all rows."""

    keeps_rows = True

    def apply(self, blocks: Iterator[Block], scope: TransformScope) -> Iterator[Block]:
        # A block without rows may have no columns to select from.
        return (self.transform_block(block) if block.columns or block.num_rows else block for block in blocks)

    def transform_block(self, block: Block) -> Block:
        raise NotImplementedError


@dataclass(frozen=True)
class _NamedColumns(_ColumnTransform):
    columns: tuple[str, ...]

    @property
    def column_list(self) -> list[str]:
        return list(self.columns)


class SelectColumns(_NamedColumns):
    label = "select_columns({0.column_list!r})"

    def transform_block(self, block: Block) -> Block:
        return block.select(self.columns)


class DropColumns(_NamedColumns):
    label = "drop_columns({0.column_list!r})"

    def transform_block(self, block: Block) -> Block:
        return block.drop(self.columns)


@dataclass(frozen=True)
class RenameColumns(_ColumnTransform):
    label = "rename_columns({0.names!r})"
    pairs: tuple[tuple[str, str], ...]
    """Old name, new name."""

    @property
    def names(self) -> Mapping[str, str]:
        return dict(self.pairs)

    def transform_block(self, block: Block) -> Block:
        return block.rename(self.names)


class RenameAllColumns(_NamedColumns):
    """New names for all columns, in order."""

    label = "rename_columns({0.column_list!r})"

    def transform_block(self, block: Block) -> Block:
        if len(self.columns) != len(block.columns):
            raise ValueError(
                f"{self.name} must have a name for each of {len(block.columns)} columns: "
                f"{', '.join(map(repr, block.columns))}"
            )
        return Block(dict(zip(self.columns, block.columns.values(), strict=True)), num_rows=block.num_rows)


@dataclass(frozen=True)
class WithColumn(_ColumnTransform):
    label = "with_column({0.column!r}, {0.expr!r})"
    column: str
    expr: Expr

    def transform_block(self, block: Block) -> Block:
        return block.with_column(self.column, evaluate_column(self.expr, block))


@dataclass(frozen=True)
class WithColumns(_ColumnTransform):
    """Columns computed from those that were there before."""

    label = "with_columns({0.exprs!r})"
    pairs: tuple[tuple[str, Expr], ...]

    @property
    def exprs(self) -> Mapping[str, Expr]:
        return dict(self.pairs)

    def transform_block(self, block: Block) -> Block:
        computed = {name: evaluate_column(expr, block) for name, expr in self.pairs}
        return Block({**block.columns, **computed}, num_rows=block.num_rows)


@dataclass(frozen=True)
class FilterExpression(Transform):
    label = "filter({0.expr!r})"
    expr: Expr

    def apply(self, blocks: Iterator[Block], scope: TransformScope) -> Iterator[Block]:
        for block in blocks:
            yield self._filter_block(block) if block.num_rows else block

    def _filter_block(self, block: Block) -> Block:
        matches = evaluate_column(self.expr, block)
        if not pa.types.is_boolean(matches.type):
            raise TypeError(f"{self.name} must be True or False for a row, got {matches.type}")
        mask = pc.fill_null(matches, False).to_numpy()
        return block if mask.all() else block.take(mask.nonzero()[0])


@dataclass(frozen=True)
class DecodeTensors(_ColumnTransform):
    """Turns columns of raw bytes into arrays of known type and shape."""

    label = "tensor_column_schema"
    tensors: tuple[tuple[str, np.dtype[Any], tuple[int, ...]], ...]

    def transform_block(self, block: Block) -> Block:
        for name, dtype, shape in self.tensors:
            values = as_arrow(block.column(name)).to_pylist()
            size = dtype.itemsize * math.prod(shape)
            wrong = next((value for value in values if not isinstance(value, bytes) or len(value) != size), b"")
            if wrong != b"":
                actual = f"{len(wrong)} bytes" if isinstance(wrong, bytes) else type(wrong).__name__
                raise ValueError(
                    f"tensor_column_schema: each value of column {name!r} must be the {size} bytes of a {dtype} array "
                    f"of shape {shape}, got {actual}"
                )
            block = block.with_column(name, np.frombuffer(b"".join(values), dtype).reshape(len(values), *shape))
        return block


def parse_tensor_columns(schema: Any) -> tuple[tuple[str, np.dtype[Any], tuple[int, ...]], ...]:
    """Check a `tensor_column_schema`: a type of NumPy or Arrow and a shape by column."""
    check_instance("tensor_column_schema", schema, Mapping, "a dict from column to (type, shape)", optional=True)
    parsed = []
    for name, value in (schema or {}).items():
        try:
            kind, shape = value
            dtype = np.dtype(kind.to_pandas_dtype() if isinstance(kind, pa.DataType) else kind)
            parsed.append((str(name), dtype, tuple(int(size) for size in shape)))
        except (TypeError, ValueError, NotImplementedError):
            expected = "a pair such as (numpy.uint8, (28, 28))"
            raise bad_value(f"tensor_column_schema[{name!r}]", expected, value) from None
    return tuple(parsed)
