"""The arenas of a service: lent, returned, reused, and freed when there are more than needed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import count

from paceline.data.exec import arena


@dataclass
class PooledArena:
    number: int
    fd: int
    size: int
    touched_bytes: int = 0
    """The most that was ever written to it, which is the memory it occupies."""


class ArenaPool:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._numbers = count(1)
        self._free: list[PooledArena] = []
        self._used: dict[int, PooledArena] = {}
        self.freed: list[int] = []
        """Arenas freed since the last look; processes that have mapped them must unmap them."""

    def take_arena(self, nbytes: int) -> PooledArena:
        """Take an arena with space for `nbytes`: the most recently used one, which is most likely still cached."""
        for index in range(len(self._free) - 1, -1, -1):
            if self._free[index].size >= nbytes:
                found = self._free.pop(index)
                break
        else:
            fd, size = arena.create_arena(nbytes)
            found = PooledArena(next(self._numbers), fd, size)
        found.touched_bytes = max(found.touched_bytes, nbytes)
        self._used[found.number] = found
        return found

    def fd(self, number: int) -> int:
        return self._used[number].fd

    def return_arena(self, number: int) -> None:
        self._free.append(self._used.pop(number))
        held = sum(each.touched_bytes for each in self._free)
        while held > self._limit:
            oldest = self._free.pop(0)
            held -= oldest.touched_bytes
            self._free_arena(oldest)

    def close(self) -> None:
        """Existing views stay valid."""
        for each in self._free:
            self._free_arena(each)
        for each in self._used.values():
            os.close(each.fd)
        self._free, self._used = [], {}

    def _free_arena(self, each: PooledArena) -> None:
        # Mappings in other processes would keep the memory until they are notified, and nobody reads it any more.
        os.ftruncate(each.fd, 0)
        os.close(each.fd)
        self.freed.append(each.number)
