"""A directory of this machine, or of anything mounted like one, as a place to put files in.

Files are staged beside it and moved once all are there: a new directory by one rename, a replaced one by an exchange,
more files of an old one each by its own. For those a list of what is moved lies in the staging directory until the
last is in its place, so that what a killed writer had begun to move is taken back by the next.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from paceline._core import system
from paceline.data.sinks.sink import Written, synced
from paceline.data.sinks.staging import abandoned, free_numbers, numbered, removed, staging, sync_dirs

FILES = "files"
TREE = "tree"
MARK = ".written"
"""In a directory that was written with `resume=True`: by which write."""
_OLD, _MOVES = "old", "moves.json"
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
_TRIES = 20


class Move(msgspec.Struct, frozen=True):
    name: str
    """Below the target."""
    inode: int
    """Of the file: it stays the same when it is moved, and tells it from another of its name."""


@dataclass(frozen=True)
class LocalPlace:
    target: Path

    @property
    def shown(self) -> str:
        return str(self.target)

    def holds_something(self) -> bool:
        if not self.target.exists():
            return False
        if not self.target.is_dir():
            raise NotADirectoryError(
                f"path={str(self.target)!r} is a file: rows are written to a directory of files\n\n"
                "hint: name a directory that is not there yet, or one that holds such files already"
            )
        return any(not name.startswith(".") for name in os.listdir(self.target))

    def sweep(self) -> None:
        """Remove what writers that died have left here, and take back what they had begun to move."""
        for parent, prefix in ((self.target.parent, self._beside), (self.target, self._inside)):
            for path in abandoned(parent, prefix):
                self.take_back(path)
                removed(path)

    @contextlib.contextmanager
    def staging(self, overwrite: bool) -> Iterator[Path]:
        """A directory to stage files in, on the same filesystem."""
        if overwrite and os.path.ismount(self.target):
            raise ValueError(
                f"path={str(self.target)!r} is where a filesystem is mounted, so it cannot be replaced as a whole\n\n"
                "hint: write to a directory below it"
            )
        inside = self.target.is_dir() and not overwrite and not self._is_free_beside()
        parent, prefix = (self.target, self._inside) if inside else (self.target.parent, self._beside)
        with staging(parent, prefix) as path:
            (path / FILES).mkdir()
            yield path

    def publish(
        self, path: Path, files: Sequence[Written], *, overwrite: bool, only_new: bool, mark: bytes = b""
    ) -> None:
        """Bring staged files to their place. `FileExistsError` where it must be new and no longer is."""
        exists = self.target.is_dir() and bool(os.listdir(self.target))
        if exists and only_new and self.holds_something():
            raise FileExistsError(f"{self.target} has been written to by another process meanwhile")
        if exists and not overwrite:
            self._add(path, files)
            return
        tree = self._tree(path, files, mark)
        try:
            if exists:
                self._exchange(tree, path / _OLD)
            else:
                tree.rename(self.target)
        except OSError as problem:
            if problem.errno not in (errno.ENOTEMPTY, errno.EEXIST) or overwrite:
                raise
            # Another writer was first: what was to be a new directory is added to its own, or not wanted any more.
            for file, name in zip(files, names_of(files, {}), strict=True):
                (tree / name).rename(path / FILES / file.file)
            self.publish(path, files, overwrite=False, only_new=only_new)
            return
        sync_dirs([self.target.parent])

    @property
    def _beside(self) -> str:
        return f".{self.target.name}.writing-"

    @property
    def _inside(self) -> str:
        return ".writing-"

    def _is_free_beside(self) -> bool:
        parent = self.target.parent
        return os.access(parent, os.W_OK | os.X_OK) and parent.stat().st_dev == self.target.stat().st_dev

    def _tree(self, path: Path, files: Sequence[Written], mark: bytes) -> Path:
        """The whole directory as it is to be."""
        tree = path / TREE
        tree.mkdir()
        directories = {tree}
        for file, name in zip(files, names_of(files, {}), strict=True):
            target = tree / name
            target.parent.mkdir(parents=True, exist_ok=True)
            directories |= {parent for parent in target.parents if tree in parent.parents}
            (path / FILES / file.file).rename(target)
        if mark:
            (tree / MARK).write_bytes(mark)
            synced(tree / MARK)
        sync_dirs(directories)
        return tree

    def _exchange(self, tree: Path, old: Path) -> None:
        shutil.copymode(self.target, tree)
        if not _exchanged(tree, self.target):
            self.target.rename(old)
            tree.rename(self.target)

    def _add(self, path: Path, files: Sequence[Written]) -> None:
        for _ in range(_TRIES):
            names = names_of(files, free_numbers(self._there()))
            moves = [
                Move(name, (path / FILES / file.file).stat().st_ino) for file, name in zip(files, names, strict=True)
            ]
            listed = path / _MOVES
            listed.write_bytes(msgspec.json.encode(moves))
            synced(listed)
            sync_dirs([path])
            try:
                for file, move in zip(files, moves, strict=True):
                    _moved(path / FILES / file.file, self.target / move.name)
                sync_dirs({self.target, *((self.target / move.name).parent for move in moves)})
            except FileExistsError:
                # Another writer took the name: take ours back to the staging directory and count again.
                for file, move in zip(files, moves, strict=True):
                    if _inode(self.target / move.name) == move.inode:
                        (self.target / move.name).rename(path / FILES / file.file)
                continue
            except BaseException:
                self.take_back(path)
                raise
            listed.unlink()
            sync_dirs([path])
            return
        raise OSError(f"{self.target}: other writers took the names of files {_TRIES} times in a row")

    def _there(self) -> list[str]:
        return [
            os.path.relpath(os.path.join(directory, name), self.target)
            for directory, _, names in os.walk(self.target)
            for name in names
        ]

    def take_back(self, path: Path) -> None:
        """Undo what stands in the list of moves, or a replacement that stopped halfway."""
        with contextlib.suppress(FileNotFoundError, msgspec.DecodeError):  # a list cut short: nothing was moved yet
            for move in msgspec.json.decode((path / _MOVES).read_bytes(), type=list[Move]):
                target = self.target / move.name
                if _inode(target) == move.inode:
                    target.unlink()
        if (path / _OLD).is_dir() and not self.target.exists():
            (path / _OLD).rename(self.target)


def names_of(files: Sequence[Written], first: Mapping[str, int]) -> list[str]:
    return numbered([(file.partition, file.file[file.file.index(".") :]) for file in files], first)


def _inode(path: Path) -> int | None:
    try:
        return path.lstat().st_ino
    except (FileNotFoundError, NotADirectoryError):
        return None


def _moved(source: Path, target: Path) -> None:
    """Under the new name if that is free; never in place of another file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError as problem:
        if problem.errno not in _NO_LINKS:
            raise
        if target.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from None
        source.rename(target)
        return
    source.unlink()


def _exchanged(one: Path, other: Path) -> bool:
    """Two directories change names in one step; False where the system or the filesystem cannot."""
    if not system.on_linux():
        return False
    libc: Any = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        return False
    if libc.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
        return False
    raise OSError(code, os.strerror(code), str(other))
