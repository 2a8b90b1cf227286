"""Page-locked memory for copies from GPUs: pages touched by several threads, then registered with CUDA piece by piece.

torch's own allocator takes four to eight times as long, because the driver touches every page on one thread, and it
rounds a large allocation up to the next power of two. Nothing here holds the GIL for long, and no registration is long
enough to delay a kernel launch of the training thread noticeably.
"""

import contextlib
import ctypes
import logging
import mmap
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from paceline._core.system import is_linux, usable_memory

PIECE_BYTES = 64 << 20
"""Registering one piece takes about 4 ms, during which CUDA calls of other threads wait."""
MAX_FREE_SHARE = 0.25
"""How much of the free memory is reserved before anybody has asked for a save."""
_MIN_FREE_SHARE = 0.05
"""How much of all memory must stay free after an allocation."""
_MAX_TOUCHING_THREADS = 8
_NUM_PATIENT_THREADS = 2
"""Threads that touch memory while nobody waits for it."""

log = logging.getLogger("paceline")

Register = Callable[[int, int], bool]
"""Page-locks memory at an address; returns whether CUDA accepted it."""


def register_with_cuda(address: int, nbytes: int) -> bool:
    return int(sys.modules["torch"].cuda.cudart().cudaHostRegister(address, nbytes, 0)) == 0


class PinnedMemory:
    """Page-locked memory that grows, and the streams for copies into it.

    `prepare` starts to allocate in the background. Whoever needs a piece that is not there yet waits for it.
    """

    def __init__(self, register: Register = register_with_cuda) -> None:
        self._register = register
        self._changed = threading.Condition()
        self._pieces: list[Any] = []
        self._num_wanted = 0
        self._is_urgent = False
        self._is_used = False
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._streams: dict[Any, Any] = {}

    def stream(self, device: Any) -> Any:
        """Return the device's copy stream. All saves share it, since torch caches memory per stream."""
        if device not in self._streams:
            self._streams[device] = sys.modules["torch"].cuda.Stream(device)
        return self._streams[device]

    def prepare(self, nbytes: int) -> bool:
        """Allocate memory in the background for a save that is expected later, if there is plenty."""
        if nbytes > MAX_FREE_SHARE * usable_memory().free_bytes:
            return False
        self._want(_num_pieces(nbytes))
        return True

    def can_hold(self, nbytes: int) -> bool:
        """Whether there is memory for a save of this size."""
        missing = (_num_pieces(nbytes) - len(self._pieces)) * PIECE_BYTES
        if missing <= 0:
            return True
        memory = usable_memory()
        return missing + _MIN_FREE_SHARE * memory.total_bytes <= memory.free_bytes

    def copy(self, values: Any, offset: int) -> None:
        """Enqueue a copy of GPU bytes to an offset, on the current stream."""
        begin = 0
        for piece, at, length in _iter_spans(offset, len(values), PIECE_BYTES):
            self._piece(piece)[at : at + length].copy_(values[begin : begin + length], non_blocking=True)
            begin += length

    def clear(self, offset: int, length: int) -> None:
        for piece, at, part in _iter_spans(offset, length, PIECE_BYTES):
            self._piece(piece)[at : at + part].zero_()

    def views(self, nbytes: int) -> Iterator[memoryview]:
        """Yield views of the first `nbytes`."""
        for piece, at, length in _iter_spans(0, nbytes, PIECE_BYTES):
            yield memoryview(self._piece(piece).numpy())[at : at + length]

    def reserve(self, nbytes: int) -> None:
        """Allocate without waiting: the copies then wait for one piece at a time, while the next are prepared."""
        if not nbytes:
            return
        self._is_used = True
        with self._changed:
            self._is_urgent = True
            self._changed.notify_all()
        self._want(_num_pieces(nbytes))

    def release_unused(self) -> None:
        """Release what `prepare` allocated, if no save has used it."""
        if not self._is_used:
            self.close()

    def close(self) -> None:
        """Release the memory, as soon as nothing refers to it."""
        with self._changed:
            self._num_wanted = 0
            self._pieces = []
            self._streams.clear()

    def _piece(self, number: int) -> Any:
        with self._changed:
            if number >= len(self._pieces):
                self._want(number + 1)
                self._changed.wait_for(lambda: number < len(self._pieces) or self._error is not None)
            if number >= len(self._pieces) and self._error is not None:
                error, self._error = self._error, None
                raise MemoryError(f"cannot allocate {PIECE_BYTES >> 20} MB for a copy of GPU values") from error
            return self._pieces[number]

    def _want(self, num_pieces: int) -> None:
        with self._changed:
            self._num_wanted = max(self._num_wanted, num_pieces)
            if self._thread is None and len(self._pieces) < self._num_wanted:
                self._error = None
                self._thread = threading.Thread(target=self._allocate, name="paceline-pin", daemon=True)
                self._thread.start()

    def _allocate(self) -> None:
        """Touch pieces on several threads and register each in turn, until all that are wanted are there."""
        num_threads = min(_MAX_TOUCHING_THREADS, os.cpu_count() or 1)
        touched: list[Future[Any]] = []
        error: BaseException | None = None
        with ThreadPoolExecutor(num_threads, "paceline-touch") as pool:
            try:
                while self._has_more():
                    num_ahead = 2 * num_threads if self._is_urgent else _NUM_PATIENT_THREADS
                    num_missing = self._num_wanted - len(self._pieces)
                    touched += [pool.submit(_allocate_piece) for _ in range(min(num_missing, num_ahead) - len(touched))]
                    if touched:
                        self._add_piece(touched.pop(0).result())
            except (OSError, MemoryError) as problem:
                error = problem
        with self._changed:
            if error is None and len(self._pieces) < self._num_wanted:
                # Asked for between the last look and now.
                self._thread = threading.Thread(target=self._allocate, name="paceline-pin", daemon=True)
                self._thread.start()
                return
            self._error, self._thread = error, None
            self._changed.notify_all()

    def _has_more(self) -> bool:
        with self._changed:
            return len(self._pieces) < self._num_wanted

    def _add_piece(self, memory: "_Piece") -> None:
        began = time.monotonic()
        memory.register(self._register)
        torch = sys.modules["torch"]
        with self._changed:
            if self._num_wanted:
                self._pieces.append(torch.frombuffer(memory, dtype=torch.uint8))
            self._changed.notify_all()
            # Leave CUDA to the training thread for as long as it was kept waiting.
            self._changed.wait_for(lambda: self._is_urgent, time.monotonic() - began)


