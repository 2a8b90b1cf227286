"""A write that goes on where it was interrupted: which units are written already is kept beside their files.

The staging directory of such a write has a name that the next process finds. In it lie the files, and a line for each
unit that is done, written when its files are on the disk. A process that is killed loses the units it was at, and none
before. One process at a time: the lock goes with it. A mark in the finished directory tells that nothing is left to do.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from paceline._core.codec import sealed, valid_prefix
from paceline.data.plan import Barrier, Map, Node, Reorder, walk
from paceline.data.position import Delivered
from paceline.data.sinks.local import FILES, MARK, TREE, LocalPlace, names_of
from paceline.data.sinks.sink import Sink, Sizes, Written, reported
from paceline.data.sinks.staging import removed, sync_dirs
from paceline.data.source import Unit
from paceline.data.transforms.calls import UserTransform

_LOCK, _DONE = "lock", "done.jsonl"


class Job(msgspec.Struct, frozen=True):
    """What tells one write from another: a different one cannot go on with its files."""

    rows: str
    """The units that are read, in their order, and what is done to them."""
    files: str
    """The format, and how rows are dealt out to files."""


class _Unit(msgspec.Struct, frozen=True):
    number: int
    files: tuple[Written, ...]


@dataclass
class Progress:
    """What is done of a write."""

    directory: Path
    files: list[Written] = field(default_factory=list)
    next_unit: int = 0

    def followed(self, rows: Iterable[Delivered]) -> None:
        """Take in what units are written, as it is told, until all are."""
        with (self.directory / _DONE).open("ab") as lines:
            unit = -1
            files: list[Written] = []
            for delivered in rows:
                if delivered.unit != unit:
                    self._note(lines, unit, files)
                    unit, files = delivered.unit, []
                files += reported(delivered.block)
            self._note(lines, unit, files)

    def _note(self, lines: Any, unit: int, files: Sequence[Written]) -> None:
        if unit < 0:
            return
        sync_dirs([self.directory / FILES])
        lines.write(sealed(msgspec.json.encode(_Unit(unit, tuple(files)))))
        lines.flush()
        os.fsync(lines.fileno())
        self.files += files
        self.next_unit = unit + 1


def job_of(plan: Node, units: Sequence[Unit], sink: Sink, sizes: Sizes) -> Job:
    """A ValueError where rows of several units are brought together: their number may be another one next time."""
    steps = []
    for node in walk(plan):
        if isinstance(node, Barrier):
            raise ValueError(
                f"{sink.name}(resume=True): {node.name} brings rows of all units together, and what came of it cannot "
                "be taken up again\n\nhint: write the rows before that step, and do it on what was written"
            )
        steps.append(f"{node.name} {_arguments(node)}")
    rows = [(unit.name, unit.num_rows or 0) for unit in units]
    return Job(xxhash.xxh3_64_hexdigest(repr((rows, steps)).encode()), _worded((sink, sizes)))


@contextlib.contextmanager
def progress_at(place: LocalPlace, job: Job, name: str) -> Iterator[Progress]:
    """The staging directory of a write, and what an earlier process had done of it. It stays if the write fails."""
    directory = _directory(place)
    lock = _locked(directory)
    if lock is None:
        raise RuntimeError(f"{name}: another process is writing to {place.shown} with resume=True")
    try:
        place.take_back(directory)
        progress = _found(place, directory, job, name)
        try:
            yield progress
        except BaseException:
            if not progress.files:
                removed(directory)
            raise
        removed(directory)
    finally:
        os.close(lock)


def is_finished(place: LocalPlace, job: Job) -> bool:
    """Whether this very write is done. What a process that was killed right after the end has left is removed."""
    try:
        if (place.target / MARK).read_bytes() != mark_of(job):
            return False
    except (FileNotFoundError, NotADirectoryError):
        return False
    if _directory(place).exists() and (lock := _locked(_directory(place))) is not None:
        removed(_directory(place))
        os.close(lock)
    return True


def mark_of(job: Job) -> bytes:
    return msgspec.json.encode(job)


def _directory(place: LocalPlace) -> Path:
    return place.target.parent / f".{place.target.name}.resuming"


def _locked(directory: Path) -> int | None:
    """Make the directory and hold it until what is returned is closed, or the process ends; None if another does."""
    while True:
        directory.mkdir(parents=True, exist_ok=True)
        try:
            lock = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            continue  # Removed in between, by one that has just ended; so is what is locked below and no longer there.
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return None
        if _is_at(directory / _LOCK, lock):
            return lock
        os.close(lock)


def _is_at(path: Path, fd: int) -> bool:
    try:
        return path.stat().st_ino == os.fstat(fd).st_ino
    except FileNotFoundError:
        return False


def _found(place: LocalPlace, directory: Path, job: Job, name: str) -> Progress:
    """What is there of the same job. Files of units that were not done are removed."""
    (directory / FILES).mkdir(exist_ok=True)
    journal = directory / _DONE
    try:
        told = list(valid_prefix(journal.read_bytes()))
    except FileNotFoundError:
        told = []
    if told and msgspec.json.decode(told[0], type=Job) != job:
        raise ValueError(
            f"{name}(resume=True): an unfinished write to {place.shown} was of other rows, other steps or another "
            f"format than this one\n\nhint: remove {directory} to begin anew, or write to another path"
        )
    units = [msgspec.json.decode(line, type=_Unit) for line in told[1:]]
    progress = Progress(directory)
    _put_back(directory, [file for unit in units for file in unit.files])
    for unit in units:
        if not all(_is_whole(directory / FILES / file.file, file.num_bytes) for file in unit.files):
            break
        progress.files += unit.files
        progress.next_unit = unit.number + 1
    kept = [unit for unit in units if unit.number < progress.next_unit]
    # Written anew: a line that was cut short would hide all that follow it.
    part = journal.with_suffix(".part")
    part.write_bytes(b"".join(sealed(msgspec.json.encode(line)) for line in (job, *kept)))
    part.rename(journal)
    sync_dirs([directory])
    wanted = {file.file for file in progress.files}
    for path in (directory / FILES).iterdir():
        if path.name not in wanted:
            path.unlink()
    return progress


def _put_back(directory: Path, files: Sequence[Written]) -> None:
    """A process that was killed when all was written had begun to give files their names."""
    tree = directory / TREE
    if not tree.is_dir():
        return
    for file, name in zip(files, names_of(files, {}), strict=True):
        if (tree / name).is_file():
            (tree / name).rename(directory / FILES / file.file)
    removed(tree)


def _is_whole(path: Path, num_bytes: int) -> bool:
    try:
        return path.stat().st_size == num_bytes
    except FileNotFoundError:
        return False


def _arguments(node: Node) -> str:
    """What a step is called with, as far as that can be put into words that are the same in the next process."""
    if isinstance(node, Reorder):
        return repr((node.seed, node.every_epoch))
    if not isinstance(node, Map) or not isinstance(node.transform, UserTransform):
        return ""
    call = node.transform.call
    given = (call.args, call.constructor_args, call.kwargs, call.constructor_kwargs)
    return _worded(given)


def _worded(value: Any) -> str:
    """In words that the next process finds again: without addresses in memory."""
    return re.sub(" at 0x[0-9a-f]+", "", repr(value))
