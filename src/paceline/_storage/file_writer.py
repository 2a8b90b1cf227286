"""Writes one large file at the speed of the disk, and hashes it on the way.

The file is written in pieces, several at once, by threads that bypass the page cache (O_DIRECT) if the filesystem
allows it; otherwise the kernel is told to write each piece back early. The thread that adds the bytes hashes them
meanwhile. One fsync at the end makes the file durable. Until then a crash leaves any of the pieces, at any size of the
file: space is allocated first.
"""

import contextlib
import ctypes
import errno
import mmap
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from ctypes import c_long
from pathlib import Path
from typing import Any, Self

from paceline._core.checkpoint_records import FileEntry
from paceline._storage.save_meter import BusyTime, add_to_save, measure_save
from paceline._storage.store import ProgressCallback, TransferHasher, ignore_progress

PIECE_BYTES = 4 << 20
MIN_BYTES = 8 << 20
"""A smaller file is written as fast with a single write."""
NUM_THREADS = 4

ALIGNMENT = max(4096, mmap.PAGESIZE)
"""Of memory, offset and length of a direct write: no disk needs more."""

FULL_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT)
_UNSUPPORTED = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOTTY)
_libc = ctypes.CDLL(None, use_errno=True)
_SYNC_FILE_RANGE_WRITE = 2
_SYNC_FILE_RANGE_WAIT = 1 | 4  # before and after
_FIRST_LOOK_S, _LOOK_INTERVAL_S = 0.02, 0.005
_GROWTH_PATIENCE_S = 10.0


