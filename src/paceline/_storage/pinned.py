"""Values on a GPU, on their way into page-locked memory.

That memory comes in pieces: torch would round a large one up to the next power of two, and have 16 GB of the host for
9 GB of state. What is there is kept for the next save.
"""

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from paceline._storage.leaves import Leaf, same_width

ALIGNMENT = 64
PIECE = 64 << 20

Placed = Iterable[tuple[Leaf, int]]
"""Leaves, each with its offset in the memory that it goes to."""


def gap_after(nbytes: int) -> int:
    """How many zeros follow a buffer, so that the next one is aligned."""
    return -nbytes % ALIGNMENT


class Pinned:
    """Page-locked memory that grows, and the streams for copies into it."""

    def __init__(self) -> None:
        self._pieces: list[Any] = []
        self._size = PIECE
        self._streams: dict[Any, Any] = {}

    def stream(self, device: Any) -> Any:
        """One for all saves, as torch caches memory for every stream."""
        if device not in self._streams:
            self._streams[device] = sys.modules["torch"].cuda.Stream(device)
        return self._streams[device]

    def copy(self, values: Any, offset: int) -> None:
        """Have bytes of a GPU copied to an offset, on the current stream."""
        begin = 0
        for piece, at, length in _spans(offset, len(values), self._size):
            self._piece(piece)[at : at + length].copy_(values[begin : begin + length], non_blocking=True)
            begin += length

    def clear(self, offset: int, length: int) -> None:
        for piece, at, part in _spans(offset, length, self._size):
            self._piece(piece)[at : at + part].zero_()

    def views(self, nbytes: int) -> Iterator[memoryview]:
        """The first so many bytes."""
        for piece, at, length in _spans(0, nbytes, self._size):
            yield memoryview(self._piece(piece).numpy())[at : at + length]

    def close(self) -> None:
        """Let the memory go, as soon as nothing refers to it."""
        self._pieces = []
        self._streams.clear()

    def _piece(self, number: int) -> Any:
        torch = sys.modules["torch"]
        while len(self._pieces) <= number:
            self._pieces.append(torch.empty(self._size, dtype=torch.uint8, device="cpu", pin_memory=True))
        return self._pieces[number]


class FromGpu:
    """The values of a state that are on GPUs, as they were when this was made."""

    def __init__(self, placed: Placed, nbytes: int, memory: Pinned) -> None:
        self._nbytes = nbytes
        self._memory = memory
        by_device = defaultdict(list)
        for leaf, offset in placed:
            by_device[leaf.value.device].append((leaf, offset))
            memory.clear(offset + leaf.nbytes, gap_after(leaf.nbytes))
        self.events = tuple(self._copied(device, parts) for device, parts in by_device.items())
        """After which the values are there."""

    def parts(self) -> Iterator[memoryview]:
        """The bytes, once they are there. In any thread."""
        for event in self.events:
            event.synchronize()
        yield from self._memory.views(self._nbytes)

    def _copied(self, device: Any, parts: Iterable[tuple[Leaf, int]]) -> Any:
        """Start the copies."""
        torch = sys.modules["torch"]
        current, side = torch.cuda.current_stream(device), self._memory.stream(device)
        side.wait_stream(current)
        with torch.cuda.stream(side):
            for leaf, offset in parts:
                self._memory.copy(_bytes_of(leaf.value, torch), offset)
                # Or memory that is freed meanwhile would be given to another tensor before it is copied.
                leaf.value.record_stream(side)
        # Blocking: the thread that writes sleeps for the copy, and does not spin beside training.
        done = torch.cuda.Event(blocking=True)
        done.record(side)
        # What changes the values from now on, such as the next optimizer step, runs after the copy.
        current.wait_event(done)
        return done


def _bytes_of(value: Any, torch: Any) -> Any:
    """The bytes of a tensor, in the order of its elements."""
    source = same_width(value.detach(), torch)
    if source.is_complex():
        source = torch.view_as_real(source)
    return source.contiguous().reshape(-1).view(torch.uint8)


def _spans(offset: int, nbytes: int, size: int) -> Iterator[tuple[int, int, int]]:
    """Where bytes lie in pieces of a size: the number of each piece, the offset in it, and how many."""
    end = offset + nbytes
    while offset < end:
        piece, at = divmod(offset, size)
        length = min(size - at, end - offset)
        yield piece, at, length
        offset += length
