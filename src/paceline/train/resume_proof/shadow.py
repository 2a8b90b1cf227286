"""Runs in a temporary directory, made from a trainer: started from a copy of a commit, ended after some reports.

The trainer's own run is read and never written. A shadow run has no callbacks and no retries, keeps all checkpoints,
and prints nothing.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import msgspec

from paceline._control.events import Committed, Event, Reported
from paceline._control.recover import history_of
from paceline._control.run import Run
from paceline._core.errors import StorageError
from paceline._core.plain import unplain
from paceline._storage.commit import read_manifest
from paceline._storage.depot import DiskDepot
from paceline._storage.files import LocalFiles
from paceline._storage.layout import MANIFEST, METADATA, Layout
from paceline.train.config import CheckpointConfig, FailureConfig
from paceline.train.resume_proof.trace import Traced
from paceline.train.trainer import DataParallelTrainer

Enough = Callable[["Seen"], bool]


@dataclass(frozen=True)
class Seen:
    """How far a run has come."""

    reports: int
    """That every rank has made."""
    commits: tuple[int, ...]
    """The reports that became checkpoints."""


@dataclass(frozen=True)
class Recorded:
    """What a run's records tell of it."""

    layout: Layout
    run: Run
    reports: tuple[Reported, ...]

    def metrics(self, attempt: int | None = None) -> dict[int, dict[int, dict[str, Any]]]:
        """By rank and report, those of one attempt; without a number, of the last that made each report."""
        found: dict[int, dict[int, dict[str, Any]]] = {}
        for one in self.reports:
            if attempt in (None, one.attempt):
                found.setdefault(one.rank, {})[one.seq] = unplain(msgspec.json.decode(one.metrics))
        return found

    def checkpoint(self, seq: int) -> Path | None:
        """The directory of the checkpoint of a report, if it is kept."""
        names = [record.name for record in self.run.checkpoints if record.seq == seq]
        return self.layout.checkpoint(names[0]) if names else None


def recorded(layout: Layout) -> Recorded:
    run, history = history_of(DiskDepot(LocalFiles(), layout))
    return Recorded(layout, run, tuple(event for event in history if isinstance(event, Reported)))


def of_size(trainer: DataParallelTrainer, size: int) -> DataParallelTrainer:
    """The same trainer with so many workers, neither more nor fewer; one of a fixed size as it is."""
    if len(trainer.scaling_config.sizes) == 1:
        return trainer
    fixed = copy.copy(trainer)
    fixed.scaling_config = dataclasses.replace(trainer.scaling_config, num_workers=size)
    return fixed


def played(
    trainer: DataParallelTrainer,
    storage: Path,
    *,
    enough: Enough,
    start: Path | None = None,
    traced: tuple[int, Path] | None = None,
) -> Recorded:
    """Run a copy of the trainer from a checkpoint, or from the beginning, until it is enough or it has ended.

    `traced` is the report from which its workers note down what they do, and the directory for that.
    """
    shadow = copy.copy(trainer)
    shadow.run_config = dataclasses.replace(
        trainer.run_config,
        storage_path=storage,
        callbacks=(),
        checkpoint_config=CheckpointConfig(),
        failure_config=FailureConfig(),
        detached=False,
    )
    until = _Until(enough)
    shadow._seams = dataclasses.replace(trainer._seams, files=LocalFiles(), watchers=(until.watcher,))
    if traced is not None:
        first, directory = traced
        directory.mkdir()
        shadow.train_loop_per_worker = Traced(trainer.train_loop_per_worker, first, directory)
    layout = Layout(shadow.run_config.path)
    if start is not None:
        _copy_commit(start, layout)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        shadow.fit()
    found = recorded(layout)
    if not until.asked and not found.run.is_trained:
        raise KeyboardInterrupt  # Nobody else asks for a stop.
    return found


class _Until:
    """Asks for a stop, as Ctrl-C does, once enough was seen: all ranks then agree on a report to stop at."""

    def __init__(self, enough: Enough) -> None:
        self.asked = False
        self._enough = enough
        self._stop: Callable[[], None] = lambda: None
        self._made: dict[int, int] = {}
        self._commits: tuple[int, ...] = ()

    def watcher(self, stop: Callable[[], None]) -> Self:
        self._stop = stop
        return self

    def saw(self, event: Event, run: Run) -> None:
        if isinstance(event, Reported):
            self._made[event.rank] = event.seq
        elif isinstance(event, Committed):
            self._commits += (event.record.seq,)
        reports = min(self._made.values()) if len(self._made) == run.size else 0
        if not self.asked and self._enough(Seen(reports, self._commits)):
            self.asked = True
            self._stop()

    def tick(self, run: Run, now: float) -> None:
        pass


def _copy_commit(source: Path, layout: Layout) -> None:
    manifest = read_manifest(source)
    if manifest is None:
        raise StorageError(f"{source} is not a committed checkpoint")
    files = LocalFiles()
    target = layout.checkpoint(manifest.record.name)
    files.make_dir(target)
    notes = [METADATA] if (source / METADATA).exists() else []
    for name in [*(entry.path for entry in manifest.files), *notes, MANIFEST]:
        files.make_dir((target / name).parent)
        files.copy(source / name, target / name, name)
