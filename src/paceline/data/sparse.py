"""Blocks of which only some rows are at hand: those that this worker is given, while all rows of the order count.

On a cluster a worker fetches its own rows alone. What it cuts batches from is told the size of the whole block, and
its own rows lie in it where they do in the whole one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from paceline.data.block import Block
from paceline.data.column import joined

Rows = np.ndarray[Any, np.dtype[np.int64]]
"""Numbers of rows in a block, ascending."""


class Sparse:
    """`rows` of a block of `num_rows`. Never changed once made."""

    __slots__ = ("at_hand", "num_rows", "rows")

    def __init__(self, num_rows: int, rows: Rows, at_hand: Block) -> None:
        self.num_rows = num_rows
        self.rows = rows
        self.at_hand = at_hand

    def slice(self, start: int, stop: int | None = None) -> Block | Sparse:
        """Rows `start` to `stop`: a block, if all of them are at hand."""
        stop = self.num_rows if stop is None else min(stop, self.num_rows)
        start = min(start, stop)
        first, last = (int(place) for place in np.searchsorted(self.rows, (start, stop)))
        found = self.at_hand.slice(first, last)
        if last - first == stop - start:
            return found
        return Sparse(stop - start, self.rows[first:last] - start, found)

    def take(self, indices: Any) -> Block | Sparse:
        """The rows with these numbers, in this order: a block, if all of them are at hand."""
        indices = np.asarray(indices, dtype=np.int64)
        places = np.searchsorted(self.rows, indices)
        found = np.zeros(len(indices), dtype=bool)
        inside = places < len(self.rows)
        found[inside] = self.rows[places[inside]] == indices[inside]
        taken = self.at_hand.take(places[found])
        return taken if found.all() else Sparse(len(indices), np.flatnonzero(found), taken)

    def __repr__(self) -> str:
        return f"Sparse({len(self.rows)} of {self.num_rows} rows: {', '.join(self.at_hand.columns)})"


class Partial(msgspec.Struct, frozen=True):
    """As `Delivered`: some rows of the order, and where they came from. Those of other workers are not at hand."""

    unit: int
    offset: int
    block: Block | Sparse


def concat(blocks: Sequence[Block | Sparse]) -> Block | Sparse:
    """The rows of all, one after the other. Columns have the types that they would have if all rows were at hand."""
    plain = [block for block in blocks if isinstance(block, Block)]
    if len(plain) == len(blocks):
        return Block.concat(plain)
    parts = [block for block in blocks if block.num_rows]
    if len(parts) == 1:
        return parts[0]
    found = [part if isinstance(part, Block) else part.at_hand for part in parts]
    firsts = np.cumsum([0, *(part.num_rows for part in parts)])
    rows = [
        first + (np.arange(part.num_rows) if isinstance(part, Block) else part.rows)
        for first, part in zip(firsts[:-1], parts, strict=True)
    ]
    lengths = [block.num_rows for block in found]
    # Those that have no row here have a say in what type a column has.
    names = dict.fromkeys(name for block in found for name in block.columns)
    columns = {name: joined([block.columns.get(name) for block in found], lengths) for name in names}
    return Sparse(int(firsts[-1]), np.concatenate(rows), Block._made(columns, sum(lengths)))
