"""The few file operations of storage: tests inject faults here, and other filesystems implement them.

Every call is durable when it returns, except `rename` and `make_dir`, which `sync_dir` of the parent makes durable,
and `write(..., sync=False)`, which `sync_file` does.
"""

import contextlib
import errno
import fcntl
import os
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

from paceline._core.checkpoint_records import FileEntry
from paceline._core.system import make_private_dirs
from paceline._storage import file_writer
from paceline._storage.file_writer import FULL_DISK_ERRORS, LargeFileWriter
from paceline._storage.file_writer import add_disk_details as add_disk_details
from paceline._storage.save_meter import measure_save
from paceline._storage.store import TransferHasher

_FICLONE = 0x40049409
FULL_DISK_PATIENCE_S = 2.0
"""Retry time on a full disk: a checkpoint that does not fit fills it until its files are removed."""
_RETRY_PAUSE_S = 0.02


class Files(Protocol):
    def make_dir(self, path: Path) -> None: ...
    def write(self, path: Path, data: bytes, *, sync: bool = True) -> None: ...
    def write_parts(self, path: Path, parts: Iterable[memoryview], num_bytes: int) -> FileEntry: ...
    def copy(self, source: Path, target: Path, name: str) -> FileEntry: ...
    def seal(self, path: Path, name: str) -> FileEntry: ...
    def rename(self, source: Path, target: Path) -> None: ...
    def sync_dir(self, path: Path) -> None: ...
    def sync_file(self, path: Path) -> None: ...
    def remove(self, path: Path) -> None: ...
    def remove_tree(self, path: Path) -> None: ...


class LocalFiles:
    """A disk of this machine, or anything mounted like one."""

    def make_dir(self, path: Path) -> None:
        make_private_dirs(path)

    def write(self, path: Path, data: bytes, *, sync: bool = True) -> None:
        with _open_private(path, os.O_TRUNC) as fd:
            _write_all(fd, memoryview(data), path, len(data))
            if sync:
                _sync(fd, path)

    def write_parts(self, path: Path, parts: Iterable[memoryview], num_bytes: int) -> FileEntry:
        """Write one file of `num_bytes` from memory, and hash it. Only read-only parts may change meanwhile."""
        if num_bytes >= file_writer.MIN_BYTES:
            with LargeFileWriter(path, num_bytes) as writer:
                for part in parts:
                    writer.add(part)
                return writer.finish(path.name)
        data = memoryview(b"".join(parts))
        hasher = TransferHasher()
        with measure_save("hash"):
            hasher.add(data)
        with _open_private(path, os.O_TRUNC) as fd:
            _write_all(fd, data, path, len(data))
            _sync(fd, path)
        return hasher.to_file_entry(path.name)

    def copy(self, source: Path, target: Path, name: str) -> FileEntry:
        """Copy one file, by reference (reflink) where the filesystem supports it, and hash it on the way."""
        with source.open("rb") as reader:
            with _open_private(target, os.O_EXCL) as fd:
                is_cloned = _try_clone(reader.fileno(), fd)
                size = os.fstat(reader.fileno()).st_size
                if is_cloned or size < file_writer.MIN_BYTES:
                    entry = _hash_fd(reader.fileno(), name, None if is_cloned else (fd, target))
                    _sync(fd, target)
                    return entry
            _advise_sequential(reader.fileno())
            with LargeFileWriter(target, size) as writer:
                writer.add_file(reader.fileno())
                return writer.finish(name)

    def seal(self, path: Path, name: str) -> FileEntry:
        """Hash a file that is already in its final place, while its pages are written, and make it durable."""
        with path.open("rb") as file:
            # The disk reads ahead while the hash is computed.
            _advise_sequential(file.fileno())
            is_large = os.fstat(file.fileno()).st_size >= file_writer.MIN_BYTES
            with _write_back_beside(path) if is_large else contextlib.nullcontext():
                entry = _hash_fd(file.fileno(), name)
            _sync(file.fileno(), path)
        return entry

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def sync_dir(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            _sync(fd, path)
        finally:
            os.close(fd)

    def sync_file(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY)
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


def read_file_if_exists(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def hash_file(path: Path, name: str) -> FileEntry:
    with path.open("rb") as file:
        return _hash_fd(file.fileno(), name)


def write_private_file(path: Path, data: bytes, flags: int = os.O_TRUNC, *, sync: bool = True) -> None:
    """Write a small file that only its owner can read."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o600)
    try:
        _write_all(fd, memoryview(data), path, len(data))
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)


def write_retrying_full_disk(fd: int, data: bytes | bytearray) -> int:
    """Write a line and return the number of bytes written. Retries for a while if the disk is full."""
    until: float | None = None
    while True:
        try:
            return os.write(fd, data)
        except OSError as error:
            now = time.monotonic()
            until = until if until is not None else now + FULL_DISK_PATIENCE_S
            if error.errno not in FULL_DISK_ERRORS or now >= until:
                raise
        time.sleep(_RETRY_PAUSE_S)


@contextlib.contextmanager
def _open_private(path: Path, flags: int) -> Iterator[int]:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o600)
    except OSError as error:
        raise add_disk_details(error, path, 0) from error
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def _write_back_beside(path: Path) -> Iterator[None]:
    """Have the dirty pages of a file written by a thread beside this one."""
    thread = threading.Thread(target=file_writer.write_back, args=(path,), name="paceline-write", daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def _advise_sequential(fd: int) -> None:
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)


def _write_all(fd: int, data: memoryview, path: Path, num_left: int) -> None:
    with measure_save("write", len(data)):
        try:
            while data:
                written = os.write(fd, data)
                data, num_left = data[written:], num_left - written
        except OSError as error:
            raise add_disk_details(error, path, num_left) from error


def _sync(fd: int, path: Path) -> None:
    """Sync a file. Some filesystems report a full disk only now."""
    try:
        with measure_save("sync"):
            os.fsync(fd)
    except OSError as error:
        raise add_disk_details(error, path, 0) from error


def _hash_fd(fd: int, name: str, into: tuple[int, Path] | None = None) -> FileEntry:
    hasher = TransferHasher()
    size = os.fstat(fd).st_size
    # Clearing a whole buffer takes milliseconds, and most files are small.
    is_large = size >= file_writer.MIN_BYTES
    buffer = file_writer.take_buffer() if is_large else memoryview(bytearray(max(1, size)))
    while True:
        with measure_save("hash"):
            count = os.readv(fd, [buffer])
        if not count:
            break
        if into is not None:
            _write_all(into[0], buffer[:count], into[1], max(count, os.fstat(fd).st_size - hasher.size))
        with measure_save("hash"):
            hasher.add(buffer[:count])
    if is_large:
        file_writer.return_buffer(buffer)
    return hasher.to_file_entry(name)


def _try_clone(source: int, target: int) -> bool:
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError as problem:
        unsupported = (errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EPERM)
        if problem.errno in unsupported:
            return False
        raise
    return True
