"""Blocks in shared memory: one copy to write them, none to read them.

An arena is anonymous memory that disappears with its last holder. Its size is only address space: pages are allocated
on first write, and are reused for later blocks. `ArenaPool` lends the arenas of a service, and reuses them.
"""

from __future__ import annotations

import math
import mmap
import os
from dataclasses import dataclass
from itertools import count

from paceline._core import system
from paceline.data.exec.packed_blocks import BlockLayout

MIN_ARENA_BYTES = 64 << 20
"""Large enough for nearly all blocks, so that any free arena fits any of them."""


def create_arena(nbytes: int) -> tuple[int, int]:
    """Create an arena of at least `nbytes`; return its descriptor and its size."""
    size = max(MIN_ARENA_BYTES, math.ceil(nbytes / mmap.PAGESIZE) * mmap.PAGESIZE)
    fd = system.create_anonymous_file("paceline-block")
    try:
        os.ftruncate(fd, size)
    except BaseException:
        os.close(fd)
        raise
    return fd, size


def map_arena(fd: int) -> mmap.mmap | None:
    """Map an arena into this process; None if it was freed meanwhile. Closes the descriptor: a mapping needs none."""
    try:
        return mmap.mmap(fd, 0) if os.fstat(fd).st_size else None
    finally:
        os.close(fd)


@dataclass
class PooledArena:
    number: int
    fd: int
    size: int
    touched_bytes: int = 0
    """The most that was ever written to it, which is the memory it occupies."""


class ArenaPool:
    def __init__(self, limit: int) -> None:
        self.blocks: dict[int, PooledArena] = {}
        """Where each block is, or is being written."""
        self.layouts: dict[int, BlockLayout] = {}
        """Of the blocks that are written."""
        self._limit = limit
        self._numbers = count(1)
        self._free: list[PooledArena] = []
        self._freed: list[int] = []

    def lend_arena(self, block: int, nbytes: int) -> PooledArena:
        """Lend an arena with space for `nbytes`: the most recently used one, which is most likely still cached."""
        for index in range(len(self._free) - 1, -1, -1):
            if self._free[index].size >= nbytes:
                pooled = self._free.pop(index)
                break
        else:
            fd, size = create_arena(nbytes)
            pooled = PooledArena(next(self._numbers), fd, size)
        pooled.touched_bytes = max(pooled.touched_bytes, nbytes)
        self.blocks[block] = pooled
        return pooled

    def free_block(self, block: int) -> None:
        self.layouts.pop(block, None)
        self._free.append(self.blocks.pop(block))
        used_bytes = sum(each.touched_bytes for each in (*self._free, *self.blocks.values()))
        while self._free and used_bytes > self._limit:
            oldest = self._free.pop(0)
            used_bytes -= oldest.touched_bytes
            self._free_arena(oldest)

    def take_freed(self) -> list[int]:
        """Return the arenas freed since the last call; processes that have mapped them must unmap them."""
        freed, self._freed = self._freed, []
        return freed

    def close(self) -> None:
        """Existing views stay valid."""
        for each in self._free:
            self._free_arena(each)
        for each in self.blocks.values():
            os.close(each.fd)
        self._free, self.blocks = [], {}

    def _free_arena(self, each: PooledArena) -> None:
        # Mappings in other processes would keep the memory until they are notified, and nobody reads it any more.
        os.ftruncate(each.fd, 0)
        os.close(each.fd)
        self._freed.append(each.number)
