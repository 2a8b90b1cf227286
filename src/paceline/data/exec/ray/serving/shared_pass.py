"""One pass over the rows of an epoch, shared by workers: tracks who has what, and when to continue. Without Ray.

Each block is cut into one piece per worker, or is one piece for all of them. Its rows count as in flight until every
worker they are for has passed them, or while they are in a file: rows that wait for a worker that is behind are moved
there when others need the room. The pass waits a while for workers that have not joined; then it continues without
them, and one that joins later gets its own pass.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

PATIENCE_S = 10.0
"""How long workers that want more than is kept for all wait for workers that have not joined."""
SHARED_PATIENCE_S = 1.0
"""The same where each worker reads all rows: some workers may never join."""
_MIN_SENT = 2
"""A worker is sent so many pieces, however large: it fetches one while it uses the other."""


@dataclass(eq=False)
class PieceRows:
    """The rows of a piece, for one worker or several: an object in the object store, or a place in a file."""

    num_bytes: int
    ref: Any = None
    """Reference to the object, until all workers have got it."""
    place: Any = None
    """Where the rows are if they are in a file."""
    unsent: set[int] = field(default_factory=set)
    """Ranks that have not got them."""
    unpassed: set[int] = field(default_factory=set)
    """Ranks that have not passed them."""

    @property
    def can_move(self) -> bool:
        """Whether they can be moved to a file: they are in the object store, and no worker has got them."""
        return self.place is None and bool(self.unpassed) and self.unsent == self.unpassed


@dataclass(frozen=True, eq=False)
class WorkerPiece:
    """One worker's piece of a block."""

    unit: int
    offset: int
    num_rows: int
    """In the whole block."""
    rows: PieceRows | None = None
    """None if it has none."""
    is_whole: bool = False
    """The worker owns all rows, and they are the block itself."""


@dataclass(eq=False)
class PassReader:
    """A worker that takes from a pass."""

    rank: int
    waiting: deque[WorkerPiece] = field(default_factory=deque)
    sent_bytes: deque[int] = field(default_factory=deque)
    """The sizes of the pieces it has got and not passed."""
    num_passed: int = 0
    is_asking: bool = False

    @property
    def is_starving(self) -> bool:
        return self.is_asking and not self.waiting and not self.sent_bytes


