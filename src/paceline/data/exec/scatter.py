"""The two halves of an exchange: units store their rows in an order, then new units each read a range of them.

The first half is a transform at the end of every chain. It yields receipts instead of rows: they say where the rows
are stored. The second half is ordinary units.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from paceline.data.block import Block
from paceline.data.exec import packed_blocks
from paceline.data.exec.pipeline import process_unit
from paceline.data.exec.spill import SpilledPiece, SpillHandle, SpillSpace, open_pieces
from paceline.data.order.shuffle import argsort_hashes, hash_indices
from paceline.data.planning.plan import Transform, TransformScope, Unit
from paceline.data.planning.sort_keys import SortKeys, order_by_radix

HASH = "\0hash"
"""The column with the sort key of a shuffle, present only during the exchange."""

_PLACE_BITS = 40


class StoredRows(Protocol):
    """A range of stored rows; on one machine a `SpilledPiece`."""

    @property
    def num_rows(self) -> int: ...

    def part(self, begin: int, stop: int) -> StoredRows:
        """A sub-range."""
        ...

    def load(self) -> Block: ...


class RowArrangement(Protocol):
    def arrange(self, block: Block, place: int, first: int) -> tuple[Block, np.ndarray[Any, Any] | None]:
        """What to store of these rows, and in which order. They start at row `first` of unit number `place`."""
        ...

    def gather(self, pieces: Sequence[StoredRows]) -> Block:
        """Join arranged pieces into one block."""
        ...


def load_joined(pieces: Sequence[StoredRows]) -> Block:
    """Load pieces as one block. What is in files is read, not mapped: pages would stay until all of it is used."""
    spilled = [piece for piece in pieces if isinstance(piece, SpilledPiece)]
    if pieces and len(spilled) == len(pieces):
        with open_pieces(spilled) as parts:
            return packed_blocks.read_joined(parts)
    return Block.concat(piece.load() for piece in pieces)


@dataclass(frozen=True)
class PreserveOrder:
    def arrange(self, block: Block, place: int, first: int) -> tuple[Block, np.ndarray[Any, Any] | None]:
        return block, None

    def gather(self, pieces: Sequence[StoredRows]) -> Block:
        return load_joined(pieces)


def position_indices(place: int, first: int, num_rows: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """A number for each row that no other row of the dataset has. They start at row `first` of unit number `place`."""
    begin = (place << _PLACE_BITS) + first
    return np.arange(begin, begin + num_rows, dtype=np.uint64)


@dataclass(frozen=True)
class OrderByHash:
    """Order by a hash of a row's unit number and its index in the unit. The order depends on nothing else.

    Stored rows are copied when they are gathered, so their memory can be used again.
    """

    seed: int
    epoch: int

    def arrange(self, block: Block, place: int, first: int) -> tuple[Block, np.ndarray[Any, Any] | None]:
        hashes = hash_indices(position_indices(place, first, block.num_rows), self.seed, self.epoch)
        return block.with_column(HASH, hashes), argsort_hashes(hashes)

    def gather(self, pieces: Sequence[StoredRows]) -> Block:
        spilled = [piece for piece in pieces if isinstance(piece, SpilledPiece)]
        if len(spilled) == len(pieces):
            with open_pieces(spilled) as parts:
                return packed_blocks.read_sorted(parts, HASH)
        joined = load_joined(pieces)
        return joined.drop([HASH]).take(order_by_radix(joined.column(HASH)))


@dataclass(frozen=True)
class OrderByKeys:
    keys: SortKeys

    def arrange(self, block: Block, place: int, first: int) -> tuple[Block, np.ndarray[Any, Any] | None]:
        return block, self.keys.sort_indices(block)

    def gather(self, pieces: Sequence[StoredRows]) -> Block:
        joined = load_joined(pieces)
        return joined.take(self.keys.sort_indices(joined))


@dataclass(frozen=True)
class ArrangeRows(Transform):
    """Yields the rows of each unit as they must be stored; the executor stores them."""

    places: Mapping[str, int]
    arrangement: RowArrangement
    chunk_bytes: int
    at_most: int | None = None
    """The most rows needed of one unit."""

    @property
    def name(self) -> str:
        return "exchange"

    def apply(self, blocks: Iterator[Block], scope: TransformScope) -> Iterator[Block]:
        for block, order in self.arrange_chunks(blocks, self.places[scope.unit]):
            yield block if order is None else _take_in_order(block, order)

    def arrange_chunks(
        self, blocks: Iterator[Block], place: int
    ) -> Iterator[tuple[Block, np.ndarray[Any, Any] | None]]:
        first = 0
        for chunk in join_into_chunks(blocks, self.chunk_bytes, self.at_most):
            block, order = self.arrangement.arrange(chunk.with_numpy_numbers(), place, first)
            yield block.with_numpy_numbers(), order
            first += chunk.num_rows


@dataclass(frozen=True)
class Scatter(Transform):
    """Stores the rows of each unit, and yields receipts."""

    space: SpillSpace
    arranged: ArrangeRows

    @property
    def name(self) -> str:
        return "exchange"

    def apply(self, blocks: Iterator[Block], scope: TransformScope) -> Iterator[Block]:
        place = self.arranged.places[scope.unit]
        with self.space.open_writer(place) as writer:
            for block, order in self.arranged.arrange_chunks(blocks, place):
                piece = writer.write(block, order)
                yield make_receipt(place, piece, in_memory=piece.path == self.space.memory, num_bytes=block.nbytes)


def _take_in_order(block: Block, order: np.ndarray[Any, Any]) -> Block:
    ordered = block.take(order)
    # Arrow counts the bytes of a slice and of a copy differently; keep the count, so that the parts are as many as
    # in other executors.
    ordered.nbytes = block.nbytes
    return ordered


def join_into_chunks(blocks: Iterator[Block], num_bytes: int, at_most: int | None = None) -> Iterator[Block]:
    """Join blocks until they reach `num_bytes`; take only the first `at_most` rows."""
    parts: list[Block] = []
    size = 0
    rows_left = at_most
    for block in blocks:
        if rows_left is not None:
            block = block.slice(0, rows_left)
            rows_left -= block.num_rows
        if block.num_rows:
            parts.append(block)
            size += block.nbytes
        if parts and size >= num_bytes:
            yield Block.concat(parts)
            parts, size = [], 0
        if rows_left == 0:
            break
    if parts:
        yield Block.concat(parts)


def make_receipt(place: int, piece: SpilledPiece, *, in_memory: bool, num_bytes: int) -> Block:
    numbers = (place, piece.offset, piece.length, piece.num_rows, num_bytes, int(in_memory))
    names = ("place", "offset", "length", "num_rows", "num_bytes", "in_memory")
    return Block({name: np.array([number], np.int64) for name, number in zip(names, numbers, strict=True)})


@dataclass(frozen=True)
class StoredChunk:
    """Rows that were arranged together, as described by a receipt."""

    unit_index: int
    piece: StoredRows
    num_bytes: int

    @property
    def num_rows(self) -> int:
        return self.piece.num_rows

    def part(self, begin: int, stop: int) -> StoredRows:
        return self.piece.part(begin, stop)


def parse_receipts(receipts: Block, space: SpillSpace) -> Iterator[StoredChunk]:
    for row in receipts.rows():
        # A receipt has numbers only; the path follows from them.
        path = space.memory if row["in_memory"] else space.path(row["place"])
        assert path is not None
        is_mapped = space.is_mapped and bool(row["in_memory"])
        piece = SpilledPiece(path, row["offset"], row["length"], 0, row["num_rows"], is_mapped)
        yield StoredChunk(row["place"], piece, row["num_bytes"])


@dataclass(frozen=True)
class GatheredUnit:
    """A unit whose rows are stored in pieces: read piece by piece, or joined into a block for each range of rows."""

    name: str
    num_rows: int | None
    num_bytes: int | None
    ranges: tuple[tuple[StoredRows, ...], ...]
    """The pieces of each range. Ranges are small, so that a process needs little memory, however large its unit is."""
    spill_handle: SpillHandle
    arrangement: RowArrangement | None = None

    @property
    def pieces(self) -> tuple[StoredRows, ...]:
        return tuple(piece for pieces in self.ranges for piece in pieces)

    def read(self) -> Iterator[Block]:
        if self.arrangement is None:
            yield from (piece.load() for piece in self.pieces)
        else:
            yield from (self.arrangement.gather(pieces) for pieces in self.ranges if pieces)


@dataclass(frozen=True)
class ZippedUnit:
    """A unit of rows from several datasets, side by side. A duplicate column name gets a number."""

    name: str
    num_rows: int | None
    num_bytes: int | None
    parts: tuple[tuple[StoredRows, ...], ...]
    spill_handles: tuple[SpillHandle, ...]

    def read(self) -> Iterator[Block]:
        columns: dict[str, Any] = {}
        for pieces in self.parts:
            for name, values in Block.concat(piece.load() for piece in pieces).columns.items():
                columns[unused_name(name, columns)] = values
        yield Block(columns, num_rows=self.num_rows)


def unused_name(name: str, columns: Mapping[str, Any]) -> str:
    number, unused = 0, name
    while unused in columns:
        number += 1
        unused = f"{name}_{number}"
    return unused


@dataclass(frozen=True)
class SlicedUnit:
    """Rows `start` to `stop` of a unit."""

    unit: Unit
    start: int
    stop: int

    @property
    def name(self) -> str:
        return f"{self.unit.name} (rows {self.start} to {self.stop})"

    @property
    def num_rows(self) -> int:
        return self.stop - self.start

    @property
    def num_bytes(self) -> int | None:
        num_bytes, num_rows = self.unit.num_bytes, self.unit.num_rows
        return None if num_bytes is None or not num_rows else num_bytes * self.num_rows // num_rows

    def read(self) -> Iterator[Block]:
        passed = 0
        for block in self.unit.read():
            begin, stop = max(self.start - passed, 0), min(self.stop - passed, block.num_rows)
            if begin < stop:
                yield block.slice(begin, stop)
            passed += block.num_rows
            if passed >= self.stop:
                return


@dataclass(frozen=True)
class ChainedUnit:
    """Several units as one unit."""

    name: str
    units: tuple[Unit, ...]

    @property
    def num_rows(self) -> int | None:
        return _sum_if_known([unit.num_rows for unit in self.units])

    @property
    def num_bytes(self) -> int | None:
        return _sum_if_known([unit.num_bytes for unit in self.units])

    def read(self) -> Iterator[Block]:
        for unit in self.units:
            yield from unit.read()


@dataclass(frozen=True)
class TransformedUnit:
    """A unit with transforms that map each row to one row, under a name that is unique in the run."""

    unit: Unit
    name: str
    transforms: tuple[Transform, ...] = ()

    @property
    def num_rows(self) -> int | None:
        return self.unit.num_rows

    @property
    def num_bytes(self) -> int | None:
        return self.unit.num_bytes

    def read(self) -> Iterator[Block]:
        return process_unit(self.unit, self.transforms, TransformScope())


def _sum_if_known(numbers: Sequence[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if len(known) == len(numbers) else None
