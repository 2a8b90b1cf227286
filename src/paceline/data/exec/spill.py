"""Stores rows between the two halves of an exchange: in memory while there is room, then in files.

The memory is one anonymous file of the process that resolves a barrier. Every unit has its own region in it, of which
only written pages take memory; a ledger at the beginning of the file records how many bytes each unit uses. The files
on disk have no name either, and units append to them. Other processes reach both through `/proc`. So everything is
gone when nobody holds the units any more, or when the process ends, however it ends.

Without `/proc`, the files are in a private directory. That of a killed process is removed by the next process that
creates one: nobody has it locked.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paceline._core import system
from paceline.data.block import Block
from paceline.data.exec import packed_blocks

_PREFIX = "paceline-spill-"
_LOCK = "lock"
_STALE_AFTER_S = 3600.0
"""An unlocked directory older than this belongs to a process that died before it could lock it."""
_REGION_BITS = 40
_MAX_FILES = 16
"""The units share so many files: enough to write to at once, and few descriptors."""


class SpillHandle:
    """Keeps stored rows alive while it is referenced, in the process that created it; copies keep nothing."""

    def __init__(self, fds: Sequence[int] = (), folder: str | None = None) -> None:
        self._finalizer = weakref.finalize(self, _remove_spill, os.getpid(), fds, folder)

    def close(self) -> None:
        self._finalizer()

    def __reduce__(self) -> tuple[Any, ...]:
        return SpillHandle, ()


def _remove_spill(pid: int, fds: Sequence[int], folder: str | None) -> None:
    if pid != os.getpid():  # a forked child: the parent removes it
        return
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
    for fd in fds:
        os.close(fd)


@dataclass(frozen=True)
class SpilledPiece:
    """Some rows of a stored block."""

    path: str
    offset: int
    length: int
    begin: int
    stop: int

    @property
    def num_rows(self) -> int:
        return self.stop - self.begin

    def part(self, begin: int, stop: int) -> SpilledPiece:
        return SpilledPiece(self.path, self.offset, self.length, self.begin + begin, self.begin + stop)

    def load(self) -> Block:
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return packed_blocks.read_packed(fd, self.offset, self.length).slice(self.begin, self.stop)
        finally:
            os.close(fd)


@contextmanager
def open_pieces(pieces: Sequence[SpilledPiece]) -> Iterator[list[packed_blocks.PackedSlice]]:
    """Open pieces to read them a column at a time; each file is opened once."""
    fds: dict[str, int] = {}
    try:
        for path in {piece.path: None for piece in pieces}:
            fds[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        yield [packed_blocks.PackedSlice(fds[p.path], p.offset, p.length, p.begin, p.stop) for p in pieces]
    finally:
        for fd in fds.values():
            os.close(fd)


@dataclass(frozen=True)
class SpillSpace:
    """A place to write to for each unit. Plain paths, valid in every process of the machine."""

    memory: str | None
    allowance: int
    root: str
    """The directory that the files are in."""
    files: tuple[str, ...]
    num_units: int

    def path(self, place: int) -> str:
        """The file for the rows of a unit that do not fit in memory."""
        return self.files[place % len(self.files)]

    def open_writer(self, place: int) -> closing[SpillWriter]:
        return closing(SpillWriter(self, place))


class SpillWriter:
    """Writes the blocks of one unit. If the unit is repeated, it starts over; what it had on disk is not reused."""

    def __init__(self, space: SpillSpace, place: int) -> None:
        self._space = space
        self._place = place
        self._memory = os.open(space.memory, os.O_RDWR | os.O_CLOEXEC) if space.memory is not None else None
        self._file: int | None = None
        self._offset = (place + 1) << _REGION_BITS
        self._claimed = 0

    def write(self, block: Block, order: np.ndarray[Any, Any] | None = None) -> SpilledPiece:
        """Store a block with its rows in this order."""
        num_rows = block.num_rows if order is None else len(order)
        packed = packed_blocks.PackedWriter(block, order)
        if self._memory is not None and self._claim_memory(block.nbytes):
            assert self._space.memory is not None
            packed.write(self._memory, self._offset)
            piece = SpilledPiece(self._space.memory, self._offset, packed.length, 0, num_rows)
            self._offset = _align_to_page(self._offset + packed.length)
            return piece
        path = self._space.path(self._place)
        try:
            if self._file is None:
                self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            offset = _append_room(self._file, packed.length)
            packed.write(self._file, offset)
        except OSError as error:
            raise OSError(
                error.errno,
                f"cannot write the rows of a shuffle, sort, group or join to a file in {self._space.root}: "
                f"{os.strerror(error.errno or 0)}\n\n"
                "hint: set DataContext.get_current().spill_path to a disk with as much free space as the dataset needs",
            ) from error
        return SpilledPiece(path, offset, packed.length, 0, num_rows)

    def close(self) -> None:
        for fd in (self._memory, self._file):
            if fd is not None:
                os.close(fd)

    def _claim_memory(self, num_bytes: int) -> bool:
        """Reserve `num_bytes` if they fit the common allowance of all units; return whether they did."""
        assert self._memory is not None
        size = 8 * self._space.num_units
        fcntl.flock(self._memory, fcntl.LOCK_EX)
        try:
            ledger = np.frombuffer(os.pread(self._memory, size, 0).ljust(size, b"\0"), np.int64)
            other_bytes = int(ledger.sum()) - int(ledger[self._place])
            if other_bytes + self._claimed + num_bytes > self._space.allowance:
                return False
            self._claimed += num_bytes
            os.pwrite(self._memory, self._claimed.to_bytes(8, "little"), 8 * self._place)
            return True
        finally:
            fcntl.flock(self._memory, fcntl.LOCK_UN)


def _append_room(fd: int, num_bytes: int) -> int:
    """Make a file longer by `num_bytes`, which are the caller's alone; return where they begin."""
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        offset = _align_to_page(os.fstat(fd).st_size)
        os.ftruncate(fd, offset + num_bytes)
        return offset
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)


