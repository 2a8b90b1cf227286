"""Computes which rows of each block each worker will use, from block sizes alone.

On a cluster, blocks are cut where they are stored, and each worker fetches only its own rows. `RowOwners` maps rows to
ranks exactly as `BatchCutter` cuts them. `OwnershipTracker` says for which blocks the mapping is final as block sizes
become known: the owners of the last, smaller batch are only known at the end of the epoch. In a `SparseBlock` the batch
cutter sees the size of the whole block, with the worker's rows at their original positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np

from paceline.data.block import Block
from paceline.data.column import concat_columns
from paceline.data.order.sharding import Cursor, Mode, RowDelivery, WorkerShard, excluded_rows
from paceline.data.order.shuffle import hash_indices

Numbers = np.ndarray[Any, np.dtype[np.int64]]
Rows = Numbers
"""Row indices in a block, ascending."""

NOBODY = -1


class EpochDivision(msgspec.Struct, frozen=True):
    """How the rows of an epoch are divided among workers; shared by all of them. See `BatchCutter`."""

    start: Cursor
    mode: Mode
    world: int
    chunk_rows: int | None = None

    @property
    def num_parts(self) -> int:
        return WorkerShard(0, self.world, self.mode).num_parts

    @property
    def group_rows(self) -> int:
        """Number of kept rows that are divided among the workers at a time."""
        return self.chunk_rows or self.num_parts


class BlockSpan(msgspec.Struct, frozen=True):
    """The rows of a block in epoch order, with what is needed to find their owners."""

    first: int
    num_rows: int
    total: int | None = None
    """Number of rows in the epoch, if its end is known."""

    @property
    def last(self) -> int:
        return self.first + self.num_rows


@dataclass(frozen=True)
class RowOwners:
    division: EpochDivision
    _begins: Numbers
    _stops: Numbers
    """Ends of the ranges of the epoch order that no rank gets; `_begins` has their starts."""
    _sizes: Numbers
    """Cumulative sizes of these ranges, from 0."""

    @staticmethod
    @lru_cache(maxsize=8)
    def for_division(division: EpochDivision) -> RowOwners:
        """Return the cached owners of a division: many blocks use the same one."""
        excluded = excluded_rows(division.start, WorkerShard(0, division.world, division.mode))
        ranges = np.array(excluded, dtype=np.int64).reshape(-1, 2)
        sizes = np.concatenate([[0], np.cumsum(ranges[:, 1] - ranges[:, 0])])
        return RowOwners(division, ranges[:, 0], ranges[:, 1], sizes)

    def ranks_of_rows(self, span: BlockSpan) -> Numbers:
        division = self.division
        places = self._row_positions(span)
        kept = self.num_kept_before(places)
        index = kept % division.group_rows
        in_turn = division.chunk_rows is None
        owners = index if in_turn else _part_of(index, division.group_rows, division.num_parts)
        if span.total is not None:
            num_kept = int(self.num_kept_before(np.int64(span.total)))
            last = num_kept % division.group_rows
            size = last - last % division.num_parts if division.mode == "equal" else last
            in_last = kept >= num_kept - last
            shared = _part_of(index, size, division.num_parts) if size else np.full_like(index, NOBODY)
            owners = np.where(in_last, np.where(index < size, shared, NOBODY), owners)
        return np.where((places < division.start.row) | self._is_excluded(places), NOBODY, owners)

    def rows_by_rank(self, span: BlockSpan) -> list[Rows]:
        owners = self.ranks_of_rows(span)
        by_owner = np.argsort(owners, kind="stable")
        ends = np.searchsorted(owners[by_owner], np.arange(self.division.num_parts + 1))
        return [by_owner[begin:stop] for begin, stop in pairwise(ends)]

    def num_kept_before(self, place: Any) -> Any:
        """Return how many rows, from the start to a position in the epoch order, go to some rank."""
        index = np.searchsorted(self._begins, place)
        stop_before = np.concatenate([[np.iinfo(np.int64).min], self._stops])[index]
        num_excluded = self._sizes[index] - np.where(index > 0, np.maximum(stop_before, place) - place, 0)
        return np.maximum(place - self.division.start.row - num_excluded, 0)

    def position_of(self, kept: int) -> int:
        """Return the position in the epoch order of the kept row number `kept`."""
        before = self.num_kept_before(self._begins)
        return int(self.division.start.row + kept + self._sizes[np.searchsorted(before, kept, side="right")])

    def _is_excluded(self, places: Numbers) -> Any:
        index = np.searchsorted(self._begins, places, side="right")
        stop_before = np.concatenate([[np.iinfo(np.int64).min], self._stops])[index]
        return places < stop_before

    def _row_positions(self, span: BlockSpan) -> Numbers:
        """Return the position of each row in the epoch order, after shuffling within windows."""
        start = self.division.start
        if not start.window:
            return np.arange(span.first, span.last)
        begins = range(span.first - span.first % start.window, span.last, start.window)
        places = np.concatenate(
            [_window_positions(begin, start.window, span.total, start.seed, start.epoch) for begin in begins]
        )
        return places[span.first - begins[0] : span.last - begins[0]]


class OwnershipTracker:
    """Reports blocks as soon as the owners of their rows are final. Block sizes are added in order."""

    def __init__(self, division: EpochDivision) -> None:
        self._division = division
        self._owners = RowOwners.for_division(division)
        self._delivered = division.start.at
        self._uncertain: list[BlockSpan] = []

    @property
    def num_uncertain(self) -> int:
        return len(self._uncertain)

    def add_block(self, num_rows: int) -> Sequence[BlockSpan]:
        """Add a block, and return the blocks that are now final, in order."""
        self._uncertain.append(BlockSpan(self._delivered, num_rows))
        self._delivered += num_rows
        settled = self._settled_end()
        num = next((num for num, span in enumerate(self._uncertain) if span.last > settled), len(self._uncertain))
        certain, self._uncertain = self._uncertain[:num], self._uncertain[num:]
        return certain

    def finish(self, *, broken: bool = False) -> Sequence[BlockSpan]:
        """Return the remaining blocks. `broken` means that deliveries ended before the end of the epoch.

        Incomplete batches then belong to nobody, and all others are assigned as if the epoch continued.
        """
        total = None if broken else self._delivered
        spans = [BlockSpan(span.first, span.num_rows, total) for span in self._uncertain]
        self._uncertain.clear()
        return spans

    def _settled_end(self) -> int:
        """Return the position before which all rows have final owners, in whole windows."""
        window = self._division.start.window or 1
        windows_end = self._delivered - self._delivered % window
        if self._division.num_parts == 1 or windows_end <= self._division.start.row:
            return self._delivered if self._division.num_parts == 1 else windows_end
        num_kept = int(self._owners.num_kept_before(np.int64(windows_end)))
        divided = num_kept - num_kept % self._division.group_rows
        settled = windows_end if divided == num_kept else self._owners.position_of(divided)
        return settled - settled % window


def _part_of(index: Any, size: int, parts: int) -> Any:
    """Return the part of `size` rows that a row is in: the inverse of `sharding.part_range`."""
    return ((index + 1) * parts - 1) // size


@lru_cache(maxsize=4)
def _window_positions(begin: int, size: int, total: int | None, seed: int, epoch: int) -> Numbers:
    stop = begin + size if total is None else min(begin + size, total)
    order = np.argsort(hash_indices(np.arange(begin, stop), seed, epoch), kind="stable")
    places = np.empty(len(order), dtype=np.int64)
    places[order] = np.arange(begin, stop)
    return places


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
