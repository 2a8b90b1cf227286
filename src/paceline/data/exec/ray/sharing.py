"""One pass over the rows of an epoch from which several workers take: who has what, and when to go on. Without Ray.

Each block is cut into a piece for each worker, or is one piece for all of them. It counts as in flight until all whom
it has rows for are past it. Workers that have not come yet are waited for, for a while: then the pass goes on without
them, and one that comes later has a pass of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

PATIENCE_S = 10.0
"""How long those that are there, and want more than is kept for all, wait for those that have not come yet."""
SHARED_PATIENCE_S = 1.0
"""The same where each worker reads all rows: some may never come."""


@dataclass(frozen=True, eq=False)
class Piece:
    """What one worker is given of a block."""

    unit: int
    offset: int
    num_rows: int
    """Of the whole block."""
    ref: Any = None
    """To its rows; None if it has none of them."""
    whole: bool = False
    """All rows are its own, and the reference is to the block itself."""


@dataclass(eq=False)
class _Held:
    """A block in flight, and the ranks that are not past it."""

    num_bytes: int
    ranks: set[int]


@dataclass(eq=False)
class Taker:
    """A worker that takes from a pass."""

    rank: int
    waiting: deque[Piece] = field(default_factory=deque)
    """Not told of yet."""
    told: int = 0
    passed: int = 0
    asks: bool = False
    """It waits to be told of more."""

    @property
    def starves(self) -> bool:
        return self.asks and not self.waiting and self.told == self.passed


class Pass:
    def __init__(self, ranks: Iterable[int], patience_s: float) -> None:
        """`ranks` are those that are to come."""
        self.takers: dict[int, Taker] = {}
        """By rank."""
        self.in_flight = 0
        """Bytes, those of blocks that are not cut yet included."""
        self._kept: dict[int, list[Piece]] = {rank: [] for rank in ranks}
        """For those that have not come: all pieces from the first on."""
        self._blocks: deque[_Held] = deque()
        self._base = 0
        """So many blocks are forgotten."""
        self._uncut: deque[int] = deque()
        self._patience_s = patience_s
        self._patient_until: float | None = None
        """From when on those that have not come are given up, once they are waited for."""
        self.ended = False
        self.closed = False
        """Nobody takes from it, nor will."""

    def can_join(self, rank: int) -> bool:
        return rank in self._kept and not self.closed

    def join(self, rank: int) -> Taker:
        taker = self.takers[rank] = Taker(rank, deque(self._kept.pop(rank)))
        return taker

    def leave(self, taker: Taker, now: float) -> None:
        """It takes no more, and holds nothing."""
        if self.takers.get(taker.rank) is taker:
            del self.takers[taker.rank]
            self._release({taker.rank})
            self.look(now)

    def came(self, num_bytes: int) -> None:
        """A block has come, and is still to be cut."""
        self._uncut.append(num_bytes)
        self.in_flight += num_bytes

    def cut(self, pieces: Mapping[int, Piece]) -> None:
        """The first block that was to be cut is: a piece for each rank, be it one without rows."""
        held = _Held(self._uncut.popleft(), set())
        for rank, piece in pieces.items():
            if rank in self.takers:
                self.takers[rank].waiting.append(piece)
            elif rank in self._kept:
                self._kept[rank].append(piece)
            else:
                continue
            if piece.ref is not None:
                held.ranks.add(rank)
        self._blocks.append(held)
        if not held.ranks:
            self.in_flight -= held.num_bytes

    def tell(self, taker: Taker) -> list[Piece]:
        """What is new for a taker."""
        found = list(taker.waiting)
        taker.waiting.clear()
        taker.told += len(found)
        return found

    def passed(self, taker: Taker, num: int) -> None:
        """A taker is done with its first so many pieces."""
        first, last = taker.passed, max(taker.passed, min(num, taker.told))
        taker.passed = last
        self._release({taker.rank}, first, last)

    def wants_more(self, room: int, now: float) -> bool:
        """Whether to go on to the next block, with so many bytes free.

        With none, it is for those that have nothing left, and would wait for ever.
        """
        if self.ended or self.closed:
            return False
        if room > 0:
            return True
        if not any(taker.starves for taker in self.takers.values()):
            return False
        missing = set(self._kept)
        if any(held.ranks & missing for held in self._blocks):
            if self._is_patient(now):
                return False
            self._kept.clear()
            self._release(missing)
        return True

    def look(self, now: float) -> float | None:
        """What has come with time alone; and after how long to look again."""
        if not self.takers and not (self.ended and self._kept and self._is_patient(now)):
            self.closed = True
        if self.closed or self._patient_until is None or now >= self._patient_until:
            return None
        return self._patient_until - now

    def _is_patient(self, now: float) -> bool:
        """Whether those that have not come are still waited for."""
        if self._patient_until is None:
            self._patient_until = now + self._patience_s
        return now < self._patient_until

    def _release(self, ranks: set[int], first: int = 0, last: int | None = None) -> None:
        """The ranks are past these blocks."""
        last = self._base + len(self._blocks) if last is None else last
        for index in range(max(first - self._base, 0), last - self._base):
            held = self._blocks[index]
            if held.ranks:
                held.ranks -= ranks
                self.in_flight -= 0 if held.ranks else held.num_bytes
        # One that is yet to come counts from the first.
        least = 0 if self._kept else min((taker.passed for taker in self.takers.values()), default=0)
        while self._base < least and self._blocks and not self._blocks[0].ranks:
            self._blocks.popleft()
            self._base += 1
