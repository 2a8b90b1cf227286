"""The arenas that a service keeps: lent, taken back, used again, and let go when there are more than are needed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import count

from paceline.data.exec import arena


@dataclass
class Arena:
    number: int
    fd: int
    size: int
    touched: int = 0
    """How much of it has ever been written: that much memory it takes."""


class Stock:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._numbers = count(1)
        self._free: list[Arena] = []
        self._used: dict[int, Arena] = {}
        self.gone: list[int] = []
        """Arenas that were let go since somebody last looked: those who have mapped them are to forget them."""

    def take(self, nbytes: int) -> Arena:
        """One with room for so many bytes: the one that was used last, which is the most likely to be in a cache."""
        for index in range(len(self._free) - 1, -1, -1):
            if self._free[index].size >= nbytes:
                found = self._free.pop(index)
                break
        else:
            fd, size = arena.made(nbytes)
            found = Arena(next(self._numbers), fd, size)
        found.touched = max(found.touched, nbytes)
        self._used[found.number] = found
        return found

    def fd(self, number: int) -> int:
        return self._used[number].fd

    def give_back(self, number: int) -> None:
        self._free.append(self._used.pop(number))
        held = sum(each.touched for each in self._free)
        while held > self._limit:
            oldest = self._free.pop(0)
            held -= oldest.touched
            self._let_go(oldest)

    def close(self) -> None:
        """Views that somebody has stay what they are."""
        for each in self._free:
            self._let_go(each)
        for each in self._used.values():
            os.close(each.fd)
        self._free, self._used = [], {}

    def _let_go(self, each: Arena) -> None:
        # The mappings of others would keep the memory until they hear of it; nobody looks at it any more.
        os.ftruncate(each.fd, 0)
        os.close(each.fd)
        self.gone.append(each.number)
