"""Resumes an interrupted write: records which units are already written, next to their files.

The staging directory of such a write has a name that the next process finds. It contains the files, and a line for each
finished unit, written once the unit's files are on disk. A killed process loses only the units it was working on. A
lock, released when the process ends, admits one process at a time. A mark in the finished directory shows that nothing
is left to do.
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

from paceline._core.codec import seal_line, valid_prefix
from paceline.data.order.sharding import RowDelivery
from paceline.data.planning.plan import Barrier, Map, PlanNode, ReorderUnits, Unit, walk
from paceline.data.sinks.sink import FileSizing, FormatSink, StagedFile, parse_staged_files
from paceline.data.sinks.targets import FILES, MARK, TREE, LocalSinkTarget, final_names, remove_directory, sync_dirs
from paceline.data.transforms.user_calls import UserTransform

_LOCK, _DONE = "lock", "done.jsonl"


class WriteJob(msgspec.Struct, frozen=True):
    """Identifies a write: a different one cannot continue with its files."""

    rows: str
    """The units that are read, in order, and their transforms."""
    files: str
    """The format, and how rows are distributed to files."""


class _WrittenUnit(msgspec.Struct, frozen=True):
    number: int
    files: tuple[StagedFile, ...]


@dataclass
class WriteProgress:
    directory: Path
    files: list[StagedFile] = field(default_factory=list)
    next_unit: int = 0

    def record_units(self, rows: Iterable[RowDelivery]) -> None:
        with (self.directory / _DONE).open("ab") as lines:
            unit = -1
            files: list[StagedFile] = []
            for delivered in rows:
                if delivered.unit != unit:
                    self._record_unit(lines, unit, files)
                    unit, files = delivered.unit, []
                files += parse_staged_files(delivered.block)
            self._record_unit(lines, unit, files)

    def _record_unit(self, lines: Any, unit: int, files: Sequence[StagedFile]) -> None:
        if unit < 0:
            return
        sync_dirs([self.directory / FILES])
        lines.write(seal_line(msgspec.json.encode(_WrittenUnit(unit, tuple(files)))))
        lines.flush()
        os.fsync(lines.fileno())
        self.files += files
        self.next_unit = unit + 1


def make_write_job(plan: PlanNode, units: Sequence[Unit], sink: FormatSink, sizes: FileSizing) -> WriteJob:
    """Raises ValueError if rows of several units are combined: the resulting units may differ next time."""
    steps = []
    for node in walk(plan):
        if isinstance(node, Barrier):
            raise ValueError(
                f"{sink.name}(resume=True): {node.name} combines the rows of all units, so the write cannot be "
                "resumed\n\nhint: write the rows before that step, and apply it to what was written"
            )
        steps.append(f"{node.name} {_describe_arguments(node)}")
    rows = [(unit.name, unit.num_rows or 0) for unit in units]
    return WriteJob(xxhash.xxh3_64_hexdigest(repr((rows, steps)).encode()), _stable_repr((sink, sizes)))


@contextlib.contextmanager
def open_progress(target: LocalSinkTarget, job: WriteJob, name: str) -> Iterator[WriteProgress]:
    """The staging directory of a write, and the progress of an earlier process. It is kept if the write fails."""
    directory = _resume_directory(target)
    lock = _lock_directory(directory)
    if lock is None:
        raise RuntimeError(f"{name}: another process is writing to {target.display_name} with resume=True")
    try:
        target.undo_moves(directory)
        progress = _load_progress(target, directory, job, name)
        try:
            yield progress
        except BaseException:
            if not progress.files:
                remove_directory(directory)
            raise
        remove_directory(directory)
    finally:
        os.close(lock)


def is_write_finished(target: LocalSinkTarget, job: WriteJob) -> bool:
    """Whether this write is done. Also removes what a process killed right after the end has left."""
    try:
        if (target.target / MARK).read_bytes() != encode_mark(job):
            return False
    except (FileNotFoundError, NotADirectoryError):
        return False
    if _resume_directory(target).exists() and (lock := _lock_directory(_resume_directory(target))) is not None:
        remove_directory(_resume_directory(target))
        os.close(lock)
    return True


def encode_mark(job: WriteJob) -> bytes:
    return msgspec.json.encode(job)


def _resume_directory(target: LocalSinkTarget) -> Path:
    return target.target.parent / f".{target.target.name}.resuming"


def _lock_directory(directory: Path) -> int | None:
    """Create and lock the directory; return the descriptor that holds the lock, or None if another process holds it."""
    while True:
        directory.mkdir(parents=True, exist_ok=True)
        try:
            lock = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:
            continue  # Removed meanwhile by a process that has just ended; the check after the lock covers the rest.
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return None
        if _is_same_file(directory / _LOCK, lock):
            return lock
        os.close(lock)


def _is_same_file(path: Path, fd: int) -> bool:
    try:
        return path.stat().st_ino == os.fstat(fd).st_ino
    except FileNotFoundError:
        return False


def _load_progress(target: LocalSinkTarget, directory: Path, job: WriteJob, name: str) -> WriteProgress:
    """Load the progress of the same job. Removes the files of unfinished units."""
    (directory / FILES).mkdir(exist_ok=True)
    journal = directory / _DONE
    try:
        lines = list(valid_prefix(journal.read_bytes()))
    except FileNotFoundError:
        lines = []
    if lines and msgspec.json.decode(lines[0], type=WriteJob) != job:
        raise ValueError(
            f"{name}(resume=True): the unfinished write to {target.display_name} has different rows, steps or "
            f"format\n\nhint: remove {directory} to start over, or write to another path"
        )
    units = [msgspec.json.decode(line, type=_WrittenUnit) for line in lines[1:]]
    progress = WriteProgress(directory)
    _restore_files(directory, [file for unit in units for file in unit.files])
    for unit in units:
        if not all(_is_whole(directory / FILES / file.file, file.num_bytes) for file in unit.files):
            break
        progress.files += unit.files
        progress.next_unit = unit.number + 1
    finished = [unit for unit in units if unit.number < progress.next_unit]
    # Rewritten: a truncated line would hide all that follow it.
    part = journal.with_suffix(".part")
    part.write_bytes(b"".join(seal_line(msgspec.json.encode(line)) for line in (job, *finished)))
    part.rename(journal)
    sync_dirs([directory])
    names = {file.file for file in progress.files}
    for path in (directory / FILES).iterdir():
        if path.name not in names:
            path.unlink()
    return progress


def _restore_files(directory: Path, files: Sequence[StagedFile]) -> None:
    """Undo the renames of a process that was killed while it assigned the final names."""
    tree = directory / TREE
    if not tree.is_dir():
        return
    for file, name in zip(files, final_names(files, {}), strict=True):
        if (tree / name).is_file():
            (tree / name).rename(directory / FILES / file.file)
    remove_directory(tree)


def _is_whole(path: Path, num_bytes: int) -> bool:
    try:
        return path.stat().st_size == num_bytes
    except FileNotFoundError:
        return False


def _describe_arguments(node: PlanNode) -> str:
    """The arguments of a step, as far as they have a text that is the same in the next process."""
    if isinstance(node, ReorderUnits):
        return repr((node.seed, node.every_epoch))
    if not isinstance(node, Map) or not isinstance(node.transform, UserTransform):
        return ""
    call = node.transform.call
    return _stable_repr((call.args, call.constructor_args, call.kwargs, call.constructor_kwargs))


def _stable_repr(value: Any) -> str:
    """A repr that is the same in the next process: without memory addresses."""
    return re.sub(" at 0x[0-9a-f]+", "", repr(value))
