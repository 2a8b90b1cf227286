"""How a checkpoint gets from the user's hands into staging: copied, moved, snapshotted, or left where it is.

At most one is on its way in the background of a worker. The next one waits for it, so memory stays bounded.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from msgspec import Raw

from paceline._core.system import make_private_dirs
from paceline._engine.messages import CheckpointRecord, FileEntry, Staged
from paceline._storage.commit import has_links, sealed_in_place, staged_copy, staged_move
from paceline._storage.depot import Depot
from paceline._storage.files import Files
from paceline._storage.state import STEM, Arena, Snapshot, snapshot

log = logging.getLogger("paceline")


@dataclass(frozen=True)
class Directory:
    """Files that the user wrote."""

    path: Path
    delete: bool = False
    complete: Callable[[], None] | None = None
    """Waits until they are all there, where something still writes them; called where they are staged."""


@dataclass(frozen=True)
class InPlace:
    """Files that the user, or the user's own upload function, put where they belong."""

    path: Path


@dataclass(frozen=True)
class State:
    """A tree of tensors, arrays and numbers in memory."""

    tree: Any
    allow_pickle: bool = False
    stem: str = STEM
    """What the names of its files begin with."""
    notes: bytes = b""
    """The user's own, that go with it; nothing where there are none."""


Source = Directory | InPlace | State


class Uploader:
    def __init__(self, files: Files, depot: Depot, attempt: int, rank: int) -> None:
        layout = depot.layout
        self._files = files
        self._depot = depot
        self._layout = layout
        self._attempt = attempt
        self._rank = rank
        self._scratch = layout.scratch(attempt, rank)
        self._arena = Arena()
        self._thread: threading.Thread | None = None

    def scratch_directory(self) -> Path:
        """An empty directory on the run's own storage; a checkpoint made of it is moved, never copied."""
        make_private_dirs(self._scratch)
        return Path(tempfile.mkdtemp(dir=self._scratch))

    def upload(self, seq: int, name: str, source: Source) -> Staged:
        """Stage a checkpoint and return when its files are durable."""
        self.wait()
        return self._stage(seq, name, self._held(source))

    def upload_later(self, seq: int, name: str, source: Source, done: Callable[[Staged | Exception], None]) -> None:
        """Take what must not change any more now, and stage it in the background."""
        self.wait()
        held = self._held(source)

        def work() -> None:
            try:
                staged = self._stage(seq, name, held)
            except Exception as error:  # noqa: BLE001  handed to `done`, which tells the driver
                done(error)
            else:
                done(staged)

        self._thread = threading.Thread(target=work, name="paceline-upload", daemon=True)
        self._thread.start()

    def discard(self, seq: int) -> None:
        """Free what was staged for a checkpoint that will not be: the disk may be full of it."""
        self.wait()
        self._cleared(seq)

    def _cleared(self, seq: int) -> None:
        try:
            self._files.remove_tree(self._layout.staged_rank(self._attempt, seq, self._rank))
        except OSError as error:
            log.warning("what was staged for report %d could not be removed: %s", seq, error)

    def wait(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _held(self, source: Source) -> Directory | InPlace | Snapshot:
        if isinstance(source, State):
            taken = snapshot(source.tree, self._arena, allow_pickle=source.allow_pickle, stem=source.stem)
            return replace(taken, notes=source.notes)
        return source

    def _stage(self, seq: int, name: str, held: Directory | InPlace | Snapshot) -> Staged:
        if isinstance(held, Directory) and held.complete is not None:
            held.complete()
        if isinstance(held, InPlace):
            return Staged(self._rank, sealed_in_place(self._files, held.path), in_place=True)
        target = self._layout.staged_rank(self._attempt, seq, self._rank)
        self._files.remove_tree(target)
        try:
            files = self._filled(target, held)
            self._depot.keep(CheckpointRecord(seq, name, self._attempt, Raw(b"{}")), self._rank, target, files)
            return Staged(self._rank, files)
        except Exception:
            self._cleared(seq)
            raise

    def _filled(self, target: Path, held: Directory | Snapshot) -> tuple[FileEntry, ...]:
        if isinstance(held, Snapshot):
            self._files.make_dir(target)
            return held.write(target, self._files)
        ours = held.path.is_relative_to(self._scratch)
        # A link that is moved would still be a link: what it leads to may change or go, so it is copied.
        if (ours or (held.delete and self._same_disk(held.path))) and not has_links(held.path):
            return staged_move(self._files, held.path, target)
        self._files.make_dir(target)
        entries = staged_copy(self._files, held.path, target)
        if held.delete or ours:
            with contextlib.suppress(OSError):
                shutil.rmtree(held.path)
        return entries

    def _same_disk(self, path: Path) -> bool:
        return path.stat().st_dev == self._layout.root.stat().st_dev and not path.is_symlink()
