"""Directories in which files are got ready, and what becomes of those whose writer died.

The name of such a directory says who made it, so none is ever without an owner. It is hidden: readers pass over it.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
import shutil
import socket
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import xxhash

from paceline._core import system

log = logging.getLogger("paceline")

ABANDONED_S = 7 * 24 * 3600.0
"""After so long without a new file, a directory of another machine, whose processes cannot be seen, is nobody's."""

_TRIES = 5


def new_name(prefix: str) -> str:
    """A name that no other directory has: prefix, machine, process, and a random word."""
    pid = os.getpid()
    return f"{prefix}{_machine()}-{pid}-{system.process_started(pid)}-{secrets.token_hex(4)}"


def abandoned(parent: Path, prefix: str) -> list[Path]:
    """The directories with this prefix whose writers are dead."""
    try:
        found = sorted(path for path in parent.iterdir() if path.name.startswith(prefix) and not path.is_symlink())
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [path for path in found if _is_abandoned(path, path.name.removeprefix(prefix))]


def _is_abandoned(path: Path, owner: str) -> bool:
    parts = owner.split("-")
    if len(parts) != 4 or not (parts[1].isdecimal() and parts[2].isdecimal()):
        return False  # Not one of ours.
    if parts[0] == _machine():
        return not system.is_running(int(parts[1]), int(parts[2]))
    with contextlib.suppress(FileNotFoundError):
        newest = max(one.stat().st_mtime for one in (path, *path.iterdir()))
        return time.time() - newest > ABANDONED_S
    return False


def _machine() -> str:
    return xxhash.xxh3_64_hexdigest(f"{socket.gethostname()} {system.machine_id()}".encode())


@contextlib.contextmanager
def staging(parent: Path, prefix: str) -> Iterator[Path]:
    """A directory that is gone afterwards, whatever happens, and so are those above it that nothing was put in."""
    made = [directory for directory in (parent, *parent.parents) if not directory.exists()]
    parent.mkdir(parents=True, exist_ok=True)
    path = parent / new_name(prefix)
    path.mkdir()
    try:
        yield path
    finally:
        removed(path)
        for directory in made:
            try:
                directory.rmdir()
            except OSError as problem:
                if problem.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                    raise
                break


def removed(path: Path) -> None:
    """Remove a directory; a process that is just about to end may still put a file there."""
    for left in reversed(range(_TRIES)):
        try:
            shutil.rmtree(path)
            return
        except FileNotFoundError:
            if not path.exists():
                return
        except OSError as problem:
            if left == 0 or problem.errno != errno.ENOTEMPTY:
                log.warning("%s could not be removed: %s; the next write to this place tries again", path, problem)
                return
        time.sleep(0.05)


def sync_dirs(directories: Iterable[Path]) -> None:
    """Bring the names in them to the disk."""
    for directory in directories:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def numbered(files: Sequence[tuple[str, str]], first: Mapping[str, int]) -> list[str]:
    """The final names of files, given as (directory, suffix): `part-000000.parquet` and so on in each directory.

    `first` says with which number a directory begins, where that is not 0.
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


def free_numbers(there: Iterable[str]) -> dict[str, int]:
    """For each directory, the number after the highest of the files that are there."""
    first: dict[str, int] = {}
    for name in there:
        directory, _, base = name.rpartition("/")
        number = base.removeprefix("part-").partition(".")[0]
        if base.startswith("part-") and number.isascii() and number.isdecimal():
            first[directory] = max(first.get(directory, 0), int(number) + 1)
    return first
