"""The memory for snapshots, and the copy into it.

Each tensor is copied once, from where it is to the memory that is written to disk. Pages that were faulted in for one
save are kept for the next.
"""

import contextlib
import ctypes
import math
import mmap
import sys
import threading
from typing import Any

from paceline._core.system import is_linux
from paceline._storage.pinned_memory import PinnedMemory, PlacedLeaves, padding_after
from paceline._storage.state_leaves import view_as_copyable

_MADV_POPULATE_WRITE = 23
_POPULATE_STEP_BYTES = 64 << 20

_PIECE_BYTES = 8 << 20
_MIN_THREADED_BYTES = 32 << 20

_MemoryCopy = tuple[int, int, int]
"""Target address, source address, number of bytes."""


class SnapshotMemory:
    """Holds one snapshot; the next one overwrites it. Kept between saves: page faults cost more than the copy."""

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None
        self.pinned = PinnedMemory()
        """For values on a GPU."""

    def reserve(self, nbytes: int) -> memoryview:
        """Return the first `nbytes` of the memory, which grows as needed."""
        if self._memory is None or len(self._memory) < nbytes:
            self._memory = None  # free the old one first, or both would have to fit
            self._memory = _allocate_memory(nbytes)
        return memoryview(self._memory)[:nbytes]

    def close(self) -> None:
        """Release the memory, as soon as no snapshot refers to it."""
        self._memory = None
        self.pinned.close()


def copy_leaves(placed: PlacedLeaves, memory: memoryview) -> None:
    if not memory:
        return
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    copies: list[_MemoryCopy] = []
    for leaf, offset in placed:
        value, nbytes = leaf.value, leaf.nbytes
        if not nbytes:
            continue
        if leaf.kind == "tensor":
            if value.is_contiguous():
                copies.append((address + offset, value.data_ptr(), nbytes))
            else:
                _copy_tensor(value, memory, offset)
        elif leaf.kind == "array" and value.flags.c_contiguous:
            copies.append((address + offset, value.ctypes.data, nbytes))
        elif leaf.kind == "array":
            numpy = sys.modules["numpy"]
            numpy.copyto(numpy.ndarray(value.shape, value.dtype, memory, offset), value)
        else:
            memory[offset : offset + nbytes] = value
        memory[offset + nbytes : offset + nbytes + padding_after(nbytes)] = bytes(padding_after(nbytes))
    _copy_memory(copies)


def _copy_memory(copies: list[_MemoryCopy]) -> None:
    """Copy host memory, with a second thread where that pays.

    torch's threaded copy gives each thread a fixed part, so if one core is busy all wait for that part. Here each free
    thread takes the next piece.
    """
    pieces = iter(
        [
            (target + start, source + start, min(_PIECE_BYTES, nbytes - start))
            for target, source, nbytes in copies
            for start in range(0, nbytes, _PIECE_BYTES)
        ]
    )

    def work() -> None:
        for target, source, nbytes in pieces:
            ctypes.memmove(target, source, nbytes)  # releases the GIL

    helper = threading.Thread(target=work, name="paceline-snapshot", daemon=True)
    is_threaded = sum(nbytes for _, _, nbytes in copies) >= _MIN_THREADED_BYTES
    if is_threaded:
        helper.start()
    work()
    if is_threaded:
        helper.join()


def _copy_tensor(value: Any, memory: memoryview, offset: int) -> None:
    torch = sys.modules["torch"]
    source = view_as_copyable(value.detach(), torch)
    target = torch.frombuffer(memory, dtype=torch.uint8)
    target[offset : offset + value.nbytes].view(source.dtype).view(source.shape).copy_(source)


def _allocate_memory(nbytes: int) -> mmap.mmap:
    """Allocate anonymous memory, shared so that a fork of this process does not fault in every page again."""
    memory = mmap.mmap(-1, math.ceil(max(nbytes, 1) / mmap.PAGESIZE) * mmap.PAGESIZE)
    if is_linux():
        # In steps, because each holds the GIL. Kernels before 5.14 do not support this advice.
        with contextlib.suppress(OSError):
            for start in range(0, len(memory), _POPULATE_STEP_BYTES):
                length = min(_POPULATE_STEP_BYTES, len(memory) - start)
                memory.madvise(_MADV_POPULATE_WRITE, start, length)
    return memory
