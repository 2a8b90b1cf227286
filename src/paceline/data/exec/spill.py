"""Where rows lie between the two halves of an exchange: in memory while there is room, and in files beyond it.

The memory is one anonymous file of the process that resolves a barrier; others reach it through `/proc`. Every unit has
a region of its own in it, of which only what is written takes memory, and a ledger at its beginning says how much that
is. The files are in a private directory. Both go when nobody holds the units any more, or with the process; what a
killed process left is removed by the next one that makes such a directory, as nobody has it locked.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paceline._core import system
from paceline.data.block import Block
from paceline.data.exec import packed

_PREFIX = "paceline-spill-"
_LOCK = "lock"
_FORGOTTEN_S = 3600.0
"""A directory without a lock that is older was made by a process that died before it could lock it."""
_REGION_BITS = 40


class Held:
    """Keeps what was set aside for as long as it is referred to, in the process that made it; a copy keeps nothing."""

    def __init__(self, memory: int | None = None, lock: int | None = None, folder: str | None = None) -> None:
        self._finalizer = weakref.finalize(self, _removed, os.getpid(), memory, lock, folder)

    def close(self) -> None:
        self._finalizer()

    def __reduce__(self) -> tuple[Any, ...]:
        return Held, ()


def _removed(pid: int, memory: int | None, lock: int | None, folder: str | None) -> None:
    if pid != os.getpid():  # a fork: it is the parent's to remove
        return
    if memory is not None:
        os.close(memory)
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
    if lock is not None:
        os.close(lock)


@dataclass(frozen=True)
class Piece:
    """Some rows of a block that was set aside."""

    path: str
    offset: int
    length: int
    begin: int
    stop: int

    @property
    def num_rows(self) -> int:
        return self.stop - self.begin

    def part(self, begin: int, stop: int) -> Piece:
        return Piece(self.path, self.offset, self.length, self.begin + begin, self.begin + stop)

    def load(self) -> Block:
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return packed.read(fd, self.offset, self.length).slice(self.begin, self.stop)
        finally:
            os.close(fd)


@contextmanager
def opened_pieces(pieces: Sequence[Piece]) -> Iterator[list[packed.Lying]]:
    """Pieces to be read a column at a time; each file is opened once."""
    fds: dict[str, int] = {}
    try:
        for path in {piece.path: None for piece in pieces}:
            fds[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        yield [packed.Lying(fds[p.path], p.offset, p.length, p.begin, p.stop) for p in pieces]
    finally:
        for fd in fds.values():
            os.close(fd)


@dataclass(frozen=True)
class Stores:
    """For each of some units, a place to write to. Plain paths, good in every process of the machine."""

    memory: str | None
    allowance: int
    folder: str
    num_units: int

    def path(self, place: int) -> str:
        """The file for those rows of a unit that have no room in memory."""
        return os.path.join(self.folder, f"{place}.rows")

    @contextmanager
    def writer(self, place: int) -> Iterator[Writer]:
        writer = Writer(self, place)
        try:
            yield writer
        finally:
            writer.close()


class Writer:
    """Takes the blocks of one unit. One that is done again begins anew."""

    def __init__(self, stores: Stores, place: int) -> None:
        self._stores = stores
        self._place = place
        self._memory = os.open(stores.memory, os.O_RDWR | os.O_CLOEXEC) if stores.memory is not None else None
        self._file: int | None = None
        self._offset = (place + 1) << _REGION_BITS
        self._file_offset = 0
        self._claimed = 0

    def write(self, block: Block, order: np.ndarray[Any, Any] | None = None) -> Piece:
        """Set a block aside, its rows in this order."""
        num_rows = block.num_rows if order is None else len(order)
        if self._memory is not None and self._claim(block.nbytes):
            assert self._stores.memory is not None
            length = packed.written(self._memory, self._offset, block, order)
            piece = Piece(self._stores.memory, self._offset, length, 0, num_rows)
            self._offset = _paged(self._offset + length)
            return piece
        path = self._stores.path(self._place)
        if self._file is None:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            length = packed.written(self._file, self._file_offset, block, order)
        except OSError as error:
            raise OSError(
                error.errno,
                f"rows of a shuffle, sort or group could not be written to {path}: {os.strerror(error.errno or 0)}\n\n"
                "hint: DataContext.get_current().spill_path is where they go; it needs as much room as the dataset",
            ) from error
        piece = Piece(path, self._file_offset, length, 0, num_rows)
        self._file_offset = _paged(self._file_offset + length)
        return piece

    def close(self) -> None:
        for fd in (self._memory, self._file):
            if fd is not None:
                os.close(fd)

    def _claim(self, num_bytes: int) -> bool:
        """Whether so many bytes more still fit the allowance of all units together; then they are noted."""
        assert self._memory is not None
        size = 8 * self._stores.num_units
        fcntl.flock(self._memory, fcntl.LOCK_EX)
        try:
            ledger = np.frombuffer(os.pread(self._memory, size, 0).ljust(size, b"\0"), np.int64)
            others = int(ledger.sum()) - int(ledger[self._place])
            if others + self._claimed + num_bytes > self._stores.allowance:
                return False
            self._claimed += num_bytes
            os.pwrite(self._memory, self._claimed.to_bytes(8, "little"), 8 * self._place)
            return True
        finally:
            fcntl.flock(self._memory, fcntl.LOCK_UN)


def opened(num_units: int, allowance: int, spill_path: str | None) -> tuple[Stores, Held]:
    """Places for the rows of so many units: `allowance` bytes of memory, and files under `spill_path`."""
    root = Path(spill_path or tempfile.gettempdir()).expanduser()
    folder, lock = _private_folder(root)
    # Without /proc an anonymous file cannot be reached from other processes.
    memory = system.anonymous_file("paceline-exchange") if system.on_linux() and allowance > 0 else None
    path = None if memory is None else f"/proc/{os.getpid()}/fd/{memory}"
    return Stores(path, allowance, folder, num_units), Held(memory, lock, folder)


def _private_folder(root: Path) -> tuple[str, int]:
    system.make_private_dirs(root)
    sweep(root)
    folder = tempfile.mkdtemp(prefix=_PREFIX, dir=root)
    lock = os.open(os.path.join(folder, _LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return folder, lock


def sweep(root: Path) -> None:
    """Remove what processes left here that are no more: their directories are locked by nobody."""
    for folder in root.glob(f"{_PREFIX}*"):
        try:
            if folder.stat().st_uid != os.getuid():
                continue
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            _drop_forgotten(folder)
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:
            pass
        finally:
            os.close(lock)


def _drop_forgotten(folder: Path) -> None:
    try:
        if time.time() - folder.stat().st_mtime > _FORGOTTEN_S:
            folder.rmdir()
    except FileNotFoundError:
        pass


def _paged(offset: int) -> int:
    return -(-offset // packed.PAGE) * packed.PAGE
