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
from paceline.data.block import Block, Column, as_arrow
from paceline.data.expressions.nodes import (
    Expr,
    RowSpan,
    UnnestNode,
    depends_on_row_number,
    evaluate_column,
    max_rows_at_once,
    runs_outside_code,
)
from paceline.data.expressions.row_values import bind_places
from paceline.data.planning.plan import Transform, TransformScope
from paceline.data.transforms.user_calls import user_line


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
class _ExpressionTransform(Transform):
    """Evaluates expressions, which may depend on where their rows are."""

    @property
    def exprs(self) -> tuple[Expr, ...]:
        raise NotImplementedError

    @property
    def depends_on_row_number(self) -> bool:
        return any(map(depends_on_row_number, self.exprs))

    def apply(self, blocks: Iterator[Block], scope: TransformScope) -> Iterator[Block]:
        return self._transform_blocks(blocks, scope, scope.unit)

    def _transform_blocks(self, blocks: Iterator[Block], scope: TransformScope, unit: str) -> Iterator[Block]:
        limits = [limit for limit in map(max_rows_at_once, self.exprs) if limit is not None]
        runs_code = any(map(runs_outside_code, self.exprs))
        for first, block in _split_blocks(blocks, min(limits, default=None)):
            try:
                yield self.transform_block(block, RowSpan(unit, first, scope.get_or_create))
            except Exception as error:
                if runs_code:
                    last = first + max(block.num_rows, 1) - 1
                    error.add_note(f"in {self.name}, at rows {first} to {last} of {unit}{user_line(error)}")
                raise

    def transform_block(self, block: Block, span: RowSpan) -> Block:
        raise NotImplementedError


def _split_blocks(blocks: Iterator[Block], max_rows: int | None) -> Iterator[tuple[int, Block]]:
    """Yield the blocks in pieces of at most `max_rows` rows, each with the number of its first row."""
    passed = 0
    for block in blocks:
        step = max(block.num_rows, 1) if max_rows is None else max_rows
        for start in range(0, max(block.num_rows, 1), step):
            yield passed + start, block.slice(start, start + step)
        passed += block.num_rows


@dataclass(frozen=True)
class WithColumns(_ExpressionTransform):
    """Adds columns, all computed from the columns that there were."""

    outputs: tuple[tuple[str | None, Expr], ...]
    """The name of a column and its expression; None for `unnest`, which makes several."""

    @property
    def name(self) -> str:
        shown = [repr(expr) if name is None else f"{name!r}, {expr!r}" for name, expr in self.outputs]
        return f"with_column({shown[0]})" if len(shown) == 1 else f"with_columns({'; '.join(shown)})"

    @property
    def keeps_rows(self) -> bool:
        return True

    @property
    def exprs(self) -> tuple[Expr, ...]:
        return tuple(expr for _, expr in self.outputs)

    def bind_places(self, epoch: int, unit_numbers: Mapping[str, int]) -> Transform:
        outputs = ((name, bind_places(expr, str(name), epoch, unit_numbers)) for name, expr in self.outputs)
        return WithColumns(tuple(outputs))

    def transform_block(self, block: Block, span: RowSpan) -> Block:
        if not block.columns and not block.num_rows:
            return block  # it may have no columns to compute from
        made: dict[str, Column] = {}
        for name, expr in self.outputs:
            if isinstance(expr, UnnestNode):
                made |= expr.evaluate_fields(block, span)
            else:
                made[str(name)] = evaluate_column(expr, block, span)
        return Block({**block.columns, **made})

    def made_columns(self, types: Mapping[str, Any] | None = None) -> tuple[str, ...] | None:
        """The names of the new columns, given the types of the others; None if they are known only with the rows."""
        names: list[str] = []
        for name, expr in self.outputs:
            if not isinstance(expr, UnnestNode):
                names.append(str(name))
                continue
            fields = expr.known_fields(types or {})
            if fields is None:
                return None
            names += fields
        return tuple(names)


@dataclass(frozen=True)
class FilterExpression(_ExpressionTransform):
    label = "filter({0.expr!r})"
    expr: Expr

    @property
    def exprs(self) -> tuple[Expr, ...]:
        return (self.expr,)

    def bind_places(self, epoch: int, unit_numbers: Mapping[str, int]) -> Transform:
        return FilterExpression(bind_places(self.expr, "filter", epoch, unit_numbers))

    def transform_block(self, block: Block, span: RowSpan) -> Block:
        if not block.num_rows:
            return block
        matches = evaluate_column(self.expr, block, span)
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
