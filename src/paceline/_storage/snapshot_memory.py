"""The memory for snapshots, and the copy into it.

Each tensor is copied once, from where it is to the memory that is written to disk. Pages that were faulted in for one
save are kept for the next. Values on GPUs are copied to page-locked memory.
"""

import contextlib
import ctypes
import math
import mmap
import sys
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from paceline._core.system import is_linux
from paceline._storage.pinned_memory import PinnedMemory
from paceline._storage.state_leaves import Leaf, view_as_copyable

ALIGNMENT = 64
_STREAMED_BYTES = 64 << 20

PlacedLeaves = Iterable[tuple[Leaf, int]]
"""Leaves, each with its offset in the target memory."""


def padding_after(nbytes: int) -> int:
    """Return the number of zero bytes after a buffer that align the next one."""
    return -nbytes % ALIGNMENT


class GpuSnapshot:
    """The GPU values of a state, as they were when this was created.

    Where the host lacks memory for a copy, `is_streamed` is true: the values are then copied while they are written,
    and must not change until that is done.
    """

    def __init__(self, placed: PlacedLeaves, nbytes: int, memory: PinnedMemory) -> None:
        self._nbytes = nbytes
        self._memory = memory
        self.is_streamed = not memory.can_hold(nbytes)
        by_device = defaultdict(list)
        for leaf, offset in placed:
            by_device[leaf.value.device].append((leaf, offset))
        if self.is_streamed:
            in_order = sorted(chain.from_iterable(by_device.values()), key=lambda part: part[1])
            self._streamed = [leaf for leaf, _ in in_order]
            self.events = tuple(_record_event(device) for device in by_device)
            return
        memory.reserve(nbytes)
        self.events = tuple(self._start_copy(device, parts) for device, parts in by_device.items())
        """Complete when the values have been copied."""

    def parts(self) -> Iterator[memoryview]:
        """Wait for the copies, then yield the bytes. Callable from any thread."""
        for event in self.events:
            event.synchronize()
        if not self.is_streamed:
            yield from self._memory.views(self._nbytes)
            return
        torch = sys.modules["torch"]
        for leaf in self._streamed:
            for part in _tensor_bytes(leaf.value, torch).split(_STREAMED_BYTES):
                yield memoryview(part.cpu().numpy())
            if padding := padding_after(leaf.nbytes):
                yield memoryview(bytes(padding))

    def _start_copy(self, device: Any, parts: Iterable[tuple[Leaf, int]]) -> Any:
        torch = sys.modules["torch"]
        current, side = torch.cuda.current_stream(device), self._memory.stream(device)
        side.wait_stream(current)
        with torch.cuda.stream(side):
            for leaf, offset in parts:
                self._memory.clear(offset + leaf.nbytes, padding_after(leaf.nbytes))
                self._memory.copy(_tensor_bytes(leaf.value, torch), offset)
                # Or memory freed meanwhile would be reused for another tensor before it is copied.
                leaf.value.record_stream(side)
        # Blocking: the writer thread sleeps during the copy and does not spin next to training.
        done = torch.cuda.Event(blocking=True)
        done.record(side)
        # Later changes to the values, such as the next optimizer step, run after the copy.
        current.wait_event(done)
        return done


def _record_event(device: Any) -> Any:
    torch = sys.modules["torch"]
    event = torch.cuda.Event(blocking=True)
    event.record(torch.cuda.current_stream(device))
    return event


def _tensor_bytes(value: Any, torch: Any) -> Any:
    source = view_as_copyable(value.detach(), torch)
    if source.is_complex():
        source = torch.view_as_real(source)
    return source.contiguous().reshape(-1).view(torch.uint8)


_MADV_POPULATE_WRITE = 23
_POPULATE_STEP_BYTES = 64 << 20

_COPY_BYTES = 8 << 20
_MIN_THREADED_BYTES = 32 << 20

_MemoryCopy = tuple[int, int, int]
"""Target address, source address, number of bytes."""


class SnapshotMemory:
    """Holds one snapshot; the next one overwrites it. Kept between saves: page faults cost more than the copy."""

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None
        self.pinned = PinnedMemory()

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
            (target + start, source + start, min(_COPY_BYTES, nbytes - start))
            for target, source, nbytes in copies
            for start in range(0, nbytes, _COPY_BYTES)
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
