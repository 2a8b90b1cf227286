"""One pass over the rows of an epoch, shared by workers: tracks who has what, and when to continue. Without Ray.

Each block is cut into one piece per worker, or is one piece for all of them. It counts as in flight until every worker
it has rows for has passed it. The pass waits a while for workers that have not joined; then it continues without them,
and one that joins later gets its own pass.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

PATIENCE_S = 10.0
"""How long workers that want more than is kept for all wait for workers that have not joined."""
SHARED_PATIENCE_S = 1.0
"""The same where each worker reads all rows: some workers may never join."""


@dataclass(frozen=True, eq=False)
class WorkerPiece:
    """One worker's piece of a block."""

    unit: int
    offset: int
    num_rows: int
    """In the whole block."""
    ref: Any = None
    """Reference to its rows; None if it has none."""
    is_whole: bool = False
    """The worker owns all rows, and the reference is to the block itself."""


@dataclass(eq=False)
class _BlockInFlight:
    """A block in flight, and the ranks that have not passed it."""

    num_bytes: int
    ranks: set[int]


@dataclass(eq=False)
class PassReader:
    """A worker that takes from a pass."""

    rank: int
    waiting: deque[WorkerPiece] = field(default_factory=deque)
    num_sent: int = 0
    num_passed: int = 0
    is_asking: bool = False

    @property
    def is_starving(self) -> bool:
        return self.is_asking and not self.waiting and self.num_sent == self.num_passed


class SharedPass:
    def __init__(self, ranks: Iterable[int], patience_s: float) -> None:
        """`ranks` are expected to join."""
        self.readers: dict[int, PassReader] = {}
        """By rank."""
        self.in_flight = 0
        """Bytes in flight, including blocks that are not cut yet."""
        self._kept_pieces: dict[int, list[WorkerPiece]] = {rank: [] for rank in ranks}
        """For ranks that have not joined: all pieces from the first on."""
        self._blocks: deque[_BlockInFlight] = deque()
        self._base = 0
        """The number of blocks already dropped."""
        self._uncut: deque[int] = deque()
        self._patience_s = patience_s
        self._patient_until: float | None = None
        """When to give up on ranks that have not joined; set once the pass waits for them."""
        self.ended = False
        self.closed = False
        """Nobody takes from it, or ever will."""

    def can_join(self, rank: int) -> bool:
        return rank in self._kept_pieces and not self.closed

    def join(self, rank: int) -> PassReader:
        reader = self.readers[rank] = PassReader(rank, deque(self._kept_pieces.pop(rank)))
        return reader

    def leave(self, reader: PassReader, now: float) -> None:
        """The reader takes no more, and holds nothing."""
        if self.readers.get(reader.rank) is reader:
            del self.readers[reader.rank]
            self._release({reader.rank})
            self.check_patience(now)

    def add_block(self, num_bytes: int) -> None:
        """A block has arrived and is still to be cut."""
        self._uncut.append(num_bytes)
        self.in_flight += num_bytes

    def add_pieces(self, pieces: Mapping[int, WorkerPiece]) -> None:
        """The oldest uncut block is cut: one piece per rank, even without rows."""
        block = _BlockInFlight(self._uncut.popleft(), set())
        for rank, piece in pieces.items():
            if rank in self.readers:
                self.readers[rank].waiting.append(piece)
            elif rank in self._kept_pieces:
                self._kept_pieces[rank].append(piece)
            else:
                continue
            if piece.ref is not None:
                block.ranks.add(rank)
        self._blocks.append(block)
        if not block.ranks:
            self.in_flight -= block.num_bytes

    def take_pieces(self, reader: PassReader) -> list[WorkerPiece]:
        """Return the new pieces for a reader."""
        pieces = list(reader.waiting)
        reader.waiting.clear()
        reader.num_sent += len(pieces)
        return pieces

    def mark_passed(self, reader: PassReader, num: int) -> None:
        """The reader has passed its first `num` pieces."""
        first, last = reader.num_passed, max(reader.num_passed, min(num, reader.num_sent))
        reader.num_passed = last
        self._release({reader.rank}, first, last)

    def wants_more(self, room: int, now: float) -> bool:
        """Whether to continue with the next block, with `room` bytes free.

        Without room, only if a reader has nothing left and would wait forever.
        """
        if self.ended or self.closed:
            return False
        if room > 0:
            return True
        if not any(reader.is_starving for reader in self.readers.values()):
            return False
        missing = set(self._kept_pieces)
        if any(block.ranks & missing for block in self._blocks):
            if self._is_patient(now):
                return False
            self._kept_pieces.clear()
            self._release(missing)
        return True

    def check_patience(self, now: float) -> float | None:
        """Apply the passage of time; return after how many seconds to check again."""
        if not self.readers and not (self.ended and self._kept_pieces and self._is_patient(now)):
            self.closed = True
        if self.closed or self._patient_until is None or now >= self._patient_until:
            return None
        return self._patient_until - now

    def _is_patient(self, now: float) -> bool:
        """Whether to keep waiting for ranks that have not joined."""
        if self._patient_until is None:
            self._patient_until = now + self._patience_s
        return now < self._patient_until

    def _release(self, ranks: set[int], first: int = 0, last: int | None = None) -> None:
        """Mark these blocks as passed by the ranks."""
        last = self._base + len(self._blocks) if last is None else last
        for index in range(max(first - self._base, 0), last - self._base):
            block = self._blocks[index]
            if block.ranks:
                block.ranks -= ranks
                self.in_flight -= 0 if block.ranks else block.num_bytes
        # A rank still to join starts from the first block.
        least = 0 if self._kept_pieces else min((reader.num_passed for reader in self.readers.values()), default=0)
        while self._base < least and self._blocks and not self._blocks[0].ranks:
            self._blocks.popleft()
            self._base += 1
