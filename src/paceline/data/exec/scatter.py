"""The two halves of an exchange: units set their rows aside in an order, then new units each take a range of them.

The first half is a transform at the end of every chain. What it gives to whoever runs it is not rows but receipts:
where the rows lie. The second half is units like any others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from paceline.data.block import Block
from paceline.data.exec import packed
from paceline.data.exec.inline import processed
from paceline.data.exec.spill import Held, Piece, Stores, opened_pieces
from paceline.data.keys import Keys
from paceline.data.order import hashed
from paceline.data.source import Unit
from paceline.data.transform import Scope, Transform

HASH = "\0hash"
"""The column of what a row is sorted by in a shuffle, while it is on its way."""

_PLACE_BITS = 40


class Aside(Protocol):
    """Some rows that were set aside: a `Piece` on one machine."""

    @property
    def num_rows(self) -> int: ...

    def part(self, begin: int, stop: int) -> Aside:
        """Some of them."""
        ...

    def load(self) -> Block: ...


class Arrangement(Protocol):
    def arranged(self, block: Block, place: int, first: int) -> tuple[Block, np.ndarray[Any, Any] | None]:
        """What to set aside of some rows of the unit in a place, `first` of them on; and in which order."""
        ...

    def gathered(self, pieces: Sequence[Aside]) -> Block:
        """Makes one block of pieces that were arranged."""
        ...


@dataclass(frozen=True)
class AsTheyCome:
    def arranged(self, block: Block, place: int, first: int) -> tuple[Block, np.ndarray[Any, Any] | None]:
        return block, None

    def gathered(self, pieces: Sequence[Aside]) -> Block:
        return Block.concat(piece.load() for piece in pieces)


@dataclass(frozen=True)
class ByHash:
    """By a hash of where a row is: its unit's place and its number there. So the order depends on nothing else."""

    seed: int
    epoch: int

    def arranged(self, block: Block, place: int, first: int) -> tuple[Block, np.ndarray[Any, Any] | None]:
        begin = (place << _PLACE_BITS) + first
        hashes = hashed(np.arange(begin, begin + block.num_rows, dtype=np.uint64), self.seed, self.epoch)
        # No two are equal, so that it need not be a stable sort.
        return block.with_column(HASH, hashes), np.argsort(hashes)

    def gathered(self, pieces: Sequence[Aside]) -> Block:
        lying = [piece for piece in pieces if isinstance(piece, Piece)]
        if len(lying) == len(pieces):
            with opened_pieces(lying) as parts:
                return packed.sorted_by(parts, HASH)
        joined = Block.concat(piece.load() for piece in pieces)
        return joined.drop([HASH]).take(np.argsort(joined.column(HASH)))


@dataclass(frozen=True)
class ByKeys:
    keys: Keys

    def arranged(self, block: Block, place: int, first: int) -> tuple[Block, np.ndarray[Any, Any] | None]:
        return block, self.keys.order(block)

    def gathered(self, pieces: Sequence[Aside]) -> Block:
        joined = Block.concat(piece.load() for piece in pieces)
        return joined.take(self.keys.order(joined))


@dataclass(frozen=True)
class Scatter(Transform):
    """Sets the rows of each unit aside, and gives receipts."""

    stores: Stores
    places: Mapping[str, int]
    arrangement: Arrangement
    chunk_bytes: int
    """Rows are arranged so many bytes at a time."""
    at_most: int | None = None
    """More rows of one unit are not needed."""

    @property
    def name(self) -> str:
        return "exchange"

    def apply(self, blocks: Iterator[Block], scope: Scope) -> Iterator[Block]:
        return self._scattered(blocks, self.places[scope.unit])

    def _scattered(self, blocks: Iterator[Block], place: int) -> Iterator[Block]:
        first = 0
        with self.stores.writer(place) as writer:
            for chunk in chunks(blocks, self.chunk_bytes, self.at_most):
                block, order = self.arrangement.arranged(packed.numeric(chunk), place, first)
                piece = writer.write(block, order)
                yield receipt(place, piece, in_memory=piece.path == self.stores.memory, num_bytes=block.nbytes)
                first += chunk.num_rows


@dataclass(frozen=True)
class Arranged(Transform):
    """Gives the rows of each unit as they are to be set aside, for whoever runs it to keep."""

    places: Mapping[str, int]
    arrangement: Arrangement
    chunk_bytes: int
    at_most: int | None = None

    @property
    def name(self) -> str:
        return "exchange"

    def apply(self, blocks: Iterator[Block], scope: Scope) -> Iterator[Block]:
        place, first = self.places[scope.unit], 0
        for chunk in chunks(blocks, self.chunk_bytes, self.at_most):
            block, order = self.arrangement.arranged(packed.numeric(chunk), place, first)
            first += chunk.num_rows
            yield block if order is None else _in_order(block, order)


