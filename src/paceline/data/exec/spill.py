"""Stores rows between the two halves of an exchange: in memory while there is room, then in files.

The memory is one anonymous file of the process that resolves a barrier. Every unit has its own region in it, of which
only written pages take memory; a ledger at the beginning of the file records how many bytes each unit uses. A shuffle
uses the memory of an earlier one again, and its units append to it: see `ReusableMemory`. The files
on disk have no name either, and units append to them. Other processes reach both through `/proc`. So everything is
gone when nobody holds the units any more, or when the process ends, however it ends.

Without `/proc`, the files are in a private directory. That of a killed process is removed by the next process that
creates one: nobody has it locked.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import shutil
import tempfile
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
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
_MAX_MAPPED = 4
_MAX_FILES = 16
"""The units share so many files: enough to write to at once, and few descriptors."""


class ReusableMemory:
    """Lends memory to one exchange after another: getting pages from the system costs more than filling them.

    Processes keep it mapped. For exchanges whose rows are copied when they are read, so that nobody has views of it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # protects the fields below: units are released in any thread
        self._spare: tuple[int, int] | None = None
        self._is_closed = False

    def borrow(self, size: int) -> int:
        """Return the descriptor of a file of at least this size, most of it address space.

        Its first page is zero, except for the last eight bytes: up to where it has pages.
        """
        with self._lock:
            spare, self._spare = self._spare, None
        if spare is not None and spare[1] >= size:
            num_warm = os.stat(spare[0]).st_blocks * 512
            os.pwrite(spare[0], num_warm.to_bytes(8, "little").rjust(packed_blocks.PAGE, b"\0"), 0)
            return spare[0]
        if spare is not None:
            _free_memory(spare[0])
        fd = system.create_anonymous_file("paceline-exchange")
        os.ftruncate(fd, 1 << (size - 1).bit_length())  # The next request may differ: the budget follows free memory.
        return fd

    def give_back(self, fd: int) -> None:
        with self._lock:
            if self._spare is None and not self._is_closed:
                self._spare = fd, os.fstat(fd).st_size
                return
        _free_memory(fd)

    def free(self) -> None:
        """Free what nobody uses."""
        with self._lock:
            spare, self._spare = self._spare, None
        if spare is not None:
            _free_memory(spare[0])

    def close(self) -> None:
        self._is_closed = True
        self.free()


def _free_memory(fd: int) -> None:
    """Free the pages, also in processes that have them mapped: those read zeros if they still read."""
    status = os.fstat(fd)
    with _map_lock:
        _mapped.pop((status.st_dev, status.st_ino), None)
    with mmap.mmap(fd, 0) as mapped:
        mapped.madvise(mmap.MADV_REMOVE)
    os.close(fd)


class SpillHandle:
    """Keeps stored rows alive while it is referenced, in the process that created it; copies keep nothing."""

    def __init__(
        self,
        fds: Sequence[int] = (),
        folder: str | None = None,
        give_back: Callable[[], None] = lambda: None,
    ) -> None:
        self._finalizer = weakref.finalize(self, _remove_spill, os.getpid(), fds, folder, give_back)

    def close(self) -> None:
        self._finalizer()

    def __reduce__(self) -> tuple[Any, ...]:
        return SpillHandle, ()


def _remove_spill(pid: int, fds: Sequence[int], folder: str | None, give_back: Callable[[], None]) -> None:
    if pid != os.getpid():  # a forked child: the parent removes it
        return
    give_back()
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
    is_mapped: bool = False
    """It is in memory that processes keep mapped, and that is used again: rows must be copied from it."""

    @property
    def num_rows(self) -> int:
        return self.stop - self.begin

    def part(self, begin: int, stop: int) -> SpilledPiece:
        return replace(self, begin=self.begin + begin, stop=self.begin + stop)

    def load_columns(self, names: Sequence[str]) -> Block:
        """Load at least these columns."""
        if self.is_mapped:
            part = packed_blocks.PackedSlice(-1, self.offset, self.length, self.begin, self.stop, self._view())
            if all(name in part.arrays for name in names):
                return Block({name: part.view_column(name) for name in names}, num_rows=self.num_rows)
        return self.load()

    def _view(self) -> memoryview:
        return map_memory(self.path)[self.offset : self.offset + self.length]

    def load(self) -> Block:
        if self.is_mapped:
            return packed_blocks.unpack_block(self._view()).slice(self.begin, self.stop)
        fd = os.open(self.path, os.O_RDONLY)
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
            fds[path] = os.open(path, os.O_RDONLY)
        yield [
            packed_blocks.PackedSlice(
                fds[p.path], p.offset, p.length, p.begin, p.stop, p._view() if p.is_mapped else None
            )
            for p in pieces
        ]
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
    is_mapped: bool = False
    """The memory is reusable. Units append to it, and processes keep it mapped; else every unit has its own region."""

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
        self._memory = os.open(space.memory, os.O_RDWR) if space.memory is not None else None
        self._file: int | None = None
        self._offset = (place + 1) << _REGION_BITS
        self._claimed = 0
        self._num_warm = 0
        if self._memory is not None and space.is_mapped:
            self._num_warm = int.from_bytes(os.pread(self._memory, 8, packed_blocks.PAGE - 8), "little")

    def write(self, block: Block, order: np.ndarray[Any, Any] | None = None) -> SpilledPiece:
        """Store a block with its rows in this order."""
        num_rows = block.num_rows if order is None else len(order)
        packed = packed_blocks.PackedWriter(block, order)
        if self._memory is not None and self._claim_memory(block.nbytes, packed.length):
            assert self._space.memory is not None
            if self._space.is_mapped and self._offset + packed.length <= self._num_warm:
                packed.write_into(map_memory(self._space.memory)[self._offset : self._offset + packed.length])
            else:
                packed.write(self._memory, self._offset)  # The system need not clear new pages first.
            piece = SpilledPiece(
                self._space.memory, self._offset, packed.length, 0, num_rows, is_mapped=self._space.is_mapped
            )
            self._offset = _align_to_page(self._offset + packed.length)
            return piece
        path = self._space.path(self._place)
        try:
            if self._file is None:
                self._file = os.open(path, os.O_RDWR)
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

    def _claim_memory(self, num_bytes: int, length: int) -> bool:
        """Reserve `num_bytes` if they fit the common allowance of all units; return whether they did.

        Mapped memory is divided in the order of requests: `length` bytes of it, from `self._offset` on.
        """
        assert self._memory is not None
        size = 8 * self._space.num_units
        fcntl.flock(self._memory, fcntl.LOCK_EX)
        try:
            ledger = np.frombuffer(os.pread(self._memory, size, 0).ljust(size, b"\0"), np.int64)
            other_bytes = int(ledger.sum()) - int(ledger[self._place])
            if other_bytes + self._claimed + num_bytes > self._space.allowance:
                return False
            if self._space.is_mapped:
                used = int.from_bytes(os.pread(self._memory, 8, size), "little")
                self._offset = max(used, _align_to_page(size + 8))
                if self._offset + length > os.fstat(self._memory).st_size:
                    return False
                os.pwrite(self._memory, _align_to_page(self._offset + length).to_bytes(8, "little"), size)
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


