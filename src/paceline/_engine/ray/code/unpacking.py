"""The code bundle on a node: unpacked once for all workers that need it, and removed after the last of them.

Each process that uses the directory holds a lock on it. A cleaner process waits for each of them to exit, however it
does, and removes the directory if nobody else holds it.
"""

from __future__ import annotations

import fcntl
import io
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from paceline._core.system import make_private_dirs
from paceline._engine.ray.code.packing import CodeManifest, CodeTree
from paceline._storage.files import hash_file

_CLEANER_SCRIPT = """
import fcntl, os, shutil, sys, time
sys.stdin.buffer.read()
lock, turn, *paths = sys.argv[1:]
def is_last():
    # The system closes what a process had one by one: its lock may go a moment after this line to it.
    for _ in range(100):
        try:
            fd = os.open(lock, os.O_RDWR)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return os.fstat(fd).st_ino == os.stat(lock).st_ino
        except FileNotFoundError:
            return False
        except BlockingIOError:
            os.close(fd)
            time.sleep(0.05)
    return False
if is_last():
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)
    if os.path.exists(turn):
        os.unlink(turn)
    os.unlink(lock)
"""


class HeldDirectory:
    """A directory on this node that exists for as long as some process holds it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._partial = path.with_name(f"{path.name}.half")
        self._lock = path.with_name(f"{path.name}.lock")
        self._turn = path.with_name(f"{path.name}.turn")
        self._fd = -1
        self._cleaner: subprocess.Popen[bytes] | None = None

    def acquire(self, fill: Callable[[Path], None]) -> Path:
        """Hold the directory. The first holder fills it; it appears complete, by a rename."""
        make_private_dirs(self.path.parent)
        self._fd = self._acquire_lock()
        self._start_cleaner()
        with open(self._turn, "w") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            if not self.path.exists():
                shutil.rmtree(self._partial, ignore_errors=True)  # left by a process that was killed while filling
                self._partial.mkdir(mode=0o700)
                fill(self._partial)
                os.rename(self._partial, self.path)
        return self.path

    def _acquire_lock(self) -> int:
        """Take the shared lock on the current lock file: the last holder may have removed an older one meanwhile."""
        while True:
            fd = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(fd, fcntl.LOCK_SH)
            try:
                if os.fstat(fd).st_ino == os.stat(self._lock).st_ino:
                    return fd
            except FileNotFoundError:
                pass
            os.close(fd)

    def _start_cleaner(self) -> None:
        # In its own session and not our child, so that killing this process with its children spares the cleaner.
        code = f"import os\nif os.fork(): os._exit(0)\nos.setsid()\n{_CLEANER_SCRIPT}"
        paths = map(str, (self._lock, self._turn, self.path, self._partial))
        command = [sys.executable, "-I", "-S", "-c", code, *paths]
        silent = subprocess.DEVNULL
        self._cleaner = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=silent, stderr=silent)
        self._cleaner.wait()


def unpack_code(manifest: CodeManifest, data: bytes, directory: Path | None = None) -> Path:
    """Unpack the files for as long as this process lives, and return where they are."""
    root = directory if directory is not None else Path(tempfile.gettempdir(), f"paceline-{os.getuid()}")

    def fill(path: Path) -> None:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for info in archive.infolist():
                target = path / info.filename
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(archive.read(info))
                target.chmod(info.external_attr >> 16)

    _check_private(root)
    held_directory = HeldDirectory(root / manifest.digest)
    _held_directories.append(held_directory)
    return held_directory.acquire(fill)


def has_same_files(tree: CodeTree) -> bool:
    """Whether this node has identical files at the same path, as on storage shared with the driver."""
    try:
        return all(hash_file(Path(tree.root, file.path), file.path) == file for file in tree.files)
    except OSError:
        return False


_held_directories: list[HeldDirectory] = []


def _check_private(path: Path) -> None:
    """Check that nobody else can write to a directory that modules are imported from."""
    make_private_dirs(path)
    status = path.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PermissionError(f"{path} is not private to this user; modules of a job are not unpacked there")
