"""The files of a run's checkpoints, wherever they lie: checked one by one, and copied out."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from paceline._commands.asking import NoRunError
from paceline._control.recover import history_of
from paceline._control.run import Run
from paceline._core.errors import StorageError
from paceline._engine.messages import CheckpointRecord
from paceline._storage import commit
from paceline._storage.address import store_at
from paceline._storage.depot import Depot, manifest_in
from paceline._storage.home import Home
from paceline._storage.layout import MANIFEST
from paceline._storage.retention import ranked
from paceline._storage.store import Store


class Verified(msgspec.Struct, frozen=True):
    name: str
    num_files: int
    problems: tuple[str, ...] = ()
    """A line for each file that is not what was committed."""


class BrokenError(StorageError):
    """A checkpoint is not what was committed, and is not copied."""


def records_in(home: Home) -> tuple[Depot, Run]:
    depot = home.depot_to_read()
    return depot, history_of(depot)[0]


def found(home: Home, name: str) -> tuple[Depot, CheckpointRecord]:
    """A checkpoint by its name; `latest` and `best` are those of the run, where none is named so."""
    depot, run = records_in(home)
    named = {record.name: record for record in run.checkpoints}
    if name not in named and run.latest is not None:
        retention = run.retention
        if name == "latest":
            return depot, run.latest
        if name == "best" and retention.score_attribute is not None:
            return depot, ranked(run.checkpoints, retention.score_attribute, retention.score_order)[-1]
        if name == "best":
            return depot, _best_shown(home, named)
    if name not in named:
        there = ", ".join(named) or "none"
        raise NoRunError(f"run {home.name} has no checkpoint {name!r}\n\nhint: it has {there}")
    return depot, named[name]


def _best_shown(home: Home, named: dict[str, CheckpointRecord]) -> CheckpointRecord:
    from paceline._commands.checkpoints import shown_in

    best = next((shown.name for shown in shown_in(home) if shown.is_best and shown.name in named), None)
    if best is None:
        raise NoRunError(
            f"run {home.name} does not say which checkpoint is the best\n\n"
            "hint: CheckpointConfig(checkpoint_score_attribute=...) says it; give the name of one, "
            "as `paceline checkpoints RUN` lists them"
        )
    return named[best]


def verified(depot: Depot, record: CheckpointRecord) -> Verified:
    """Every file read and hashed; one in a store is downloaded for it, a file at a time."""
    path, filesystem = depot.place(record)
    if filesystem is None:
        manifest = _manifest(Path(path))
        num_files = len(manifest.files) if manifest is not None else 0
        return Verified(record.name, num_files, tuple(commit.problems_with(Path(path))))
    store = store_at(path, filesystem)
    try:
        manifest = manifest_in(store)
    except StorageError as problem:
        return Verified(record.name, 0, (str(problem),))
    if manifest is None:
        return Verified(record.name, 0, (f"{store.uri}/{MANIFEST} is missing",))
    return Verified(record.name, len(manifest.files), tuple(_problems_in(store, manifest)))


def exported(depot: Depot, record: CheckpointRecord, directory: str) -> Path:
    """A whole copy in a new directory; nothing is left of one that could not be made."""
    from paceline.train.checkpoint import Checkpoint

    target = Path(directory).expanduser().absolute()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ValueError(f"{target} is there already\n\nhint: give a directory that is new, or empty")
    target.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        try:
            Checkpoint(*depot.place(record)).to_directory(part)
        except StorageError as problem:
            raise BrokenError(f"{record.name} is broken, and is not copied: {problem}") from problem
        # What was copied is checked, not what was read before: a copy that is whole came from a whole one.
        problems = list(commit.problems_with(part))
        if problems:
            told = "\n".join(f"  {problem.replace(str(part), record.name)}" for problem in problems)
            raise BrokenError(f"{record.name} is broken, and is not copied:\n{told}")
        os.chmod(part, 0o755)
        if target.exists():
            target.rmdir()
        part.rename(target)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return target


def _manifest(directory: Path) -> commit.Manifest | None:
    try:
        return commit.read_manifest(directory)
    except StorageError:
        return None  # Told as a problem of its own.


def _problems_in(store: Store, manifest: commit.Manifest) -> Iterator[str]:
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