def _in_order(block: Block, order: np.ndarray[Any, Any]) -> Block:
    taken = block.take(order)
    # So that parts are as many as they are elsewhere: Arrow counts the bytes of a slice and of a copy in two ways.
    taken.nbytes = block.nbytes
    return taken


def chunks(blocks: Iterator[Block], num_bytes: int, at_most: int | None = None) -> Iterator[Block]:
    """Blocks joined until they have so many bytes; of the first `at_most` rows only."""
    held: list[Block] = []
    size = 0
    left = at_most
    for block in blocks:
        if left is not None:
            block = block.slice(0, left)
            left -= block.num_rows
        if block.num_rows:
            held.append(block)
            size += block.nbytes
        if held and size >= num_bytes:
            yield Block.concat(held)
            held, size = [], 0
        if left == 0:
            break
    if held:
        yield Block.concat(held)


def receipt(place: int, piece: Piece, *, in_memory: bool, num_bytes: int) -> Block:
    numbers = (place, piece.offset, piece.length, piece.num_rows, num_bytes, int(in_memory))
    names = ("place", "offset", "length", "num_rows", "num_bytes", "in_memory")
    return Block({name: np.array([number], np.int64) for name, number in zip(names, numbers, strict=True)})


@dataclass(frozen=True)
class Chunk:
    """Rows that were arranged together; what a receipt says."""

    place: int
    piece: Aside
    num_bytes: int

    @property
    def num_rows(self) -> int:
        return self.piece.num_rows

    def part(self, begin: int, stop: int) -> Aside:
        return self.piece.part(begin, stop)


def chunks_of(receipts: Block, stores: Stores) -> Iterator[Chunk]:
    for row in receipts.rows():
        # A receipt has numbers only; how the paths are made is agreed.
        path = stores.memory if row["in_memory"] else stores.path(row["place"])
        assert path is not None
        piece = Piece(path, row["offset"], row["length"], 0, row["num_rows"])
        yield Chunk(row["place"], piece, row["num_bytes"])


@dataclass(frozen=True)
class Gathered:
    """A unit whose rows lie in pieces: made into one block, or given piece by piece."""

    name: str
    num_rows: int | None
    num_bytes: int | None
    pieces: tuple[Aside, ...]
    held: Held
    arrangement: Arrangement | None = None

    def read(self) -> Iterator[Block]:
        if self.arrangement is None:
            yield from (piece.load() for piece in self.pieces)
        elif self.pieces:
            yield self.arrangement.gathered(self.pieces)


@dataclass(frozen=True)
class Zipped:
    """A unit of rows of several datasets side by side. A name that was there already gets a number."""

    name: str
    num_rows: int | None
    num_bytes: int | None
    parts: tuple[tuple[Aside, ...], ...]
    held: tuple[Held, ...]

    def read(self) -> Iterator[Block]:
        columns: dict[str, Any] = {}
        for pieces in self.parts:
            for name, values in Block.concat(piece.load() for piece in pieces).columns.items():
                columns[unused(name, columns)] = values
        yield Block(columns, num_rows=self.num_rows)


def unused(name: str, taken: Mapping[str, Any]) -> str:
    number, found = 0, name
    while found in taken:
        number += 1
        found = f"{name}_{number}"
    return found


@dataclass(frozen=True)
class Cut:
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
        whole, rows = self.unit.num_bytes, self.unit.num_rows
        return None if whole is None or not rows else whole * self.num_rows // rows

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
class Chained:
    """Several units as one."""

    name: str
    units: tuple[Unit, ...]

    @property
    def num_rows(self) -> int | None:
        return _sum([unit.num_rows for unit in self.units])

    @property
    def num_bytes(self) -> int | None:
        return _sum([unit.num_bytes for unit in self.units])

    def read(self) -> Iterator[Block]:
        for unit in self.units:
            yield from unit.read()


@dataclass(frozen=True)
class Through:
    """A unit with transforms that give a row for each row."""

    unit: Unit
    transforms: tuple[Transform, ...]

    @property
    def name(self) -> str:
        return self.unit.name

    @property
    def num_rows(self) -> int | None:
        return self.unit.num_rows

    @property
    def num_bytes(self) -> int | None:
        return self.unit.num_bytes

    def read(self) -> Iterator[Block]:
        return processed(self.unit, self.transforms, Scope())


@dataclass(frozen=True)
class Renamed:
    """A unit under a name that no other one of the run has."""

    unit: Unit
    name: str

    @property
    def num_rows(self) -> int | None:
        return self.unit.num_rows

    @property
    def num_bytes(self) -> int | None:
        return self.unit.num_bytes

    def read(self) -> Iterator[Block]:
        return self.unit.read()


def _sum(numbers: Sequence[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if len(known) == len(numbers) else None