class LargeFileWriter:
    """A file that is being written. Its `with` block waits for the threads and closes the file.

    `num_bytes` is the expected size, if known. A file that is not `is_durable`, such as a download, stays in the page
    cache for whoever reads it next, is not synced, and is as private as other files of the user.
    """

    def __init__(
        self,
        path: Path,
        num_bytes: int = 0,
        *,
        is_durable: bool = True,
        moved: ProgressCallback = ignore_progress,
    ) -> None:
        self._path = path
        self._num_bytes = num_bytes
        self._is_durable = is_durable
        self._hasher = TransferHasher(moved)
        self._offset = 0
        """Where the next piece begins."""
        self._buffer: memoryview | None = None
        self._num_filled = 0
        self._free: queue.SimpleQueue[memoryview] = queue.SimpleQueue()
        self._pieces: queue.SimpleQueue[tuple[int, memoryview, memoryview | None] | None] = queue.SimpleQueue()
        # Whoever adds bytes is never far ahead of the disk, so memory stays bounded and a save can be given up.
        self._slots = threading.Semaphore(NUM_THREADS + 2)
        self._threads: list[threading.Thread] = []
        self._error: BaseException | None = None
        self._writing = BusyTime()
        self._direct_fd: int | None = None
        self._is_direct = False
        self._fd = self._open(os.O_CREAT | os.O_TRUNC)
        try:
            if is_durable and hasattr(os, "O_DIRECT"):
                with _if_supported():
                    self._direct_fd = self._open(os.O_DIRECT)
                    self._is_direct = True
            if num_bytes:
                # Writes beyond the end of a file wait for each other; and a full disk is detected here.
                with self._name_file(0), _if_supported():
                    _call_libc(_libc.fallocate, self._fd, 0, c_long(0), c_long(num_bytes))
        except BaseException:
            self._close()
            raise

    def add(self, data: memoryview) -> None:
        """Add bytes. They are copied if they are read-only, since their owner may change them while they are hashed and
        written. Others must not change before `finish` returns.
        """
        address = _address(data)
        can_stay = not self._is_durable or (not data.readonly and address % ALIGNMENT == 0)
        while data:
            if can_stay and not self._num_filled and len(data) >= ALIGNMENT:
                length = min(PIECE_BYTES, len(data) - len(data) % ALIGNMENT)
                self._submit(data[:length], None)
            else:
                room = self._room()
                length = min(len(room), len(data))
                ctypes.memmove(_address(room), address, length)  # without the GIL, which the threads need
                self._fill(length)
            data, address = data[length:], address + length

    def add_file(self, fd: int) -> None:
        """Add the rest of an open file."""
        while True:
            with measure_save("hash"):
                count = os.readv(fd, [self._room()])
            if not count:
                return
            self._fill(count)

    def finish(self, name: str) -> FileEntry:
        """Return the file's entry once it is complete, and durable if it is to be."""
        if self._buffer is not None and self._num_filled:
            self._submit(self._buffer[: self._num_filled], self._buffer)
            self._buffer, self._num_filled = None, 0
        self._join_threads()
        if self._error is not None:
            raise self._error
        add_to_save("write", self._writing.seconds, self._offset)
        with self._name_file(self._num_bytes), measure_save("sync"):
            if self._offset < self._num_bytes:
                os.ftruncate(self._fd, self._offset)
            if self._is_durable:
                os.fsync(self._fd)
        return self._hasher.to_file_entry(name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, *_: object) -> None:
        self._error = self._error or error  # The threads drop what is left.
        self._join_threads()
        self._close()
        while not self._free.empty():
            return_buffer(self._free.get())

    def _room(self) -> memoryview:
        if self._buffer is None:
            self._buffer = take_buffer() if self._free.empty() else self._free.get()
        return self._buffer[self._num_filled :]

    def _fill(self, count: int) -> None:
        assert self._buffer is not None
        self._num_filled += count
        if self._num_filled == len(self._buffer):
            self._submit(self._buffer, self._buffer)
            self._buffer, self._num_filled = None, 0

    def _submit(self, piece: memoryview, buffer: memoryview | None) -> None:
        self._slots.acquire()
        if self._error is not None:
            raise self._error
        if len(self._threads) < NUM_THREADS:
            self._threads.append(threading.Thread(target=self._write_pieces, name="paceline-write", daemon=True))
            self._threads[-1].start()
        self._pieces.put((self._offset, piece, buffer))
        self._offset += len(piece)
        with measure_save("hash"):
            self._hasher.add(piece)  # Before the buffer is used again, which only this thread does.

    def _write_pieces(self) -> None:
        while (task := self._pieces.get()) is not None:
            offset, piece, buffer = task
            try:
                if self._error is None:
                    with self._name_file(offset, len(piece)), self._writing:
                        self._write_piece(offset, piece)
            except BaseException as error:  # noqa: BLE001 - raised by the thread that adds
                self._error = self._error or error
            if buffer is not None:
                self._free.put(buffer)
            self._slots.release()

    def _write_piece(self, offset: int, piece: memoryview) -> None:
        num_written = 0
        num_direct = len(piece) - len(piece) % ALIGNMENT
        # A write that was cut short, as by a full disk, may end anywhere: the rest goes through the page cache.
        while self._is_direct and num_written < num_direct and num_written % ALIGNMENT == 0:
            assert self._direct_fd is not None
            try:
                num_written += os.pwrite(self._direct_fd, piece[num_written:num_direct], offset + num_written)
            except OSError as error:
                if error.errno not in _UNSUPPORTED:
                    raise
                self._is_direct = False  # Some filesystems refuse only now.
        start = num_written
        while num_written < len(piece):
            num_written += os.pwrite(self._fd, piece[num_written:], offset + num_written)
        if self._is_durable and num_written > start:
            start_write_back(self._fd, offset + start, num_written - start)

    def _open(self, flags: int) -> int:
        with self._name_file(0):
            return os.open(self._path, os.O_WRONLY | flags, 0o600 if self._is_durable else 0o666)

    @contextlib.contextmanager
    def _name_file(self, offset: int, num_bytes: int = 0) -> Iterator[None]:
        """Name the file in an error, and what a full disk has no room for: this much, or the rest from an offset."""
        try:
            yield
        except OSError as error:
            num_left = max(num_bytes, self._num_bytes - offset)
            raise add_disk_details(error, self._path, num_left) from error

    def _join_threads(self) -> None:
        for _ in self._threads:
            self._pieces.put(None)
        for thread in self._threads:
            thread.join()
        self._threads = []

    def _close(self) -> None:
        for fd in (self._fd, self._direct_fd):
            if fd is not None:
                os.close(fd)


