"""How a checkpoint gets from the user into staging: copied, moved, snapshotted, or left in place.

A worker has at most two uploads in the background: one is written while the next, of a state that fits into memory a
second time, waits for its turn. A third waits for the first, or replaces the one that waits.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import tempfile
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Raw, structs

from paceline._core.checkpoint_records import CheckpointRecord, FileEntry, StagedFiles
from paceline._core.system import is_linux, make_private_dirs, usable_memory
from paceline._storage.commit import has_links, stage_copy, stage_in_place, stage_move
from paceline._storage.file_writer import write_back_growing_files
from paceline._storage.files import Files
from paceline._storage.run_store import RunStore
from paceline._storage.save_meter import SaveMeter, attach_meter
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
FrozenSource = Directory | InPlace | StateSnapshot

MAX_SAVES = 2


class SaveSkippedError(Exception):
    """A checkpoint was given up because earlier ones were still being written."""


@dataclass(eq=False)
class _Save:
    """A checkpoint that is being staged in the background, or is next."""

    seq: int
    name: str
    frozen: FrozenSource
    memory: SnapshotMemory | None
    on_done: Callable[[StagedFiles | Exception], None]
    meter: SaveMeter
    is_begun: bool = False
    is_cancelled: bool = False

    def raise_if_cancelled(self) -> None:
        if self.is_cancelled:
            raise SaveSkippedError


class Uploader:
    def __init__(self, files: Files, store: RunStore, attempt: int, rank: int, num_local_ranks: int = 1) -> None:
        self._files = files
        self._store = store
        self._layout = layout = store.layout
        self._attempt = attempt
        self._rank = rank
        self._scratch = layout.scratch(attempt, rank)
        self._num_local_ranks = num_local_ranks
        self._memories = [SnapshotMemory()]
        self._num_snapshot_bytes = 0
        """Of the last state."""
        # Protects the two below, which the user's thread, the thread that stages and the listening thread change.
        self._changed = threading.Condition()
        self._saves: deque[_Save] = deque()
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
        meter = SaveMeter()
        with meter.at("copy"):
            frozen = self._freeze_source(source, self._memories[0], is_lasting=False)
        return self._stage_measured(seq, name, frozen, meter)

    def upload_later(
        self,
        seq: int,
        name: str,
        source: CheckpointSource,
        on_done: Callable[[StagedFiles | Exception], None],
        *,
        can_skip: bool = False,
    ) -> None:
        """Snapshot what must not change any more, and stage it in the background.

        If there is no room for another save, wait until there is. With `can_skip`, give up the save that has not begun,
        or else this one: then `SaveSkippedError` is passed to its `on_done`, or raised.
        """
        memory = self._make_room(isinstance(source, State), can_skip)
        meter = SaveMeter()
        with meter.at("copy"):
            frozen = self._freeze_source(source, memory)
            if isinstance(frozen, Directory) and frozen.complete is None:
                frozen = self._take_directory(frozen)
        save = _Save(seq, name, frozen, memory, on_done, meter)
        if isinstance(frozen, StateSnapshot):
            save.frozen = replace(frozen, before_part=save.raise_if_cancelled)
        with self._changed:
            self._saves.append(save)
            if self._thread is None:
                self._thread = threading.Thread(target=self._stage_saves, name="paceline-upload", daemon=True)
                self._thread.start()
        if isinstance(frozen, StateSnapshot) and frozen.is_streamed:
            self.wait()

    def prepare_gpu_memory(self, nbytes: int) -> None:
        """Page-lock memory in the background for the first snapshot of GPU values, whose size is known by now."""
        self._memories[0].pinned.prepare(nbytes)

    def cancel(self, seq: int) -> None:
        """Give up a save that is no longer wanted, if it is not done. Does not wait."""
        with self._changed:
            for save in [save for save in self._saves if save.seq == seq]:
                save.is_cancelled = True
                if not save.is_begun and save.memory is not None:
                    self._saves.remove(save)  # Others may have its memory.
                    self._changed.notify_all()

    def discard(self, seq: int) -> None:
        """Free what was staged for a checkpoint that was given up: it may fill the disk."""
        self.cancel(seq)
        with self._changed:
            self._changed.wait_for(lambda: all(save.seq != seq for save in self._saves))
        self._remove_staged(seq)

    def _remove_staged(self, seq: int) -> None:
        try:
            self._files.remove_tree(self._layout.staged_rank(self._attempt, seq, self._rank))
        except OSError as error:
            log.warning("cannot remove the staged files of report %d: %s", seq, error)

    def wait(self) -> None:
        """Wait until nothing is being staged."""
        with self._changed:
            thread = self._thread
        if thread is not None:
            thread.join()

    def _make_room(self, is_state: bool, can_skip: bool) -> SnapshotMemory | None:
        """Wait until another save may be taken, and return the memory for a state."""
        while True:
            with self._changed:
                memory = self._find_memory() if is_state else None
                if len(self._saves) < MAX_SAVES and (memory is not None or not is_state):
                    return memory
                unbegun = next((save for save in self._saves if not save.is_begun), None)
                if not can_skip:
                    self._changed.wait()
                elif unbegun is None:
                    raise SaveSkippedError
                else:
                    self._saves.remove(unbegun)
            if can_skip and unbegun is not None:
                _remove_source(unbegun.frozen)
                unbegun.on_done(SaveSkippedError())

    def _find_memory(self) -> SnapshotMemory | None:
        """Return memory that no save uses. A second one if each worker of this machine can hold its state once more,
        with an eighth of all memory to spare.
        """
        used = [save.memory for save in self._saves]
        free = [memory for memory in self._memories if memory not in used]
        if not free and len(self._memories) < MAX_SAVES:
            machine = usable_memory()
            if machine.free_bytes - self._num_snapshot_bytes * self._num_local_ranks >= machine.total_bytes // 8:
                free = [SnapshotMemory()]
                self._memories += free
        return free[0] if free else None

    def _stage_saves(self) -> None:
        while True:
            with self._changed:
                if not self._saves:
                    self._thread = None
                    return
                save = self._saves[0]
                save.is_begun = True
            try:
                outcome = self._try_stage(save)
                if not (save.is_cancelled and isinstance(outcome, Exception)):  # Whoever cancelled it knows.
                    save.on_done(outcome)
            finally:
                with self._changed:
                    self._saves.popleft()
                    self._changed.notify_all()

    def _try_stage(self, save: _Save) -> StagedFiles | Exception:
        frozen = save.frozen
        try:
            save.raise_if_cancelled()
            return self._stage_measured(save.seq, save.name, frozen, save.meter)
        except Exception as error:  # noqa: BLE001
            _remove_source(frozen)
            return error

    def _freeze_source(
        self, source: CheckpointSource, memory: SnapshotMemory | None, *, is_lasting: bool = True
    ) -> FrozenSource:
        if isinstance(source, State):
            assert memory is not None
            snapshot = take_snapshot(
                source.tree, memory, allow_pickle=source.allow_pickle, stem=source.stem, is_lasting=is_lasting
            )
            self._num_snapshot_bytes = snapshot.nbytes
            return replace(snapshot, notes=source.notes)
        self._memories[0].pinned.release_unused()  # This script writes its own files.
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

    def _stage_measured(self, seq: int, name: str, frozen: FrozenSource, meter: SaveMeter) -> StagedFiles:
        with attach_meter(meter):
            staged = self._stage(seq, name, frozen)
        return structs.replace(staged, times=meter.read())

    def _stage(self, seq: int, name: str, frozen: FrozenSource) -> StagedFiles:
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
            entries = frozen.write(target, self._files)
            self._files.sync_dir(target)
            return entries
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


def _remove_source(frozen: FrozenSource) -> None:
    """Delete a directory that is ours and will not become a checkpoint."""
    if isinstance(frozen, Directory) and frozen.complete is None:
        shutil.rmtree(frozen.path, ignore_errors=True)


def _rename_into(path: Path, parent: Path) -> Path:
    make_private_dirs(parent)
    target = Path(tempfile.mkdtemp(prefix=".paceline-", dir=parent))
    try:
        return path.rename(target)
    except OSError:
        target.rmdir()
        raise
