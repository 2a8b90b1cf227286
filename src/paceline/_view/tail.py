"""A journal that somebody else writes, read piece by piece: whole lines only, and only those not read before.

A journal that was replaced, cut or moved aside is noticed, and read anew from its beginning. In a store it is slices
that never change, so only new ones are fetched.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from paceline._core.errors import StorageError
from paceline._storage.segments import PREFIX
from paceline._storage.store import Store

CHUNK = 1 << 20
_REMEMBERED = 512
"""So many of the first and last bytes that were read are compared: another journal begins or goes on otherwise."""


class Tail(Protocol):
    def is_another(self) -> bool:
        """Whether what was read is no longer what lies there. From then on it is read from its beginning."""
        ...

    def more(self) -> bytes:
        """Whole lines that were not taken before, at most about `CHUNK` bytes of them; empty where there are none."""
        ...

    def took(self, data: bytes, num_bytes: int) -> None:
        """So many bytes of what `more` gave are dealt with; the rest is given again the next time."""
        ...

    def stamp(self) -> object:
        """Changes whenever there may be something new; cheap to ask for."""
        ...


class DiskTail:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._inode: tuple[int, int] | None = None
        self._head = b""
        self._last = b""

    def stamp(self) -> object:
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size

    def is_another(self) -> bool:
        if self._offset == 0:
            return False
        try:
            with self._path.open("rb") as file:
                found = os.fstat(file.fileno())
                # One that was cut and has grown again may be as long as before; and one that a driver copied, as it
                # took over, is the same though it is another file.
                last = os.pread(file.fileno(), len(self._last), self._offset - len(self._last))
                is_same_file = (found.st_dev, found.st_ino) == self._inode
                if last == self._last and (is_same_file or os.pread(file.fileno(), len(self._head), 0) == self._head):
                    self._inode = (found.st_dev, found.st_ino)
                    return False
        except FileNotFoundError:
            pass
        self._offset, self._inode, self._head, self._last = 0, None, b"", b""
        return True

    def more(self) -> bytes:
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
                size *= 2  # One line that is longer than a chunk.
            if not end:
                return b""
            if self._inode is None:
                found = os.fstat(fd)
                self._inode = (found.st_dev, found.st_ino)
        return data if end == len(data) else data[:end]

    def took(self, data: bytes, num_bytes: int) -> None:
        if self._offset == 0:
            self._head = data[: min(num_bytes, _REMEMBERED)]
        self._offset += num_bytes
        if num_bytes:
            self._last = data[max(0, num_bytes - _REMEMBERED) : num_bytes]


class StoreTail:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._offset = 0
        self._first: int | None = None
        self._ahead: list[str] = []
        self._skipped = 0
        """Bytes of the next slice that were taken already."""

    def stamp(self) -> object:
        return tuple((entry.key, entry.size) for entry in self._store.entries(PREFIX)[-2:])

    def is_another(self) -> bool:
        """Slices are never replaced; but a run may be removed, and another made in its place."""
        slices: list[tuple[int, str, int]] = []
        for entry in self._store.entries(PREFIX):
            offset = entry.key.rpartition("/")[2]
            if not offset.isdigit():
                raise StorageError(f"{self._store.uri}: {entry.key} is no slice of a journal")
            slices.append((int(offset), entry.key, entry.size))
        first = slices[0][2] if slices else None
        end = slices[-1][0] + slices[-1][2] if slices else 0
        is_another = self._offset > 0 and (first != self._first or end < self._offset)
        if is_another:
            self._offset = self._skipped = 0
        self._first = first
        self._ahead = [key for offset, key, _ in slices if offset >= self._offset]
        return is_another

    def more(self) -> bytes:
        if not self._ahead:
            return b""
        key = self._ahead[0]
        offset = int(key.rpartition("/")[2])
        if offset != self._offset:
            raise StorageError(f"{self._store.uri}: the journal ends at byte {self._offset}, and goes on with {key}")
        return self._store.read(key)[self._skipped :]

    def took(self, data: bytes, num_bytes: int) -> None:
        if num_bytes < len(data):
            self._skipped += num_bytes
            return
        self._offset += self._skipped + num_bytes
        self._skipped = 0
        del self._ahead[0]
