"""Over columns: what needs no function of the user, and can be looked into."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from paceline.data.block import Block
from paceline.data.expressions import Expr, values_of
from paceline.data.transform import Scope, Transform


@dataclass(frozen=True)
class _OverColumns(Transform):
    """A block at a time, and rows stay what they are."""

    @property
    def keeps_rows(self) -> bool:
        return True

    def apply(self, blocks: Iterator[Block], scope: Scope) -> Iterator[Block]:
        # A block without rows may be without columns too, and there is nothing to select from.
        return (self.changed(block) if block.columns or block.num_rows else block for block in blocks)

    def changed(self, block: Block) -> Block:
        raise NotImplementedError


@dataclass(frozen=True)
class Select(_OverColumns):
    columns: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"select_columns({list(self.columns)!r})"

    def changed(self, block: Block) -> Block:
        return block.select(self.columns)


@dataclass(frozen=True)
class Drop(_OverColumns):
    columns: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"drop_columns({list(self.columns)!r})"

    def changed(self, block: Block) -> Block:
        return block.drop(self.columns)


@dataclass(frozen=True)
class Rename(_OverColumns):
    pairs: tuple[tuple[str, str], ...]
    """Old name, new name."""

    @property
    def name(self) -> str:
        return f"rename_columns({self.names!r})"

    @property
    def names(self) -> Mapping[str, str]:
        return dict(self.pairs)

    def changed(self, block: Block) -> Block:
        return block.rename(self.names)


@dataclass(frozen=True)
class RenameAll(_OverColumns):
    """New names for all columns, in their order."""

    columns: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"rename_columns({list(self.columns)!r})"

    def changed(self, block: Block) -> Block:
        if len(self.columns) != len(block.columns):
            raise ValueError(
                f"{self.name} has {len(self.columns)} names for {len(block.columns)} columns: "
                f"{', '.join(map(repr, block.columns))}"
            )
        return Block(dict(zip(self.columns, block.columns.values(), strict=True)), num_rows=block.num_rows)


@dataclass(frozen=True)
class WithColumn(_OverColumns):
    column: str
    expr: Expr

    @property
    def name(self) -> str:
        return f"with_column({self.column!r}, {self.expr!r})"

    def changed(self, block: Block) -> Block:
        return block.with_column(self.column, values_of(self.expr, block))


@dataclass(frozen=True)
class Where(Transform):
    """`filter` with an expression."""

    expr: Expr

    @property
    def name(self) -> str:
        return f"filter({self.expr!r})"

    def apply(self, blocks: Iterator[Block], scope: Scope) -> Iterator[Block]:
        for block in blocks:
            yield self._kept(block) if block.num_rows else block

    def _kept(self, block: Block) -> Block:
        holds = values_of(self.expr, block)
        if not pa.types.is_boolean(holds.type):
            raise TypeError(f"{self.name} gives {holds.type} for a row: a filter needs true or false")
        mask = pc.fill_null(holds, False).to_numpy()
        return block if mask.all() else block.take(mask.nonzero()[0])
