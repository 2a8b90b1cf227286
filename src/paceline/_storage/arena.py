"""The memory that snapshots are copied into, and the copying itself.

A tensor is copied once, from where it is to where it is written from, and the pages that were faulted in for
one save are kept for the next.
"""

import contextlib
import ctypes
import math
import mmap
import sys
import threading
from typing import Any

from paceline._core.system import on_linux
from paceline._storage.leaves import same_width
from paceline._storage.pinned import Pinned, Placed, gap_after

_MADV_POPULATE_WRITE = 23
_POPULATE_AT_ONCE = 64 << 20

_PIECE = 8 << 20
_WORTH_A_THREAD = 32 << 20

_Move = tuple[int, int, int]
"""Target address, source address, number of bytes."""


class Arena:
    """Memory that snapshots are copied into, kept between saves: page faults, not the copy, are the cost.

    One snapshot at a time lives in it: the next one overwrites it.
    """

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None
        self.pinned = Pinned()
        """For values on a GPU."""

    def reserve(self, nbytes: int) -> memoryview:
        """The first `nbytes` of the arena, which grows to hold them."""
        if self._memory is None or len(self._memory) < nbytes:
            self._memory = None  # the old one goes first, or both would have to fit
            self._memory = _fresh_memory(nbytes)
        return memoryview(self._memory)[:nbytes]

    def close(self) -> None:
        """Let the memory go, as soon as no snapshot refers to it."""
        self._memory = None
        self.pinned.close()


def copy_into(placed: Placed, memory: memoryview) -> None:
    if not memory:
        return
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    moves: list[_Move] = []
    for leaf, offset in placed:
        value, nbytes = leaf.value, leaf.nbytes
        if not nbytes:
            continue
        if leaf.kind == "tensor":
            if value.is_contiguous():
                moves.append((address + offset, value.data_ptr(), nbytes))
            else:
                _copy_tensor(value, memory, offset)
        elif leaf.kind == "array" and value.flags.c_contiguous:
            moves.append((address + offset, value.ctypes.data, nbytes))
        elif leaf.kind == "array":
            numpy = sys.modules["numpy"]
            numpy.copyto(numpy.ndarray(value.shape, value.dtype, memory, offset), value)
        else:
            memory[offset : offset + nbytes] = value
        memory[offset + nbytes : offset + nbytes + gap_after(nbytes)] = bytes(gap_after(nbytes))
    _move(moves)


def _move(moves: list[_Move]) -> None:
    """Copy plain memory, with a second thread where that pays.

    Not torch's threaded copy: it gives each thread its part, and where one core is busy all wait for that part. Here
    whoever is free takes the next piece.
    """
    pieces = iter(
        [
            (target + start, source + start, min(_PIECE, nbytes - start))
            for target, source, nbytes in moves
            for start in range(0, nbytes, _PIECE)
        ]
    )

    def work() -> None:
        for target, source, nbytes in pieces:
            ctypes.memmove(target, source, nbytes)  # without the interpreter's lock

    helper = threading.Thread(target=work, name="paceline-snapshot", daemon=True)
    worth_it = sum(nbytes for _, _, nbytes in moves) >= _WORTH_A_THREAD
    if worth_it:
        helper.start()
    work()
    if worth_it:
        helper.join()


def _copy_tensor(value: Any, memory: memoryview, offset: int) -> None:
    torch = sys.modules["torch"]
    source = same_width(value.detach(), torch)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    whole[offset : offset + value.nbytes].view(source.dtype).view(source.shape).copy_(source)


def _fresh_memory(nbytes: int) -> mmap.mmap:
    """Anonymous memory, shared so that a fork of this process does not make every page fault again."""
    memory = mmap.mmap(-1, math.ceil(max(nbytes, 1) / mmap.PAGESIZE) * mmap.PAGESIZE)
    if on_linux():
        # In steps: the interpreter's lock is held during each. A kernel before 5.14 knows no such advice.
        with contextlib.suppress(OSError):
            for start in range(0, len(memory), _POPULATE_AT_ONCE):
                length = min(_POPULATE_AT_ONCE, len(memory) - start)
                memory.madvise(_MADV_POPULATE_WRITE, start, length)
    return memory
