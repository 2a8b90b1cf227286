"""Staging directories, and the cleanup of those whose writer died.

The name of such a directory identifies its owner, so it always has one. It is hidden, so readers ignore it.
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

ABANDONED_AFTER_S = 7 * 24 * 3600.0
"""A directory of another machine, whose processes cannot be checked, is abandoned this long after its last file."""

_TRIES = 5


def new_staging_name(prefix: str) -> str:
    """A unique name: prefix, machine, process, and a random token."""
    pid = os.getpid()
    return f"{prefix}{_machine_hash()}-{pid}-{system.process_start_ticks(pid)}-{secrets.token_hex(4)}"


def find_abandoned(parent: Path, prefix: str) -> list[Path]:
    """Directories with this prefix whose writers are dead."""
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
    """Create a directory; on exit, always remove it and its empty parents that were created for it."""
    created = [directory for directory in (parent, *parent.parents) if not directory.exists()]
    parent.mkdir(parents=True, exist_ok=True)
    path = parent / new_staging_name(prefix)
    path.mkdir()
    try:
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
    for tries_left in reversed(range(_TRIES)):
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
    """Flush directory entries to disk."""
    for directory in directories:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


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
