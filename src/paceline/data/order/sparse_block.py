"""Blocks with only some of their rows: those of this worker, while all rows count towards the order.

On a cluster a worker fetches only its own rows. The batch cutter sees the size of the whole block, with the worker's
rows at their original positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from paceline.data.block import Block
from paceline.data.column import concat_columns
from paceline.data.order.sharding import RowDelivery

Rows = np.ndarray[Any, np.dtype[np.int64]]
"""Row indices in a block, ascending."""


@dataclass(slots=True, eq=False, repr=False)
class SparseBlock:
    """The rows `rows` of a block of `num_rows`. Immutable."""

    num_rows: int
    rows: Rows
    available: Block

    def slice(self, start: int, stop: int | None = None) -> Block | SparseBlock:
        """Return rows `start` to `stop`: a plain block if all of them are present."""
        stop = self.num_rows if stop is None else min(stop, self.num_rows)
        start = min(start, stop)
        first, last = (int(place) for place in np.searchsorted(self.rows, (start, stop)))
        block = self.available.slice(first, last)
        if last - first == stop - start:
            return block
        return SparseBlock(stop - start, self.rows[first:last] - start, block)

    def take(self, indices: Any) -> Block | SparseBlock:
        """Return the rows with these indices, in this order: a plain block if all of them are present."""
        indices = np.asarray(indices, dtype=np.int64)
        places = np.searchsorted(self.rows, indices)
        is_available = np.zeros(len(indices), dtype=bool)
        inside = places < len(self.rows)
        is_available[inside] = self.rows[places[inside]] == indices[inside]
        block = self.available.take(places[is_available])
        return block if is_available.all() else SparseBlock(len(indices), np.flatnonzero(is_available), block)

    def __repr__(self) -> str:
        return f"SparseBlock({len(self.rows)} of {self.num_rows} rows: {', '.join(self.available.columns)})"


class PartialDelivery(msgspec.Struct, frozen=True):
    """Like `RowDelivery`, but without the rows of other workers."""

    unit: int
    offset: int
    block: Block | SparseBlock


AnyBlock = Block | SparseBlock
Delivery = RowDelivery | PartialDelivery


def concat_blocks(blocks: Sequence[AnyBlock]) -> AnyBlock:
    """Concatenate blocks. Column types are those that the complete rows would have."""
    plain = [block for block in blocks if isinstance(block, Block)]
    if len(plain) == len(blocks):
        return Block.concat(plain)
    parts = [block for block in blocks if block.num_rows]
    if len(parts) == 1:
        return parts[0]
    blocks_here = [part if isinstance(part, Block) else part.available for part in parts]
    firsts = np.cumsum([0, *(part.num_rows for part in parts)])
    rows = [
        first + (np.arange(part.num_rows) if isinstance(part, Block) else part.rows)
        for first, part in zip(firsts[:-1], parts, strict=True)
    ]
    lengths = [block.num_rows for block in blocks_here]
    # Blocks without rows here still influence the column types.
    names = dict.fromkeys(name for block in blocks_here for name in block.columns)
    columns = {name: concat_columns([block.columns.get(name) for block in blocks_here], lengths) for name in names}
    return SparseBlock(int(firsts[-1]), np.concatenate(rows), Block._from_valid_columns(columns, sum(lengths)))