class _Piece(mmap.mmap):
    """Memory that CUDA forgets before the kernel takes it back."""

    _registered_in: int | None = None

    def register(self, register: Register) -> None:
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self))
        if register(self._address, len(self)):
            self._registered_in = os.getpid()
        else:
            log.warning(
                "cannot page-lock memory for checkpoints; copies from the GPU will be slower and block training"
            )

    def __del__(self) -> None:
        torch = sys.modules.get("torch")
        if torch is not None and self._registered_in == os.getpid() and torch.cuda.is_initialized():
            torch.cuda.cudart().cudaHostUnregister(self._address)


def _allocate_piece() -> _Piece:
    piece = _Piece(-1, PIECE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if is_linux():
        # Copy-on-write after a fork would move pages away from where the GPU writes.
        piece.madvise(mmap.MADV_DONTFORK)
        with contextlib.suppress(OSError):  # Not every kernel has huge pages, which are faster to touch and to lock.
            piece.madvise(mmap.MADV_HUGEPAGE)
    # Without the GIL; on several threads this is faster than MADV_POPULATE_WRITE.
    ctypes.memset(ctypes.addressof(ctypes.c_char.from_buffer(piece)), 0, PIECE_BYTES)
    return piece


def _num_pieces(nbytes: int) -> int:
    return -(-nbytes // PIECE_BYTES)


def _iter_spans(offset: int, nbytes: int, size: int) -> Iterator[tuple[int, int, int]]:
    """Split a range into pieces of `size`: yields piece number, offset in the piece, and length."""
    end = offset + nbytes
    while offset < end:
        piece, at = divmod(offset, size)
        length = min(size - at, end - offset)
        yield piece, at, length
        offset += length
