"""Reads a journal that another process writes, piece by piece: only whole lines, and only new ones.

Detects a journal that was replaced, truncated or moved aside, and reads it again from its start. In a store the journal
consists of segments that never change, so only new ones are fetched.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from paceline._storage.journal_segments import Segment, list_segments, read_segment
from paceline._storage.run_location import RunLocation
from paceline._storage.store import Store

CHUNK = 1 << 20
_NUM_COMPARED_BYTES = 512
"""How many of the first and last bytes read are compared to detect another journal."""


class JournalTail(Protocol):
    def reset_if_replaced(self) -> bool:
        """Return whether what was read is no longer there; if so, start again from the beginning."""
        ...

    def read_new(self) -> bytes:
        """Return unread whole lines, at most about `CHUNK` bytes; empty if there are none."""
        ...

    def mark_read(self, data: bytes, num_bytes: int) -> None:
        """Mark this many bytes of what `read_new` returned as read; it returns the rest again."""
        ...


def open_journal_tail(location: RunLocation, store: Store | None) -> JournalTail:
    return DiskJournalTail(location.layout.journal) if store is None else RemoteJournalTail(store)


class DiskJournalTail:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._inode: tuple[int, int] | None = None
        self._head = b""
        self._last = b""

    def reset_if_replaced(self) -> bool:
        if self._offset == 0:
            return False
        try:
            with self._path.open("rb") as file:
                status = os.fstat(file.fileno())
                # A journal that was truncated and has grown again may be as long as before; and one that a driver
                # copied when it took over has the same contents in another file.
                last = os.pread(file.fileno(), len(self._last), self._offset - len(self._last))
                inode = status.st_dev, status.st_ino
                is_same = inode == self._inode or os.pread(file.fileno(), len(self._head), 0) == self._head
                if last == self._last and is_same:
                    self._inode = inode
                    return False
        except FileNotFoundError:
            pass
        self._offset, self._inode, self._head, self._last = 0, None, b"", b""
        return True

    def read_new(self) -> bytes:
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            return b""
        with file:
            fd = file.fileno()
            size = CHUNK
            while True:
                data = os.pread(fd, size, self._offset)
                end = data.rfind(b"\n") + 1
                if end or len(data) < size:
                    break
                size *= 2  # One line is longer than a chunk.
            if not end:
                return b""
            if self._inode is None:
                status = os.fstat(fd)
                self._inode = (status.st_dev, status.st_ino)
        return data if end == len(data) else data[:end]

    def skip(self, length: int) -> None:
        """Begin after the first `length` bytes."""
        with self._path.open("rb") as file:
            fd = file.fileno()
            status = os.fstat(fd)
            self._offset, self._inode = length, (status.st_dev, status.st_ino)
            size = min(length, _NUM_COMPARED_BYTES)
            self._head, self._last = os.pread(fd, size, 0), os.pread(fd, size, length - size)

    def mark_read(self, data: bytes, num_bytes: int) -> None:
        if self._offset == 0:
            self._head = data[: min(num_bytes, _NUM_COMPARED_BYTES)]
        self._offset += num_bytes
        if num_bytes:
            self._last = data[max(0, num_bytes - _NUM_COMPARED_BYTES) : num_bytes]


class RemoteJournalTail:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._segments: list[Segment] = []
        self._num_read = 0
        self._offset = 0
        """Where the segments that were read end."""
        self._skipped = 0
        """Bytes of the next segment that were read already."""

    def reset_if_replaced(self) -> bool:
        """Also true for what a driver that lost the run uploaded, once the next driver has uploaded its own."""
        num_begun = self._num_read + (self._skipped > 0)
        begun, self._segments = self._segments[:num_begun], list_segments(self._store)
        if self._segments[:num_begun] == begun:
            return False
        self._num_read = self._offset = self._skipped = 0
        return True

    def read_new(self) -> bytes:
        if self._num_read == len(self._segments):
            return b""
        return read_segment(self._store, self._segments[self._num_read], self._offset)[self._skipped :]

    def mark_read(self, data: bytes, num_bytes: int) -> None:
        if num_bytes < len(data):
            self._skipped += num_bytes
            return
        self._offset += self._skipped + num_bytes
        self._skipped = 0
        self._num_read += 1
