"""The few things that are ever done to files: the seam that faults are planted in and that other stores implement.

Every call is durable when it returns, except `rename` and `make_dir`, which `sync_dir` of the parent makes so.
"""

import contextlib
import errno
import fcntl
import os
import shutil
from pathlib import Path
from typing import Protocol

from paceline._engine.messages import FileEntry

_CHUNK = 8 << 20
_FICLONE = 0x40049409


class Files(Protocol):
    def make_dir(self, path: Path) -> None: ...
    def write(self, path: Path, data: bytes) -> None: ...
    def copy(self, source: Path, target: Path, name: str) -> FileEntry: ...
    def seal(self, path: Path, name: str) -> FileEntry: ...
    def rename(self, source: Path, target: Path) -> None: ...
    def sync_dir(self, path: Path) -> None: ...
    def remove(self, path: Path) -> None: ...
    def remove_tree(self, path: Path) -> None: ...


class LocalFiles:
    """A disk of this machine, or anything mounted like one."""

    def make_dir(self, path: Path) -> None:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def write(self, path: Path, data: bytes) -> None:
        with path.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def copy(self, source: Path, target: Path, name: str) -> FileEntry:
        """Copy one file, by reference where the filesystem can, and hash it on the way."""
        with source.open("rb") as reader, target.open("xb") as writer:
            if _cloned(reader.fileno(), writer.fileno()):
                entry = _hashed(reader.fileno(), name)
            else:
                entry = _hashed(reader.fileno(), name, into=writer.fileno())
            os.fsync(writer.fileno())
        return entry

    def seal(self, path: Path, name: str) -> FileEntry:
        """Make a file that is already in its place durable, and hash it."""
        with path.open("rb") as file:
            # Ask for the write-back first: the disk works while the hash is computed.
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
            entry = _hashed(file.fileno(), name)
            os.fsync(file.fileno())
        return entry

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def sync_dir(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def remove_tree(self, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)


def hash_file(path: Path, name: str) -> FileEntry:
    with path.open("rb") as file:
        return _hashed(file.fileno(), name)


def _hashed(fd: int, name: str, into: int | None = None) -> FileEntry:
    import xxhash

    digest = xxhash.xxh3_128()
    size = 0
    # To clear a whole chunk takes milliseconds, and most files are small.
    buffer = memoryview(bytearray(min(_CHUNK, max(1, os.fstat(fd).st_size))))
    while count := os.readv(fd, [buffer]):
        chunk = buffer[:count]
        digest.update(chunk)
        size += count
        while into is not None and chunk:
            chunk = chunk[os.write(into, chunk) :]
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
