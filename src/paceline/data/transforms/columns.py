"""Transforms of columns: they need no user function, so the planner can inspect them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from paceline.data.block import Block
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
