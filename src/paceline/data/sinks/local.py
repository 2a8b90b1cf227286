"""Writes to a directory of this machine, or of a mounted filesystem.

Files are staged next to it and moved once all are complete: a new directory by one rename, a replaced one by an atomic
swap, additional files one by one. For the latter, a list of moves is in the staging directory until the last file is in
place, so that the next writer can undo the partial moves of a killed one.
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
from paceline.data.sinks import staging
from paceline.data.sinks.sink import StagedFile, sync_file

FILES = "files"
TREE = "tree"
MARK = ".written"
"""A file in a directory written with `resume=True`: identifies the write."""
_OLD, _MOVES = "old", "moves.json"
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
_INSIDE_PREFIX = ".writing-"
_TRIES = 20


class PlannedMove(msgspec.Struct, frozen=True):
    name: str
    """Relative to the target."""
    inode: int
    """The file's inode: it survives a move, and distinguishes the file from another of the same name."""


@dataclass(frozen=True)
class LocalSinkTarget:
    target: Path

    @property
    def display_name(self) -> str:
        return str(self.target)

    def has_files(self) -> bool:
        if not self.target.exists():
            return False
        if not self.target.is_dir():
            raise NotADirectoryError(
                f"path must be a directory, got the file {str(self.target)!r}\n\n"
                "hint: name a new directory, or one that has such files already"
            )
        return any(not name.startswith(".") for name in os.listdir(self.target))

    def remove_abandoned(self) -> None:
        """Remove what dead writers have left here, and undo their partial moves."""
        for parent, prefix in ((self.target.parent, self._beside_prefix), (self.target, _INSIDE_PREFIX)):
            for path in staging.find_abandoned(parent, prefix):
                self.undo_moves(path)
                staging.remove_directory(path)

    @contextlib.contextmanager
    def open_staging(self, overwrite: bool) -> Iterator[Path]:
        """A staging directory on the same filesystem."""
        if overwrite and os.path.ismount(self.target):
            raise ValueError(
                f"cannot overwrite {str(self.target)!r}: it is the mount point of a filesystem\n\n"
                "hint: write to a directory below it"
            )
        inside = self.target.is_dir() and not overwrite and not self._can_stage_beside()
        parent, prefix = (self.target, _INSIDE_PREFIX) if inside else (self.target.parent, self._beside_prefix)
        with staging.open_staging_directory(parent, prefix) as path:
            (path / FILES).mkdir()
            yield path

    def publish(
        self, path: Path, files: Sequence[StagedFile], *, overwrite: bool, only_new: bool, mark: bytes = b""
    ) -> None:
        """Move staged files into place. Raises FileExistsError if the target must be new and no longer is."""
        exists = self.target.is_dir() and bool(os.listdir(self.target))
        if exists and only_new and self.has_files():
            raise FileExistsError(f"{self.target} was written to by another process meanwhile")
        if exists and not overwrite:
            self._add_files(path, files)
            return
        tree = self._build_tree(path, files, mark)
        try:
            if exists:
                self._swap_in(tree, path / _OLD)
            else:
                tree.rename(self.target)
        except OSError as problem:
            if problem.errno not in (errno.ENOTEMPTY, errno.EEXIST) or overwrite:
                raise
            # Another writer was first: add our files to its directory, or fail if the target must be new.
            for file, name in zip(files, final_names(files, {}), strict=True):
                (tree / name).rename(path / FILES / file.file)
            self.publish(path, files, overwrite=False, only_new=only_new)
            return
        staging.sync_dirs([self.target.parent])

    @property
    def _beside_prefix(self) -> str:
        return f".{self.target.name}.writing-"

    def _can_stage_beside(self) -> bool:
        parent = self.target.parent
        return os.access(parent, os.W_OK | os.X_OK) and parent.stat().st_dev == self.target.stat().st_dev

    def _build_tree(self, path: Path, files: Sequence[StagedFile], mark: bytes) -> Path:
        """Build the complete directory."""
        tree = path / TREE
        tree.mkdir()
        directories = {tree}
        for file, name in zip(files, final_names(files, {}), strict=True):
            target = tree / name
            target.parent.mkdir(parents=True, exist_ok=True)
            directories |= {parent for parent in target.parents if tree in parent.parents}
            (path / FILES / file.file).rename(target)
        if mark:
            (tree / MARK).write_bytes(mark)
            sync_file(tree / MARK)
        staging.sync_dirs(directories)
        return tree

    def _swap_in(self, tree: Path, old: Path) -> None:
        shutil.copymode(self.target, tree)
        if not _swap_directories(tree, self.target):
            self.target.rename(old)
            tree.rename(self.target)

    def _add_files(self, path: Path, files: Sequence[StagedFile]) -> None:
        for _ in range(_TRIES):
            names = final_names(files, staging.next_free_numbers(self._list_files()))
            moves = [
                PlannedMove(name, (path / FILES / file.file).stat().st_ino)
                for file, name in zip(files, names, strict=True)
            ]
            listed = path / _MOVES
            listed.write_bytes(msgspec.json.encode(moves))
            sync_file(listed)
            staging.sync_dirs([path])
            try:
                for file, move in zip(files, moves, strict=True):
                    _move_file(path / FILES / file.file, self.target / move.name)
                staging.sync_dirs({self.target, *((self.target / move.name).parent for move in moves)})
            except FileExistsError:
                # Another writer took the name: move ours back to the staging directory and renumber.
                for file, move in zip(files, moves, strict=True):
                    if _inode(self.target / move.name) == move.inode:
                        (self.target / move.name).rename(path / FILES / file.file)
                continue
            except BaseException:
                self.undo_moves(path)
                raise
            listed.unlink()
            staging.sync_dirs([path])
            return
        raise OSError(f"{self.target}: other writers took the file names {_TRIES} times in a row")

    def _list_files(self) -> list[str]:
        return [
            os.path.relpath(os.path.join(directory, name), self.target)
            for directory, _, names in os.walk(self.target)
            for name in names
        ]

    def undo_moves(self, path: Path) -> None:
        """Undo the listed moves, or a replacement that was interrupted."""
        with contextlib.suppress(FileNotFoundError, msgspec.DecodeError):  # a truncated list: nothing was moved yet
            for move in msgspec.json.decode((path / _MOVES).read_bytes(), type=list[PlannedMove]):
                target = self.target / move.name
                if _inode(target) == move.inode:
                    target.unlink()
        if (path / _OLD).is_dir() and not self.target.exists():
            (path / _OLD).rename(self.target)


def final_names(files: Sequence[StagedFile], first: Mapping[str, int]) -> list[str]:
    return staging.number_files([(file.partition, file.file[file.file.index(".") :]) for file in files], first)


def _inode(path: Path) -> int | None:
    try:
        return path.lstat().st_ino
    except (FileNotFoundError, NotADirectoryError):
        return None


def _move_file(source: Path, target: Path) -> None:
    """Move only if the new name is free; never replace another file."""
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


def _swap_directories(one: Path, other: Path) -> bool:
    """Swap two directories atomically; False if the system or the filesystem cannot."""
    if not system.is_linux():
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
