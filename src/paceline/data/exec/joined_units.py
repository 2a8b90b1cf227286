"""Joins rows: both datasets are exchanged by a hash of their keys, and each unit joins the rows of one range of hashes.

Arrow finds the pairs of matching rows, by their numbers. They are then sorted, so that the order of the result depends
neither on the number of units nor on memory: by the hash of the key, then by the position of the left row, then by that
of the right row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from paceline.data.block import Block, Column, as_arrow, type_of
from paceline.data.column import concat_columns, merge_zeros, object_array
from paceline.data.context import DataContext
from paceline.data.exec.scatter import HASH, StoredRows, load_joined, position_indices
from paceline.data.exec.spill import SpillHandle
from paceline.data.order.shuffle import hash_indices
from paceline.data.planning.joins import JoinSpec, check_comparable
from paceline.data.planning.key_hashes import hash_keys
from paceline.data.planning.sort_keys import SortKeys, key_array, order_by_radix

Indices = np.ndarray[Any, np.dtype[np.int64]]

_ROW_BITS = 24
_ROW_MASK = np.uint64((1 << _ROW_BITS) - 1)
"""The bits of a hash that are left out, so that the number of a row fits there."""


@dataclass(frozen=True)
class OrderByKeyHash:
    """Order by a hash of the keys; rows with equal keys keep their order.

    A row that misses a key has no partner in a join. So it is left out, or its hash is that of its position: otherwise
    all such rows would be in one unit.
    """

    keys: tuple[str, ...]
    missing: Literal["keep", "drop", "spread"] = "keep"
    sort: bool = False
    """Whether to order by the keys in the end."""

    def arrange(self, block: Block, place: int, first: int) -> tuple[Block, np.ndarray[Any, Any] | None]:
        hashes, is_missing = hash_keys(block, self.keys)
        if self.missing != "keep" and is_missing.any():
            rows = np.flatnonzero(is_missing)
            if self.missing == "drop":
                block, hashes = block.take(np.flatnonzero(~is_missing)), hashes[~is_missing]
            else:
                hashes[rows] = hash_indices(position_indices(place, first, block.num_rows)[rows], 0)
        hashes = hashes & ~_ROW_MASK
        return block.with_column(HASH, hashes), order_by_radix(hashes)

    def gather(self, pieces: Sequence[StoredRows]) -> Block:
        joined = load_joined(pieces)
        ordered = joined.drop([HASH]).take(np.argsort(joined.column(HASH), kind="stable"))
        return ordered.take(SortKeys.ascending(self.keys).sort_indices(ordered)) if self.sort else ordered


@dataclass(frozen=True)
class JoinSide:
    """The rows of one dataset that belong to a unit."""

    ranges: tuple[tuple[StoredRows, ...], ...]
    """The pieces of each range of hashes. The ranges of both sides are joined one after the other."""
    sample: StoredRows | Block
    """Some of its rows, which tell its columns; a block without rows if there are none."""
    spill_handle: SpillHandle

    def load(self, number: int) -> Block:
        if self.ranges[number]:
            return load_joined(self.ranges[number])
        sample = self.sample if isinstance(self.sample, Block) else self.sample.load()
        return sample.slice(0, 0)


@dataclass(frozen=True)
class JoinedUnit:
    name: str
    num_bytes: int | None
    spec: JoinSpec
    sides: tuple[JoinSide, JoinSide]
    num_rows: None = None

    def read(self) -> Iterator[Block]:
        for number, pieces in enumerate(zip(*(side.ranges for side in self.sides), strict=True)):
            if any(pieces):
                yield from self._join(*(side.load(number) for side in self.sides))

    def _join(self, left: Block, right: Block) -> Iterator[Block]:
        left_hashes, right_hashes = (block.column(HASH) for block in (left, right))
        left, right = left.drop([HASH]), right.drop([HASH])
        output = self.spec.list_output(list(left.columns), list(right.columns))
        rows = find_pairs(self.spec, (left, right), (left_hashes, right_hashes))
        row_bytes = sum(block.nbytes / max(block.num_rows, 1) for block in (left, right))
        num_rows = max(1, int(DataContext.get_current().target_max_block_size / max(row_bytes, 1)))
        others = dict(zip(self.spec.left_on, self.spec.right_on, strict=True))
        keys = {
            source: concat_columns([left.column(source), right.column(others[source])], [left.num_rows, right.num_rows])
            for _, origin, source in output
            if origin == "either"
        }
        for begin in range(0, len(rows[0]), num_rows):
            lefts, rights = (indices[begin : begin + num_rows] for indices in rows)
            columns: dict[str, Column] = {}
            for name, origin, source in output:
                if origin == "either":
                    indices = np.where(lefts >= 0, lefts, left.num_rows + rights)
                    columns[name] = take_or_null(keys[source], indices, may_miss=False)
                else:
                    side = int(origin == "right")
                    values = (left, right)[side].column(source)
                    columns[name] = take_or_null(values, (lefts, rights)[side], may_miss=self.spec.may_miss(side))
            yield Block(columns, num_rows=len(lefts))


def find_pairs(
    spec: JoinSpec, blocks: tuple[Block, Block], hashes: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]
) -> tuple[Indices, Indices]:
    """Return the numbers of the left and the right row of each row of the result, in order; -1 if there is none."""
    # The rows are sorted runs, which a stable sort merges.
    orders = [np.argsort(each, kind="stable") for each in hashes]
    arrays: list[dict[str, Any]] = [{}, {}]
    for number, names in enumerate(zip(spec.left_on, spec.right_on, strict=True)):
        types = [type_of(block.column(name)) for block, name in zip(blocks, names, strict=True)]
        kind = check_comparable(names[0], types[0], names[1], types[1])
        for side, (block, name) in enumerate(zip(blocks, names, strict=True)):
            array = key_array(block, name)
            is_null = array.null_count == len(array)  # its type may be any
            arrays[side][f"key {number}"] = pa.nulls(len(array), kind) if is_null else merge_zeros(array.cast(kind))
    tables = []
    for side, order in enumerate(orders):
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        tables.append(pa.table({**arrays[side], str(side): rank}))
    keys = [f"key {number}" for number in range(len(spec.left_on))]
    joined = tables[0].join(tables[1], keys, join_type=spec.how.replace("_", " "), use_threads=False)
    ranks = [
        joined.column(str(side)).fill_null(-1).to_numpy()
        if str(side) in joined.column_names
        else np.full(joined.num_rows, -1)
        for side in (0, 1)
    ]
    order = np.argsort(
        _order_pairs(ranks, [each[one] for each, one in zip(hashes, orders, strict=True)]), kind="stable"
    )
    # The additional -1 is for the rank -1.
    lefts, rights = (np.append(one, -1)[rank[order]].astype(np.int64) for one, rank in zip(orders, ranks, strict=True))
    return lefts, rights


def _order_pairs(ranks: Sequence[np.ndarray[Any, Any]], hashes: Sequence[np.ndarray[Any, Any]]) -> Any:
    """Return a number for each pair to sort by. A right row without a left one follows the left rows of its hash."""
    left, right = ranks
    places = 2 * left + 1
    alone = left < 0
    if alone.any():
        places[alone] = 2 * np.searchsorted(hashes[0], hashes[1][right[alone]], side="right")
    return places * (len(hashes[1]) + 1) + right + 1


def take_or_null(values: Column, indices: Indices, *, may_miss: bool) -> Column:
    """Return the values with these indices, and null for -1. Whether there is a -1 does not change the type."""
    if not may_miss:
        return values[indices] if isinstance(values, np.ndarray) else values.take(pa.array(indices))
    is_missing = indices < 0
    if isinstance(values, np.ndarray) and (values.ndim > 1 or values.dtype.kind not in "biufmM"):
        if not is_missing.any():
            return values[indices]
        return object_array(None if index < 0 else values[index] for index in indices.tolist())
    taken = as_arrow(values).take(pa.array(indices, mask=is_missing))
    return pa.chunked_array([taken]) if isinstance(taken, pa.Array) else taken
