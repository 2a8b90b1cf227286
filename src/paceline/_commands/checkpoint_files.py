"""Locate, verify and export the files of a run's checkpoints, on disk or in a store."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from paceline._commands.cli_args import RunNotFoundError
from paceline._control.recovery import load_history
from paceline._control.run import Run
from paceline._core.errors import StorageError
from paceline._engine.messages import CheckpointRecord
from paceline._storage import commit
from paceline._storage.address import open_store_at
from paceline._storage.retention import rank_checkpoints
from paceline._storage.run_layout import MANIFEST
from paceline._storage.run_location import RunLocation
from paceline._storage.run_store import RunStore, read_store_manifest
from paceline._storage.store import Store


class CheckpointVerification(msgspec.Struct, frozen=True):
    name: str
    num_files: int
    problems: tuple[str, ...] = ()
    """One line per file that differs from what was committed."""


class BrokenCheckpointError(StorageError):
    """A checkpoint differs from what was committed, so it is not copied."""


def read_run_state(home: RunLocation) -> tuple[RunStore, Run]:
    depot = home.open_run_store_for_reading()
    return depot, load_history(depot)[0]


def find_checkpoint(home: RunLocation, name: str) -> tuple[RunStore, CheckpointRecord]:
    """Find a checkpoint by name. `latest` and `best` resolve to the run's own unless a checkpoint has that name."""
    depot, run = read_run_state(home)
    named = {record.name: record for record in run.checkpoints}
    if name not in named and run.latest is not None:
        retention = run.retention
        if name == "latest":
            return depot, run.latest
        if name == "best" and retention.score_attribute is not None:
            return depot, rank_checkpoints(run.checkpoints, retention.score_attribute, retention.score_order)[-1]
        if name == "best":
            return depot, _find_best(home, named)
    if name not in named:
        there = ", ".join(named) or "none"
        raise RunNotFoundError(f"run {home.name} has no checkpoint {name!r}\n\nhint: it has {there}")
    return depot, named[name]


def _find_best(home: RunLocation, named: dict[str, CheckpointRecord]) -> CheckpointRecord:
    from paceline._commands.checkpoints import read_checkpoints

    best = next((shown.name for shown in read_checkpoints(home) if shown.is_best and shown.name in named), None)
    if best is None:
        raise RunNotFoundError(
            f"run {home.name} does not say which checkpoint is the best\n\n"
            "hint: CheckpointConfig(checkpoint_score_attribute=...) says it; give the name of one, "
            "as `paceline checkpoints RUN` lists them"
        )
    return named[best]


def verify_checkpoint(depot: RunStore, record: CheckpointRecord) -> CheckpointVerification:
    """Read and hash every file of a checkpoint. Files in a store are downloaded one at a time."""
    path, filesystem = depot.locate_checkpoint(record)
    if filesystem is None:
        manifest = _read_manifest_or_none(Path(path))
        num_files = len(manifest.files) if manifest is not None else 0
        return CheckpointVerification(record.name, num_files, tuple(commit.find_problems(Path(path))))
    store = open_store_at(path, filesystem)
    try:
        manifest = read_store_manifest(store)
    except StorageError as problem:
        return CheckpointVerification(record.name, 0, (str(problem),))
    if manifest is None:
        return CheckpointVerification(record.name, 0, (f"{store.uri}/{MANIFEST} is missing",))
    return CheckpointVerification(record.name, len(manifest.files), tuple(_find_store_problems(store, manifest)))


def export_checkpoint(depot: RunStore, record: CheckpointRecord, directory: str) -> Path:
    """Copy a checkpoint to a new directory. A failed copy leaves nothing behind."""
    from paceline.train.checkpoint import Checkpoint

    target = Path(directory).expanduser().absolute()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ValueError(f"{target} is there already\n\nhint: give a directory that is new, or empty")
    target.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        try:
            Checkpoint(*depot.locate_checkpoint(record)).to_directory(part)
        except StorageError as problem:
            raise BrokenCheckpointError(f"{record.name} is broken, and is not copied: {problem}") from problem
        # Verify the copy, not the source: an intact copy implies an intact source.
        problems = list(commit.find_problems(part))
        if problems:
            told = "\n".join(f"  {problem.replace(str(part), record.name)}" for problem in problems)
            raise BrokenCheckpointError(f"{record.name} is broken, and is not copied:\n{told}")
        os.chmod(part, 0o755)
        if target.exists():
            target.rmdir()
        part.rename(target)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return target


def _read_manifest_or_none(directory: Path) -> commit.Manifest | None:
    try:
        return commit.read_manifest(directory)
    except StorageError:
        return None  # Reported as a problem by find_problems.


def _find_store_problems(store: Store, manifest: commit.Manifest) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="paceline-verify-") as place:
        target = Path(place, "file")
        for entry in manifest.files:
            key = manifest.keys.get(entry.path, entry.path)
            try:
                there = store.download(key, target)
            except FileNotFoundError:
                yield f"{store.uri}/{key} is missing"
                continue
            if there.size != entry.size:
                yield f"{store.uri}/{key} has {there.size} bytes where {entry.size} were written"
            elif entry.hash and there.hash != entry.hash:
                yield f"{store.uri}/{key} does not hash to what was written"
