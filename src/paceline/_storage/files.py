"""The few things that are ever done to files: the seam that faults are planted in and that other stores implement.

Every call is durable when it returns, except `rename` and `make_dir`, which `sync_dir` of the parent makes so.
"""

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

from paceline._core.system import make_private_dirs
from paceline._engine.messages import FileEntry

_CHUNK = 8 << 20
_FICLONE = 0x40049409
_FULL = (errno.ENOSPC, errno.EDQUOT)
FULL_DISK_PATIENCE_S = 2.0
"""A checkpoint that does not fit fills the disk until what there is of it is removed, which takes a moment."""
_TRY_AGAIN_S = 0.02


class Files(Protocol):
    def make_dir(self, path: Path) -> None: ...
    def write(self, path: Path, data: bytes) -> None: ...
    def write_parts(self, path: Path, parts: Iterable[memoryview]) -> FileEntry: ...
    def copy(self, source: Path, target: Path, name: str) -> FileEntry: ...
    def seal(self, path: Path, name: str) -> FileEntry: ...
    def rename(self, source: Path, target: Path) -> None: ...
    def sync_dir(self, path: Path) -> None: ...
    def remove(self, path: Path) -> None: ...
    def remove_tree(self, path: Path) -> None: ...


class LocalFiles:
    """A disk of this machine, or anything mounted like one."""

    def make_dir(self, path: Path) -> None:
        make_private_dirs(path)

    def write(self, path: Path, data: bytes) -> None:
        self.write_parts(path, [memoryview(data)])

    def write_parts(self, path: Path, parts: Iterable[memoryview]) -> FileEntry:
        """Write one file from memory, piece by piece, and hash it on the way."""
        import xxhash

        digest = xxhash.xxh3_128()
        size = 0
        with _private(path, os.O_TRUNC) as fd:
            for part in parts:
                for start in range(0, len(part), _CHUNK):
                    chunk = part[start : start + _CHUNK]
                    digest.update(chunk)
                    size += len(chunk)
                    _write_all(fd, chunk, path, len(part) - start)
            _sync(fd, path)
        return FileEntry(path.name, size, digest.hexdigest())

    def copy(self, source: Path, target: Path, name: str) -> FileEntry:
        """Copy one file, by reference where the filesystem can, and hash it on the way."""
        with source.open("rb") as reader, _private(target, os.O_EXCL) as writer:
            entry = _hashed(reader.fileno(), name, None if _cloned(reader.fileno(), writer) else (writer, target))
            _sync(writer, target)
        return entry

    def seal(self, path: Path, name: str) -> FileEntry:
        """Make a file that is already in its place durable, and hash it."""
        with path.open("rb") as file:
            # Ask for the write-back first: the disk works while the hash is computed.
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
            entry = _hashed(file.fileno(), name)
            _sync(file.fileno(), path)
        return entry

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def sync_dir(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _sync(fd, path)
        finally:
            os.close(fd)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def remove_tree(self, path: Path) -> None:
        import shutil

        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)


def hash_file(path: Path, name: str) -> FileEntry:
    with path.open("rb") as file:
        return _hashed(file.fileno(), name)


def write_some(fd: int, data: bytes | bytearray) -> int:
    """How many bytes of a line the disk took. One that is full is tried again for a while before that is an error."""
    until: float | None = None
    while True:
        try:
            return os.write(fd, data)
        except OSError as error:
            now = time.monotonic()
            until = until if until is not None else now + FULL_DISK_PATIENCE_S
            if error.errno not in _FULL or now >= until:
                raise
        time.sleep(_TRY_AGAIN_S)


def with_room(error: OSError, path: Path, num_bytes: int) -> OSError:
    """The same error, with the file it is about and, where the disk is full, how much was asked for and is free."""
    text = error.strerror or str(error)
    if error.errno in _FULL:
        asked = f"{num_bytes} bytes were to be written" if num_bytes else "the last bytes were to be written out"
        try:
            disk = os.statvfs(path.parent)
            text = f"{text}: {asked}, {disk.f_bavail * disk.f_frsize} are free"
        except OSError:
            text = f"{text}: {asked}"
    elif error.filename is not None:
        return error
    return OSError(error.errno, text, str(path))


@contextlib.contextmanager
def _private(path: Path, how: int) -> Iterator[int]:
    """A new file for its owner alone, open for writing."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | how, 0o600)
    except OSError as error:
        raise with_room(error, path, 0) from error
    try:
        yield fd
    finally:
        os.close(fd)


def _write_all(fd: int, data: memoryview, path: Path, num_left: int) -> None:
    try:
        while data:
            written = os.write(fd, data)
            data, num_left = data[written:], num_left - written
    except OSError as error:
        raise with_room(error, path, num_left) from error


def _sync(fd: int, path: Path) -> None:
    """Some filesystems only find out now that they have no room."""
    try:
        os.fsync(fd)
    except OSError as error:
        raise with_room(error, path, 0) from error


def _hashed(fd: int, name: str, into: tuple[int, Path] | None = None) -> FileEntry:
    import xxhash

    digest = xxhash.xxh3_128()
    size = 0
    # To clear a whole chunk takes milliseconds, and most files are small.
    buffer = memoryview(bytearray(min(_CHUNK, max(1, os.fstat(fd).st_size))))
    while count := os.readv(fd, [buffer]):
        digest.update(buffer[:count])
        if into is not None:
            _write_all(into[0], buffer[:count], into[1], max(count, os.fstat(fd).st_size - size))
        size += count
    return FileEntry(name, size, digest.hexdigest())


def _cloned(source: int, target: int) -> bool:
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError as problem:
        unsupported = (errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EPERM)
        if problem.errno in unsupported:
            return False
        raise
    return True
