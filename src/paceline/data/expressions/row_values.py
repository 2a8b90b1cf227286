"""Values that come from a row's place and not from its columns: random numbers and ids.

A place is the name of the unit, the row's number in it and, for random numbers, the epoch. The same place has the same
value in every process and after every restart, so that a resumed epoch continues with the values it would have had.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import xxhash

from paceline.data.block import Block
from paceline.data.expressions.nodes import Expr, RowSpan, replace_parts
from paceline.data.order.shuffle import hash_indices

_ROW_BITS = 33
"""A unit has at most 2**33 rows, and a dataset 2**30 units."""


@dataclass(frozen=True, eq=False)
class _PlaceNode(Expr):
    depends_on_row_number = True

    def may_be_null(self, schema: pa.Schema) -> bool:
        return False

    salt: str = ""
    """Differs between the nodes of a dataset: two random columns are not the same."""
    epoch: int = 0
    unit_numbers: Mapping[str, int] = field(default_factory=dict)

    def hash_rows(self, block: Block, span: RowSpan, seed: int, epoch: int = 0) -> np.ndarray[Any, np.dtype[np.uint64]]:
        key = seed ^ xxhash.xxh3_64_intdigest(f"{self.salt}\n{span.unit}".encode())
        return hash_indices(np.arange(span.first, span.first + block.num_rows), key, epoch)


@dataclass(frozen=True, eq=False)
class RandomNode(_PlaceNode):
    seed: int | None = None
    is_new_every_epoch: bool = True

    def evaluate(self, block: Block, span: RowSpan) -> Any:
        same = replace(self, salt="") if self.seed is not None else self
        hashes = same.hash_rows(block, span, self.seed or 0, self.epoch if self.is_new_every_epoch else 0)
        return pa.array((hashes >> np.uint64(11)) * 2.0**-53)

    def __repr__(self) -> str:
        return f"random(seed={self.seed})"


class UuidNode(_PlaceNode):
    def evaluate(self, block: Block, span: RowSpan) -> Any:
        halves = (self.hash_rows(block, span, seed).tolist() for seed in (1, 2))
        values = [str(UUID(int=high << 64 | low, version=4)) for high, low in zip(*halves, strict=True)]
        return pa.array(values, pa.string())

    def __repr__(self) -> str:
        return "uuid()"


class RowIdNode(_PlaceNode):
    def evaluate(self, block: Block, span: RowSpan) -> Any:
        first = (self.unit_numbers.get(span.unit, 0) << _ROW_BITS) + span.first
        return pa.array(np.arange(first, first + block.num_rows, dtype=np.int64))

    def __repr__(self) -> str:
        return "monotonically_increasing_id()"


def bind_places(expr: Expr, column: str, epoch: int, unit_numbers: Mapping[str, int]) -> Expr:
    """Tell the nodes their epoch and the units of the dataset. `column` is the column that the expression makes."""
    numbers = count()

    def bind(part: Expr) -> Expr:
        if isinstance(part, _PlaceNode):
            return replace(part, salt=f"{column} {next(numbers)}", epoch=epoch, unit_numbers=unit_numbers)
        return replace_parts(part, bind)

    return bind(expr)
