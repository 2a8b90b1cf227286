"""The memory for snapshots, and the copy into it.

Each tensor is copied once, from where it is to the memory that is written to disk. Pages that were faulted in for one
save are kept for the next. Values on GPUs are copied to page-locked memory, which is allocated in pieces: torch would
round one large allocation up to the next power of two, and take 16 GB of host memory for 9 GB of state.
"""

import contextlib
import ctypes
import math
import mmap
import sys
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from paceline._core.system import is_linux
from paceline._storage.state_leaves import Leaf, view_as_copyable

ALIGNMENT = 64
PIECE_BYTES = 64 << 20

PlacedLeaves = Iterable[tuple[Leaf, int]]
"""Leaves, each with its offset in the target memory."""


def padding_after(nbytes: int) -> int:
    """Return the number of zero bytes after a buffer that align the next one."""
    return -nbytes % ALIGNMENT


class PinnedMemory:
    """Page-locked memory that grows, and the streams for copies into it."""

    def __init__(self) -> None:
        self._pieces: list[Any] = []
        self._size = PIECE_BYTES
        self._streams: dict[Any, Any] = {}

    def stream(self, device: Any) -> Any:
        """Return the device's copy stream. All saves share it, since torch caches memory per stream."""
        if device not in self._streams:
            self._streams[device] = sys.modules["torch"].cuda.Stream(device)
        return self._streams[device]

    def copy(self, values: Any, offset: int) -> None:
        """Enqueue a copy of GPU bytes to an offset, on the current stream."""
        begin = 0
        for piece, at, length in _iter_spans(offset, len(values), self._size):
            self._piece(piece)[at : at + length].copy_(values[begin : begin + length], non_blocking=True)
            begin += length

    def clear(self, offset: int, length: int) -> None:
        for piece, at, part in _iter_spans(offset, length, self._size):
            self._piece(piece)[at : at + part].zero_()

    def views(self, nbytes: int) -> Iterator[memoryview]:
        """Yield views of the first `nbytes`."""
        for piece, at, length in _iter_spans(0, nbytes, self._size):
            yield memoryview(self._piece(piece).numpy())[at : at + length]

    def close(self) -> None:
        """Release the memory, as soon as nothing refers to it."""
        self._pieces = []
        self._streams.clear()

    def _piece(self, number: int) -> Any:
        torch = sys.modules["torch"]
        while len(self._pieces) <= number:
            self._pieces.append(torch.empty(self._size, dtype=torch.uint8, device="cpu", pin_memory=True))
        return self._pieces[number]


class GpuSnapshot:
    """The GPU values of a state, as they were when this was created."""

    def __init__(self, placed: PlacedLeaves, nbytes: int, memory: PinnedMemory) -> None:
        self._nbytes = nbytes
        self._memory = memory
        by_device = defaultdict(list)
        for leaf, offset in placed:
            by_device[leaf.value.device].append((leaf, offset))
            memory.clear(offset + leaf.nbytes, padding_after(leaf.nbytes))
        self.events = tuple(self._start_copy(device, parts) for device, parts in by_device.items())
        """Complete when the values have been copied."""

    def parts(self) -> Iterator[memoryview]:
        """Wait for the copies, then yield the bytes. Callable from any thread."""
        for event in self.events:
            event.synchronize()
        yield from self._memory.views(self._nbytes)

    def _start_copy(self, device: Any, parts: Iterable[tuple[Leaf, int]]) -> Any:
        torch = sys.modules["torch"]
        current, side = torch.cuda.current_stream(device), self._memory.stream(device)
        side.wait_stream(current)
        with torch.cuda.stream(side):
            for leaf, offset in parts:
                self._memory.copy(_tensor_bytes(leaf.value, torch), offset)
                # Or memory freed meanwhile would be reused for another tensor before it is copied.
                leaf.value.record_stream(side)
        # Blocking: the writer thread sleeps during the copy and does not spin next to training.
        done = torch.cuda.Event(blocking=True)
        done.record(side)
        # Later changes to the values, such as the next optimizer step, run after the copy.
        current.wait_event(done)
        return done


def _tensor_bytes(value: Any, torch: Any) -> Any:
    source = view_as_copyable(value.detach(), torch)
    if source.is_complex():
        source = torch.view_as_real(source)
    return source.contiguous().reshape(-1).view(torch.uint8)


def _iter_spans(offset: int, nbytes: int, size: int) -> Iterator[tuple[int, int, int]]:
    """Split a range into pieces of `size`: yields piece number, offset in the piece, and length."""
    end = offset + nbytes
    while offset < end:
        piece, at = divmod(offset, size)
        length = min(size - at, end - offset)
        yield piece, at, length
        offset += length


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
