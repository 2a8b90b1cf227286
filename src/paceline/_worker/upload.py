"""How a checkpoint gets from the user into staging: copied, moved, snapshotted, or left in place.

A worker has at most one upload in the background. The next one waits for it, so memory stays bounded.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Raw

from paceline._core.checkpoint_records import CheckpointRecord, FileEntry, StagedFiles
from paceline._core.system import is_linux, make_private_dirs
from paceline._storage.commit import has_links, stage_copy, stage_in_place, stage_move
from paceline._storage.file_writer import write_back_growing_files
from paceline._storage.files import Files
from paceline._storage.run_store import RunStore
from paceline._storage.state import STEM, SnapshotMemory, StateSnapshot, take_snapshot

log = logging.getLogger("paceline")


@dataclass(frozen=True)
class Directory:
    """Files that the user wrote."""

    path: Path
    delete: bool = False
    complete: Callable[[], None] | None = None
    """Waits until all files are there, if something still writes them; called on the thread that stages them."""


@dataclass(frozen=True)
class InPlace:
    """Files that the user, or the user's own upload function, already put in their final place."""

    path: Path


@dataclass(frozen=True)
class State:
    """A tree of tensors, arrays and numbers in memory."""

    tree: Any
    allow_pickle: bool = False
    stem: str = STEM
    """The prefix of its file names."""
    notes: bytes = b""
    """The user's own metadata for it; empty if there is none."""


CheckpointSource = Directory | InPlace | State


class Uploader:
    def __init__(self, files: Files, store: RunStore, attempt: int, rank: int) -> None:
        self._files = files
        self._store = store
        self._layout = layout = store.layout
        self._attempt = attempt
        self._rank = rank
        self._scratch = layout.scratch(attempt, rank)
        self._arena = SnapshotMemory()
        self._thread: threading.Thread | None = None

    def scratch_directory(self) -> Path:
        """Create an empty directory on the run's own storage; a checkpoint made from it is moved, never copied."""
        make_private_dirs(self._scratch)
        return Path(tempfile.mkdtemp(dir=self._scratch))

    def staging_directory(self) -> Path:
        """Create a scratch directory for the user, whose files are written back while the user writes them."""
        directory = self.scratch_directory()
        if is_linux():
            target = partial(write_back_growing_files, directory)
            threading.Thread(target=target, name="paceline-write-back", daemon=True).start()
        return directory

    def upload(self, seq: int, name: str, source: CheckpointSource) -> StagedFiles:
        """Stage a checkpoint and return when its files are durable."""
        self.wait()
        return self._stage(seq, name, self._freeze_source(source))

    def upload_later(
        self, seq: int, name: str, source: CheckpointSource, on_done: Callable[[StagedFiles | Exception], None]
    ) -> None:
        """Snapshot what must not change any more, and stage it in the background."""
        self.wait()
        frozen = self._freeze_source(source)
        if isinstance(frozen, Directory) and frozen.complete is None:
            frozen = self._take_directory(frozen)

        def work() -> None:
            try:
                staged = self._stage(seq, name, frozen)
            except Exception as error:  # noqa: BLE001
                if isinstance(frozen, Directory) and frozen.complete is None:
                    shutil.rmtree(frozen.path, ignore_errors=True)
                on_done(error)
            else:
                on_done(staged)

        self._thread = threading.Thread(target=work, name="paceline-upload", daemon=True)
        self._thread.start()

    def discard(self, seq: int) -> None:
        """Free what was staged for a checkpoint that was given up: it may fill the disk."""
        self.wait()
        self._remove_staged(seq)

    def _remove_staged(self, seq: int) -> None:
        try:
            self._files.remove_tree(self._layout.staged_rank(self._attempt, seq, self._rank))
        except OSError as error:
            log.warning("cannot remove the staged files of report %d: %s", seq, error)

    def wait(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _freeze_source(self, source: CheckpointSource) -> Directory | InPlace | StateSnapshot:
        if isinstance(source, State):
            snapshot = take_snapshot(source.tree, self._arena, allow_pickle=source.allow_pickle, stem=source.stem)
            return replace(snapshot, notes=source.notes)
        return source

    def _take_directory(self, source: Directory) -> Directory:
        """Make a user's directory ours by a rename: whatever is done to its path from now on changes nothing in it.

        Copied instead if the user keeps it, or if it contains links.
        """
        is_given = source.delete or source.path.is_relative_to(self._scratch)
        if is_given and not has_links(source.path):
            # A directory on another filesystem is renamed next to where it was.
            for parent in (self._scratch, source.path.parent):
                with contextlib.suppress(OSError):
                    return Directory(_rename_into(source.path, parent), delete=True)
        copy = self.scratch_directory()
        try:
            stage_copy(self._files, source.path, copy)
        except BaseException:
            shutil.rmtree(copy, ignore_errors=True)
            raise
        if is_given:
            shutil.rmtree(source.path, ignore_errors=True)
        return Directory(copy, delete=True)

    def _stage(self, seq: int, name: str, frozen: Directory | InPlace | StateSnapshot) -> StagedFiles:
        if isinstance(frozen, Directory) and frozen.complete is not None:
            frozen.complete()
        if isinstance(frozen, InPlace):
            return StagedFiles(self._rank, stage_in_place(self._files, frozen.path), in_place=True)
        target = self._layout.staged_rank(self._attempt, seq, self._rank)
        self._files.remove_tree(target)
        try:
            files = self._fill_staging(target, frozen)
            self._store.upload_staged(CheckpointRecord(seq, name, self._attempt, Raw(b"{}")), self._rank, target, files)
            return StagedFiles(self._rank, files)
        except Exception:
            self._remove_staged(seq)
            raise

    def _fill_staging(self, target: Path, frozen: Directory | StateSnapshot) -> tuple[FileEntry, ...]:
        if isinstance(frozen, StateSnapshot):
            self._files.make_dir(target)
            return frozen.write(target, self._files)
        is_in_scratch = frozen.path.is_relative_to(self._scratch)
        # A moved link would still be a link, whose target may change or vanish, so it is copied.
        can_move = is_in_scratch
        if frozen.delete and not is_in_scratch and not frozen.path.is_symlink():
            can_move = frozen.path.stat().st_dev == self._layout.root.stat().st_dev
        if can_move and not has_links(frozen.path):
            return stage_move(self._files, frozen.path, target)
        self._files.make_dir(target)
        entries = stage_copy(self._files, frozen.path, target)
        if frozen.delete or is_in_scratch:
            with contextlib.suppress(OSError):
                shutil.rmtree(frozen.path)
        return entries


def _rename_into(path: Path, parent: Path) -> Path:
    make_private_dirs(parent)
    target = Path(tempfile.mkdtemp(prefix=".paceline-", dir=parent))
    try:
        return path.rename(target)
    except OSError:
        target.rmdir()
        raise