def start_write_back(fd: int, offset: int, num_bytes: int) -> None:
    """Let the kernel write dirty pages now. Makes nothing durable: the fsync that follows reports errors."""
    with contextlib.suppress(OSError, AttributeError):
        _call_libc(_libc.sync_file_range, fd, c_long(offset), c_long(num_bytes), _SYNC_FILE_RANGE_WRITE)


def write_back_growing_files(directory: Path) -> None:
    """Start write-back of files while somebody writes them, until the directory is moved or nothing grows any more.

    Whoever writes a file and then syncs it would wait for the page cache first, and only then for the disk.
    """
    num_started: dict[str, int] = {}
    # A small checkpoint is committed by then, and its writer does not want to share the GIL.
    time.sleep(_FIRST_LOOK_S)
    grew_at = time.monotonic()
    while directory.is_dir() and (now := time.monotonic()) < grew_at + _GROWTH_PATIENCE_S:
        paths = [os.path.join(parent, name) for parent, _, names in os.walk(directory) for name in names]
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                size, start = os.stat(path).st_size, num_started.get(path, 0)
                if size - start >= MIN_BYTES:
                    num_started[path], grew_at = size, now
                    with open(path, "rb") as file:
                        start_write_back(file.fileno(), start, size - start)
        time.sleep(_LOOK_INTERVAL_S * (1 + len(paths) // 20))


def write_back(path: Path) -> None:
    """Write the dirty pages of a file and wait for them, so that the fsync that follows is short."""
    # With its own descriptor, since an error is reported once for each: fsync must report it too.
    fd = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError, AttributeError):
            flags = _SYNC_FILE_RANGE_WRITE | _SYNC_FILE_RANGE_WAIT
            _call_libc(_libc.sync_file_range, fd, c_long(0), c_long(0), flags)
    finally:
        os.close(fd)


def add_disk_details(error: OSError, path: Path, num_bytes: int) -> OSError:
    """Return the error with the file's name and, if the disk is full, the space needed and the space free."""
    text = error.strerror or str(error)
    if error.errno in FULL_DISK_ERRORS:
        need = f"{num_bytes} bytes needed" if num_bytes else "while flushing"
        try:
            disk = os.statvfs(path.parent)
            text = f"{text}: {need}, {disk.f_bavail * disk.f_frsize} free"
        except OSError:
            text = f"{text}: {need}"
    elif error.filename is not None:
        return error
    return OSError(error.errno, text, str(path))


@contextlib.contextmanager
def _if_supported() -> Iterator[None]:
    """Continue without what this system or filesystem does not support."""
    try:
        yield
    except AttributeError:
        pass  # Not in this C library.
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise


def _call_libc(function: Callable[..., int], *arguments: Any) -> None:
    """Call a function of the C library, without the GIL."""
    while function(*arguments):
        code = ctypes.get_errno()
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code))


_MAX_KEPT_BUFFERS = 8
_kept_buffers: list[memoryview] = []
"""Of this process: memory that is used for the first time may cost more than the write."""


def take_buffer() -> memoryview:
    """Return `PIECE_BYTES` of aligned memory."""
    try:
        buffer = _kept_buffers.pop()
        if len(buffer) == PIECE_BYTES:
            return buffer
    except IndexError:
        pass
    memory = mmap.mmap(-1, PIECE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError, AttributeError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)


def return_buffer(buffer: memoryview) -> None:
    if len(_kept_buffers) < _MAX_KEPT_BUFFERS:
        _kept_buffers.append(buffer)


class _Buffer(ctypes.Structure):
    """`Py_buffer` of the C API."""

    _fields_ = (
        ("address", ctypes.c_void_p),
        ("owner", ctypes.c_void_p),
        ("sizes", ctypes.c_ssize_t * 2),
        ("flags", ctypes.c_int * 2),
        ("pointers", ctypes.c_void_p * 5),
    )


def _address(data: memoryview) -> int:
    """Return where bytes are, also if they are read-only, for which ctypes has no function."""
    buffer = _Buffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(data), ctypes.byref(buffer), 0)
    address: int = buffer.address or 0
    ctypes.pythonapi.PyBuffer_Release(ctypes.byref(buffer))
    return address
