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
from paceline._engine.ray.code_bundle import ActorConfig, CodeManifest, CodeTree
from paceline._engine.ray.connection import import_ray
from paceline._storage.files import hash_file

_RAY_VARIABLES = (
    "RAY_JOB_ID",
    "RAY_RAYLET_PID",
    "RAY_CLIENT_MODE",
    "RAY_LD_PRELOAD_ON_WORKERS",
    "SPT_NOENV",
    "PYTHONBREAKPOINT",
)
"""Set by Ray for its own worker processes. With them, our worker would be taken for the agent beside it."""
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
    """A directory on this node that exists for as long as some process holds it.

    The first holder fills it; it appears complete, by a rename.
    """

    def __init__(self, path: Path, fill: Callable[[Path], None] = lambda _: None) -> None:
        self.path = path
        lock, turn, partial = (path.with_name(f"{path.name}.{end}") for end in ("lock", "turn", "half"))
        make_private_dirs(path.parent)
        self._fd = _hold_lock(lock)
        # In its own session and not our child, so that killing this process with its children spares the cleaner.
        code = f"import os\nif os.fork(): os._exit(0)\nos.setsid()\n{_CLEANER_SCRIPT}"
        command = [sys.executable, "-I", "-S", "-c", code, *map(str, (lock, turn, path, partial))]
        silent = subprocess.DEVNULL
        self._cleaner = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=silent, stderr=silent)
        self._cleaner.wait()
        with open(turn, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not path.exists():
                shutil.rmtree(partial, ignore_errors=True)  # left by a process that was killed while filling
                partial.mkdir(mode=0o700)
                fill(partial)
                os.rename(partial, path)

    def release(self) -> None:
        """Stop holding it before this process ends."""
        assert self._cleaner.stdin is not None
        os.close(self._fd)
        self._cleaner.stdin.close()


def _hold_lock(path: Path) -> int:
    """Take the shared lock on the current lock file: the last holder may have removed an older one meanwhile."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_SH)
        try:
            if os.fstat(fd).st_ino == os.stat(path).st_ino:
                return fd
        except FileNotFoundError:
            pass
        os.close(fd)


_held_directories: list[HeldDirectory] = []


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

    make_private_dirs(root)
    status = root.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        # Nobody else may write to a directory that modules are imported from.
        raise PermissionError(f"{root} is not private to this user; modules of a job are not unpacked there")
    _held_directories.append(HeldDirectory(root / manifest.digest, fill))
    return _held_directories[-1].path


def has_same_files(tree: CodeTree) -> bool:
    """Whether this node has identical files at the same path, as on storage shared with the driver."""
    try:
        return all(hash_file(Path(tree.root, file.path), file.path) == file for file in tree.files)
    except OSError:
        return False


def apply_environment(config: ActorConfig) -> None:
    """Set up the environment of the actor, before it starts anything."""
    for name in _RAY_VARIABLES:
        os.environ.pop(name, None)
    os.environ.update(config.env)


def find_missing_trees(config: ActorConfig) -> tuple[int, ...]:
    """Return the trees that this node does not already have at the same path with the same contents."""
    return tuple(n for n, tree in enumerate(config.manifest.trees) if tree.is_working_dir or not has_same_files(tree))


def apply_config(config: ActorConfig, missing: tuple[int, ...], data: bytes) -> None:
    """Set up the actor's module path, arguments and directory, which its workers inherit, with the packed `data`."""
    roots = [tree.root for tree in config.manifest.trees]
    if missing and config.manifest.size_problem:
        raise ModuleNotFoundError(f"the user's modules are missing on this node: {config.manifest.size_problem}")
    if missing:
        directory = unpack_code(config.manifest, data)
        for number in missing:
            roots[number] = str(directory / str(number))
    sys.path[:] = dict.fromkeys([*roots, *sys.path])  # what came with the job first, then what the node has
    if config.argv:
        sys.argv[:] = config.argv
    working_dir = next((roots[n] for n, tree in enumerate(config.manifest.trees) if tree.is_working_dir), None)
    if working_dir is not None:
        os.chdir(working_dir)
    elif os.path.isdir(config.cwd) and not import_ray().get_runtime_context().runtime_env.get("working_dir"):
        os.chdir(config.cwd)