def open_spill(num_units: int, allowance: int, spill_path: str | None) -> tuple[SpillSpace, SpillHandle]:
    """Storage for the rows of `num_units` units: `allowance` bytes of memory, and files under `spill_path`."""
    root = Path(spill_path or tempfile.gettempdir()).expanduser()
    system.make_private_dirs(root)
    num_files = max(1, min(num_units, _MAX_FILES))
    if not system.is_linux():  # without /proc, other processes cannot reach a file that has no name
        remove_stale_spills(root)
        folder, lock = _private_folder(root)
        files = tuple(os.path.join(folder, f"{number}.rows") for number in range(num_files))
        for path in files:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        return SpillSpace(None, allowance, str(root), files, num_units), SpillHandle([lock], folder)
    fds: list[int] = []
    handle = SpillHandle(fds)
    try:
        fds += (_create_unnamed_file(root) for _ in range(num_files))
        fds += [system.create_anonymous_file("paceline-exchange")] if allowance > 0 else []
    except BaseException:
        handle.close()
        raise
    paths = tuple(f"/proc/{os.getpid()}/fd/{fd}" for fd in fds)
    memory = paths[num_files] if allowance > 0 else None
    return SpillSpace(memory, allowance, str(root), paths[:num_files], num_units), handle


def _create_unnamed_file(directory: Path) -> int:
    with tempfile.TemporaryFile(dir=directory, prefix=_PREFIX) as file:
        return os.dup(file.fileno())


def _private_folder(root: Path) -> tuple[str, int]:
    folder = tempfile.mkdtemp(prefix=_PREFIX, dir=root)
    lock = os.open(os.path.join(folder, _LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return folder, lock


def remove_stale_spills(root: Path) -> None:
    """Remove the directories of dead processes: nobody has them locked."""
    for folder in root.glob(f"{_PREFIX}*"):
        try:
            if folder.stat().st_uid != os.getuid():
                continue
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            _remove_if_stale(folder)
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:
            pass
        finally:
            os.close(lock)


def _remove_if_stale(folder: Path) -> None:
    try:
        if time.time() - folder.stat().st_mtime > _STALE_AFTER_S:
            folder.rmdir()
    except FileNotFoundError:
        pass


def _align_to_page(offset: int) -> int:
    return -(-offset // packed_blocks.PAGE) * packed_blocks.PAGE