_mapped: OrderedDict[tuple[int, int], mmap.mmap] = OrderedDict()
"""The reusable memory that this process has mapped, by device and inode: those used last."""
_map_lock = threading.Lock()  # protects it


def map_memory(path: str) -> memoryview:
    """Map reusable memory; it stays mapped, and the next exchange finds its pages."""
    fd = os.open(path, os.O_RDWR)
    try:
        status = os.fstat(fd)
        key = status.st_dev, status.st_ino
        with _map_lock:
            if key not in _mapped:
                _mapped[key] = mmap.mmap(fd, 0)
            _mapped.move_to_end(key)
            while len(_mapped) > _MAX_MAPPED:
                _mapped.popitem(last=False)
            return memoryview(_mapped[key])
    finally:
        os.close(fd)


def open_spill(
    num_units: int, allowance: int, spill_path: str | None, reusable: ReusableMemory | None = None
) -> tuple[SpillSpace, SpillHandle]:
    """Storage for the rows of `num_units` units: `allowance` bytes of memory, and files under `spill_path`."""
    root = Path(spill_path or tempfile.gettempdir()).expanduser()
    system.make_private_dirs(root)
    num_files = max(1, min(num_units, _MAX_FILES))
    if not system.is_linux():  # without /proc, other processes cannot reach a file that has no name
        remove_stale_spills(root)
        folder, lock = _private_folder(root)
        files = tuple(os.path.join(folder, f"{number}.rows") for number in range(num_files))
        for path in files:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))
        return SpillSpace(None, allowance, str(root), files, num_units), SpillHandle([lock], folder)
    fds: list[int] = []
    # The ledger of reusable memory is in its first page, and pieces begin at pages of their own.
    is_mapped = reusable is not None and allowance > 0 and 8 * (num_units + 2) <= packed_blocks.PAGE
    borrowed: list[int] = []
    handle = SpillHandle(fds, None, partial(_return_memory, reusable, borrowed))
    try:
        fds += (create_unnamed_file(root) for _ in range(num_files))
        if is_mapped:
            assert reusable is not None
            borrowed.append(reusable.borrow(allowance + allowance // 8 + (1 << 20)))
        elif allowance > 0:
            fds.append(system.create_anonymous_file("paceline-exchange"))
    except BaseException:
        handle.close()
        raise
    paths = tuple(f"/proc/{os.getpid()}/fd/{fd}" for fd in (*fds, *borrowed))
    memory = paths[num_files] if allowance > 0 else None
    return SpillSpace(memory, allowance, str(root), paths[:num_files], num_units, is_mapped), handle


def _return_memory(reusable: ReusableMemory | None, borrowed: Sequence[int]) -> None:
    for fd in borrowed:
        assert reusable is not None
        reusable.give_back(fd)


def create_unnamed_file(directory: Path) -> int:
    """Return the descriptor of a file that is gone when nobody has it open."""
    with tempfile.TemporaryFile(dir=directory, prefix=_PREFIX) as file:
        return os.dup(file.fileno())


def _private_folder(root: Path) -> tuple[str, int]:
    folder = tempfile.mkdtemp(prefix=_PREFIX, dir=root)
    lock = os.open(os.path.join(folder, _LOCK), os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return folder, lock


def remove_stale_spills(root: Path) -> None:
    """Remove the directories of dead processes: nobody has them locked."""
    for folder in root.glob(f"{_PREFIX}*"):
        try:
            if folder.stat().st_uid != os.getuid():
                continue
            lock = os.open(folder / _LOCK, os.O_RDWR)
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
