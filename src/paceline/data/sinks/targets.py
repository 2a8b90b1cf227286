"""Where files are written: a directory of this machine or of a mounted filesystem, or an object store.

Files are staged in a hidden directory, whose name identifies its owner, so that the next writer removes those of dead
ones. In a directory, staged files are moved once all are complete: a new directory by one rename, a replaced one by an
atomic swap, additional files one by one. For the latter, a list of moves is in the staging directory until the last
file is in place, so that the next writer can undo the partial moves of a killed one.

Many objects cannot be renamed at once, so files for a store are staged on this machine and uploaded once all are
complete. An object appears whole or not at all, and never replaces an existing one, except one of the same chosen name
when all are overwritten; after a failure, this write's new objects are deleted. A process killed during the upload
leaves the objects it had uploaded.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import logging
import os
import secrets
import shutil
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import msgspec
import xxhash
from pyarrow.fs import LocalFileSystem

from paceline._core import system
from paceline._core.arguments import bad_value
from paceline._storage.address import open_store_at
from paceline._storage.retrying_store import RetryingStore
from paceline._storage.store import run_in_parallel
from paceline.data.context import DataContext
from paceline.data.sinks.sink import StagedFile, sync_path

FILES, TREE, MARK = "files", "tree", ".written"
"""Of staged files, of the directory made of them, and of the file that identifies a write with `resume=True`."""
_OLD, _MOVES = "old", "moves.json"
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
_INSIDE_PREFIX, STORE_PREFIX = ".writing-", f".paceline-{os.getuid()}-writing-"
_MOVE_TRIES, _REMOVE_TRIES = 20, 5
ABANDONED_AFTER_S = 7 * 24 * 3600.0
"""A directory of another machine, whose processes cannot be checked, is abandoned this long after its last file."""

log = logging.getLogger("paceline")


class SinkTarget(Protocol):
    @property
    def display_name(self) -> str: ...
    def has_files(self) -> bool: ...
    def list_names(self) -> list[str]: ...
    def remove_abandoned(self) -> None: ...
    def open_staging(self, overwrite: bool) -> contextlib.AbstractContextManager[Path]: ...
    def publish(self, path: Path, files: Sequence[StagedFile], *, overwrite: bool, only_new: bool) -> None: ...


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
            for path in find_abandoned(parent, prefix):
                self.undo_moves(path)
                remove_directory(path)

    def open_staging(self, overwrite: bool) -> contextlib.AbstractContextManager[Path]:
        """A staging directory on the same filesystem."""
        if overwrite and os.path.ismount(self.target):
            raise ValueError(
                f"cannot overwrite {str(self.target)!r}: it is the mount point of a filesystem\n\n"
                "hint: write to a directory below it"
            )
        inside = self.target.is_dir() and not overwrite and not self._can_stage_beside()
        parent, prefix = (self.target, _INSIDE_PREFIX) if inside else (self.target.parent, self._beside_prefix)
        return open_staging_directory(parent, prefix)

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
        sync_dirs([self.target.parent])

    @property
    def _beside_prefix(self) -> str:
        return f".{self.target.name}.writing-"

    def _can_stage_beside(self) -> bool:
        parent = self.target.parent
        return os.access(parent, os.W_OK | os.X_OK) and parent.stat().st_dev == self.target.stat().st_dev

    def _build_tree(self, path: Path, files: Sequence[StagedFile], mark: bytes) -> Path:
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
            sync_path(tree / MARK)
        sync_dirs(directories)
        return tree

    def _swap_in(self, tree: Path, old: Path) -> None:
        shutil.copymode(self.target, tree)
        if not _swap_directories(tree, self.target):
            self.target.rename(old)
            tree.rename(self.target)

    def _add_files(self, path: Path, files: Sequence[StagedFile]) -> None:
        for _ in range(_MOVE_TRIES):
            existing = self.list_names()
            names = final_names(files, next_free_numbers(existing))
            _check_new(files, names, existing, self.display_name)
            moves = [
                PlannedMove(name, (path / FILES / file.file).stat().st_ino)
                for file, name in zip(files, names, strict=True)
            ]
            listed = path / _MOVES
            listed.write_bytes(msgspec.json.encode(moves))
            sync_path(listed)
            sync_dirs([path])
            try:
                for file, move in zip(files, moves, strict=True):
                    _move_file(path / FILES / file.file, self.target / move.name)
                sync_dirs({self.target, *((self.target / move.name).parent for move in moves)})
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
            sync_dirs([path])
            return
        raise OSError(f"{self.target}: other writers took the file names {_MOVE_TRIES} times in a row")

    def list_names(self) -> list[str]:
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
    numbered = number_files([(file.partition, file.file[file.file.index(".") :]) for file in files], first)
    given = [f"{file.partition}/{file.name}" if file.partition else file.name for file in files]
    names = [name if file.name else number for file, name, number in zip(files, given, numbered, strict=True)]
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise ValueError(
            f"filename_provider must give each file a unique name, got {twice!r} twice\n\n"
            "hint: build it from write_uuid, task_index, block_index and row_index"
        )
    return names


def _check_new(files: Sequence[StagedFile], names: Sequence[str], existing: Iterable[str], place: str) -> None:
    """Refuse names of a user that are taken; numbers are chosen again."""
    chosen = {name for file, name in zip(files, names, strict=True) if file.name}
    if taken := sorted(chosen.intersection(existing)):
        raise FileExistsError(
            f"filename_provider must give new names, but {place} already has {taken[0]!r}\n\n"
            "hint: use write_uuid in the names, or replace the existing files with mode='overwrite'"
        )


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


def new_staging_name(prefix: str) -> str:
    pid = os.getpid()
    return f"{prefix}{_machine_hash()}-{pid}-{system.process_start_ticks(pid)}-{secrets.token_hex(4)}"


def find_abandoned(parent: Path, prefix: str) -> list[Path]:
    try:
        paths = sorted(path for path in parent.iterdir() if path.name.startswith(prefix) and not path.is_symlink())
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [path for path in paths if _is_abandoned(path, path.name.removeprefix(prefix))]


def _is_abandoned(path: Path, owner: str) -> bool:
    parts = owner.split("-")
    if len(parts) != 4 or not (parts[1].isdecimal() and parts[2].isdecimal()):
        return False  # Not one of ours.
    if parts[0] == _machine_hash():
        return not system.is_running(int(parts[1]), int(parts[2]))
    with contextlib.suppress(FileNotFoundError):
        newest = max(one.stat().st_mtime for one in (path, *path.iterdir()))
        return time.time() - newest > ABANDONED_AFTER_S
    return False


def _machine_hash() -> str:
    return xxhash.xxh3_64_hexdigest(f"{socket.gethostname()} {system.machine_id()}".encode())


@contextlib.contextmanager
def open_staging_directory(parent: Path, prefix: str) -> Iterator[Path]:
    """Create a directory for `FILES`; on exit, always remove it and its empty parents that were created for it."""
    created = [directory for directory in (parent, *parent.parents) if not directory.exists()]
    parent.mkdir(parents=True, exist_ok=True)
    path = parent / new_staging_name(prefix)
    path.mkdir()
    try:
        (path / FILES).mkdir()
        yield path
    finally:
        remove_directory(path)
        for directory in created:
            try:
                directory.rmdir()
            except OSError as problem:
                if problem.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                    raise
                break


def remove_directory(path: Path) -> None:
    """Remove a directory; an exiting process may still create a file in it."""
    for tries_left in reversed(range(_REMOVE_TRIES)):
        try:
            shutil.rmtree(path)
            return
        except FileNotFoundError:
            if not path.exists():
                return
        except OSError as problem:
            if tries_left == 0 or problem.errno != errno.ENOTEMPTY:
                log.warning("cannot remove %s: %s; the next write to this path tries again", path, problem)
                return
        time.sleep(0.05)


def sync_dirs(directories: Iterable[Path]) -> None:
    for directory in directories:
        sync_path(directory)


def number_files(files: Sequence[tuple[str, str]], first: Mapping[str, int]) -> list[str]:
    """The final names of files, given as (directory, suffix): `part-000000.parquet` and so on in each directory.

    `first` is the first number of each directory; the default is 0.
    """
    counts = Counter(directory for directory, _ in files)
    width = {directory: max(6, len(str(first.get(directory, 0) + count - 1))) for directory, count in counts.items()}
    upcoming = {directory: first.get(directory, 0) for directory in counts}
    names = []
    for directory, suffix in files:
        base = f"part-{upcoming[directory]:0{width[directory]}d}{suffix}"
        names.append(f"{directory}/{base}" if directory else base)
        upcoming[directory] += 1
    return names


def next_free_numbers(names: Iterable[str]) -> dict[str, int]:
    """For each directory, the number after the highest existing one."""
    first: dict[str, int] = {}
    for name in names:
        directory, _, base = name.rpartition("/")
        number = base.removeprefix("part-").partition(".")[0]
        if base.startswith("part-") and number.isascii() and number.isdecimal():
            first[directory] = max(first.get(directory, 0), int(number) + 1)
    return first


@dataclass(frozen=True)
class BucketSinkTarget:
    store: RetryingStore

    @property
    def display_name(self) -> str:
        return self.store.uri

    def has_files(self) -> bool:
        return any(not _is_hidden(key) for key in self.list_names())

    def remove_abandoned(self) -> None:
        """Remove what dead writers of this user have left in the staging directory."""
        for path in find_abandoned(self._staging_root, STORE_PREFIX):
            remove_directory(path)

    def open_staging(self, overwrite: bool) -> contextlib.AbstractContextManager[Path]:
        return open_staging_directory(self._staging_root, STORE_PREFIX)

    def publish(self, path: Path, files: Sequence[StagedFile], *, overwrite: bool, only_new: bool) -> None:
        existing = self.list_names()
        if only_new and not all(map(_is_hidden, existing)):
            raise FileExistsError(f"{self.display_name} was written to by another process meanwhile")
        names = final_names(files, {})
        if not overwrite or not set(existing).isdisjoint(names):
            names = final_names(files, next_free_numbers(existing))
        if not overwrite:
            _check_new(files, names, existing, self.display_name)
        uploads = [
            partial(self.store.upload, path / FILES / file.file, name) for file, name in zip(files, names, strict=True)
        ]
        try:
            run_in_parallel(uploads)
        except BaseException:
            run_in_parallel([partial(self.store.delete, name) for name in names if name not in existing])
            raise
        if overwrite:
            run_in_parallel([partial(self.store.delete, key) for key in existing if key not in {*names}])

    @property
    def _staging_root(self) -> Path:
        return Path(DataContext.get_current().spill_path or tempfile.gettempdir())

    def list_names(self) -> list[str]:
        return [entry.key for entry in self.store.list_entries()]


def _is_hidden(key: str) -> bool:
    return any(part.startswith(".") for part in key.split("/"))


def resolve_target(path: str | os.PathLike[str], filesystem: Any = None) -> SinkTarget:
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"path must be a path or a URI, got {path!r}")
    text = os.fspath(path)
    if not text:
        raise bad_value("path", "the name of a directory", path)
    scheme, _, rest = text.partition("://") if "://" in text else ("", "", text)
    if (filesystem is not None and not _is_local(filesystem)) or scheme not in ("", "file", "local"):
        return BucketSinkTarget(open_store_at(text, filesystem))
    return LocalSinkTarget(Path(os.path.realpath(os.path.expanduser(rest if scheme else text))))


def _is_local(filesystem: Any) -> bool:
    if isinstance(filesystem, LocalFileSystem):
        return True
    protocol = getattr(filesystem, "protocol", ())
    return "file" in ((protocol,) if isinstance(protocol, str) else tuple(protocol))
