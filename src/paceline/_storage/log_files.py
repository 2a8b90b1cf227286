"""Bounds the size of a worker's log: the first part and the latest output are kept, what lies between is freed.

Workers and their children append to the file themselves, so it cannot be replaced while they run. Instead the space in
its middle goes back to the filesystem: offsets stay valid, and readers skip the hole. Where the filesystem cannot do
that, the log is cut after its first part.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from paceline._core.system import open_private

_ALIGNMENT = 1 << 16
"""At least a block of any common filesystem: only whole blocks are freed."""
_PUNCH_HOLE_KEEP_SIZE = 0x03


def trim_log(path: Path, max_bytes: float) -> None:
    """Free the middle of a log that takes up more than this on the disk."""
    try:
        if os.stat(path).st_blocks * 512 <= max_bytes:
            return
        file = path.open("r+b", buffering=0)
    except FileNotFoundError:
        return
    with file:
        fd = file.fileno()
        size = os.fstat(fd).st_size
        head, tail = (_align(max_bytes * share) for share in (0.25, 0.5))
        end = _align(size - tail)
        # A filesystem may have reserved more than was written.
        if sum(stop - start for start, stop in find_data(file, size)) <= max_bytes or end <= head + _ALIGNMENT:
            return
        if _free_range(fd, head, end - head):
            note = _format_note(end - head)
            os.pwrite(fd, note, end - len(note))
        else:
            os.ftruncate(fd, head)
            os.pwrite(fd, _format_note(size - head), head)


def _format_note(num_bytes: int) -> bytes:
    return f"\n... {num_bytes} bytes left out: PACELINE_LOG_LIMIT_MB limits this log ...\n".encode()


def find_data(file: BinaryIO, size: int) -> list[tuple[int, int]]:
    """Return the ranges of the file that were not freed, as (start, end), up to `size`."""
    try:
        fd = file.fileno()
    except io.UnsupportedOperation:
        return [(0, size)]
    position = os.lseek(fd, 0, os.SEEK_CUR)
    ranges, at = [], 0
    try:
        while at < size:
            start = os.lseek(fd, at, os.SEEK_DATA)
            at = os.lseek(fd, start, os.SEEK_HOLE)
            ranges.append((start, min(at, size)))
    except OSError as error:
        if error.errno != errno.ENXIO:  # No data after `at`; otherwise the filesystem does not say.
            ranges = [(0, size)]
    finally:
        os.lseek(fd, position, os.SEEK_SET)
    return [(start, end) for start, end in ranges if start < end]


@contextlib.contextmanager
def open_whole_log(path: Path) -> Iterator[Path]:
    """Yield a file with what is kept of a log: the log itself, or a copy without its hole, within the block."""
    with path.open("rb") as file:
        ranges = find_data(file, os.fstat(file.fileno()).st_size)
        if len(ranges) < 2:
            yield path
            return
        copy = path.with_name(f"{path.name}.copy")
        try:
            with open(copy, "wb", opener=open_private) as target:
                for start, end in ranges:
                    file.seek(start)
                    target.write(file.read(end - start).lstrip(b"\0"))
            yield copy
        finally:
            copy.unlink(missing_ok=True)


def _align(num_bytes: float) -> int:
    return int(num_bytes) // _ALIGNMENT * _ALIGNMENT


def _free_range(fd: int, start: int, length: int) -> bool:
    """Give the space of a range back to the filesystem; return whether it can do that."""
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    range_ = ctypes.c_int64(start), ctypes.c_int64(length)
    return bool(libc.fallocate64(fd, _PUNCH_HOLE_KEEP_SIZE, *range_) == 0)