class SharedPass:
    def __init__(self, ranks: Iterable[int], patience_s: float, share: int) -> None:
        """`ranks` are expected to join. Each has got at most `share` bytes at a time, or two pieces."""
        self.readers: dict[int, PassReader] = {}
        """By rank."""
        self.in_flight = 0
        """Bytes in flight, including blocks that are not cut yet."""
        self.unneeded_places: list[Any] = []
        """Places in files whose rows nobody needs any more. The caller takes them out."""
        self._kept_pieces: dict[int, list[WorkerPiece]] = {rank: [] for rank in ranks}
        """For ranks that have not joined: all pieces from the first on."""
        self._blocks: deque[dict[int, PieceRows]] = deque()
        """For each block, the rows that a rank has not passed, by rank."""
        self._base = 0
        """The number of blocks already dropped."""
        self._uncut: deque[int] = deque()
        self._share = share
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
            reader.waiting.clear()
            self._release({reader.rank})
            self.check_patience(now)

    def add_block(self, num_bytes: int) -> None:
        """A block has arrived and is still to be cut."""
        self._uncut.append(num_bytes)
        self.in_flight += num_bytes

    def add_pieces(self, pieces: Mapping[int, WorkerPiece]) -> None:
        """The oldest uncut block is cut: one piece per rank, even without rows."""
        self.in_flight -= self._uncut.popleft()
        rows_by_rank = {}
        for rank, piece in pieces.items():
            if rank in self.readers:
                self.readers[rank].waiting.append(piece)
            elif rank in self._kept_pieces:
                self._kept_pieces[rank].append(piece)
            else:
                continue
            if (rows := piece.rows) is not None:
                self.in_flight += 0 if rows.unpassed else rows.num_bytes
                rows.unsent.add(rank)
                rows.unpassed.add(rank)
                rows_by_rank[rank] = rows
        self._blocks.append(rows_by_rank)

    def needs_file(self, reader: PassReader) -> bool:
        """Whether the next piece for a reader is in a file."""
        rows = reader.waiting[0].rows if reader.waiting else None
        return rows is not None and rows.place is not None

    def take_pieces(self, reader: PassReader, room: int, load: Callable[[Any], Any]) -> list[tuple[WorkerPiece, Any]]:
        """Return the next pieces that a reader may have, each with a reference to its rows.

        `load` starts to load rows from a place in a file, and returns the reference. Without room, only a reader that
        has nothing gets one of those.
        """
        pieces: list[tuple[WorkerPiece, Any]] = []
        num_held, held_bytes = sum(map(bool, reader.sent_bytes)), sum(reader.sent_bytes)
        while reader.waiting:
            rows = reader.waiting[0].rows
            if rows is None:
                reader.sent_bytes.append(0)
                pieces.append((reader.waiting.popleft(), None))
                continue
            if num_held >= _MIN_SENT and held_bytes + rows.num_bytes > self._share:
                break
            if rows.place is not None:
                if room <= 0 and num_held:
                    break
                room -= rows.num_bytes
                self.in_flight += rows.num_bytes
                rows.ref, rows.place = load(rows.place), None
            pieces.append((reader.waiting.popleft(), rows.ref))
            reader.sent_bytes.append(rows.num_bytes)
            num_held, held_bytes = num_held + 1, held_bytes + rows.num_bytes
            self._mark_sent(rows, reader.rank)
        return pieces

    def mark_passed(self, reader: PassReader, num: int) -> None:
        """The reader has passed its first `num` pieces."""
        first, last = reader.num_passed, min(num, reader.num_passed + len(reader.sent_bytes))
        if last > first:
            for _ in range(last - first):
                reader.sent_bytes.popleft()
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
        if any(block.keys() & missing for block in self._blocks):
            if self._is_patient(now):
                return False
            self._kept_pieces.clear()
            self._release(missing)
        return True

    def choose_rows_to_move(self, num_bytes: int) -> list[PieceRows]:
        """Choose rows to move to files, at least this many bytes if there are: those that are needed last."""
        chosen: dict[int, PieceRows] = {}
        for block in reversed(self._blocks):
            for rows in block.values():
                if num_bytes > 0 and rows.can_move and id(rows) not in chosen:
                    chosen[id(rows)] = rows
                    num_bytes -= rows.num_bytes
        return list(chosen.values())

    def mark_moved(self, rows: PieceRows, place: Any) -> None:
        """The rows are in a file now. If a worker got them meanwhile, or none needs them, they need not be there."""
        if rows.can_move:
            self.in_flight -= rows.num_bytes
            rows.ref, rows.place = None, place
        else:
            self.unneeded_places.append(place)

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
            for rank in ranks & block.keys():
                self._mark_passed(block.pop(rank), rank)
        # A rank still to join starts from the first block.
        least = 0 if self._kept_pieces else min((reader.num_passed for reader in self.readers.values()), default=0)
        while self._base < least and self._blocks and not self._blocks[0]:
            self._blocks.popleft()
            self._base += 1

    def _mark_sent(self, rows: PieceRows, rank: int) -> None:
        rows.unsent.discard(rank)
        if not rows.unsent:
            rows.ref = None

    def _mark_passed(self, rows: PieceRows, rank: int) -> None:
        rows.unpassed.discard(rank)
        self._mark_sent(rows, rank)
        if rows.unpassed:
            return
        if rows.place is None:
            self.in_flight -= rows.num_bytes
        else:
            self.unneeded_places.append(rows.place)
            rows.place = None
