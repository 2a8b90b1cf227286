"""A parcel on a node: unpacked once for all workers there that want the same, and removed after the last of them.

Each process that uses the directory holds a lock on it. One more process for each waits until that one has ended,
however it did, and removes the directory if nobody else holds it.
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
from collections.abc import Callable, Sequence
from pathlib import Path

from paceline._core.system import make_private_dirs
from paceline._engine.ray.parcel import Parcel, Tree

_AFTERWARDS = """
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


class Held:
    """A directory of this node that is there for as long as a process lives that holds it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._half = path.with_name(f"{path.name}.half")
        self._lock = path.with_name(f"{path.name}.lock")
        self._turn = path.with_name(f"{path.name}.turn")
        self._fd = -1
        self._afterwards: subprocess.Popen[bytes] | None = None

    def take(self, fill: Callable[[Path], None]) -> Path:
        """Hold the directory; who finds none fills one, which appears whole."""
        make_private_dirs(self.path.parent)
        self._fd = self._locked()
        self._clear_up_afterwards()
        with open(self._turn, "w") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            if not self.path.exists():
                shutil.rmtree(self._half, ignore_errors=True)  # of one who was killed over it
                self._half.mkdir(mode=0o700)
                fill(self._half)
                os.rename(self._half, self.path)
        return self.path

    def _locked(self) -> int:
        """The lock, shared, on the file that has the name: one who was last may have removed it meanwhile."""
        while True:
            fd = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(fd, fcntl.LOCK_SH)
            try:
                if os.fstat(fd).st_ino == os.stat(self._lock).st_ino:
                    return fd
            except FileNotFoundError:
                pass
            os.close(fd)

    def _clear_up_afterwards(self) -> None:
        # In a session of its own and no child of ours: who ends this process with all that it started leaves it be.
        code = f"import os\nif os.fork(): os._exit(0)\nos.setsid()\n{_AFTERWARDS}"
        command = [sys.executable, "-I", "-S", "-c", code, *map(str, (self._lock, self._turn, self.path, self._half))]
        silent = subprocess.DEVNULL
        self._afterwards = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=silent, stderr=silent)
        self._afterwards.wait()


def unpacked(parcel: Parcel, data: bytes, directory: Path | None = None) -> Path:
    """Where a parcel lies on this node, for as long as this process lives."""
    root = directory if directory is not None else _directory()

    def fill(path: Path) -> None:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for info in archive.infolist():
                target = path / info.filename
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(archive.read(info))
                target.chmod(info.external_attr >> 16)

    _check_private(root)
    held = Held(root / parcel.digest)
    _holding.append(held)
    return held.take(fill)


def lies_here(tree: Tree) -> bool:
    """Whether this node has the very same files at the same place, as on storage that it shares with the driver."""
    import xxhash

    for file in tree.files:
        path = Path(tree.root, file.path)
        try:
            if path.stat().st_size != file.size or xxhash.xxh3_128_hexdigest(path.read_bytes()) != file.hash:
                return False
        except OSError:
            return False
    return True


def path_with(ours: Sequence[str], before: Sequence[str]) -> list[str]:
    """The module search path of a worker: what came with the job first, then what the node has."""
    return list(dict.fromkeys([*ours, *before]))


_holding: list[Held] = []


def _directory() -> Path:
    return Path(tempfile.gettempdir(), f"paceline-{os.getuid()}")


def _check_private(path: Path) -> None:
    """Nobody else can have put files into a directory from which modules are imported."""
    make_private_dirs(path)
    found = path.stat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{path} is not this user's alone: modules that came with a job are not put there")
