"""Locate, verify, export and prune the checkpoints of a run, on disk or in a store.

Pruning holds the lease, as a driver does. The removal is journaled before any file is deleted, and a manifest is
deleted before the other files, so a crash leaves a consistent run. The newest and the best checkpoint always stay, and
so do those that are pinned or awaiting validation.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path

import msgspec

from paceline._commands.checkpoints import read_checkpoints
from paceline._commands.cli_args import RunNotFoundError, find_parent_search
from paceline._commands.searches import open_search
from paceline._control.events import CheckpointsFound, DriverStarted, Event, PinsSet
from paceline._control.recovery import load_history
from paceline._control.run import Run
from paceline._core.checkpoint_records import CheckpointRecord
from paceline._core.errors import RunHeldError, StorageError
from paceline._storage import commit
from paceline._storage.address import open_store_at
from paceline._storage.commit import rank_checkpoints, select_kept
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


def read_run_state(location: RunLocation) -> tuple[RunStore, Run]:
    run_store = location.open_run_store_for_reading()
    return run_store, load_history(run_store)[0]


def find_checkpoint(location: RunLocation, name: str) -> tuple[RunStore, CheckpointRecord]:
    """Find a checkpoint by name. `latest` and `best` resolve to the run's own unless a checkpoint has that name."""
    run_store, run = read_run_state(location)
    named = {record.name: record for record in run.checkpoints}
    if name not in named and run.latest is not None:
        retention = run.retention
        if name == "latest":
            return run_store, run.latest
        if name == "best" and retention.score_attribute is not None:
            return run_store, rank_checkpoints(run.checkpoints, retention.score_attribute, retention.score_order)[-1]
        if name == "best":
            return run_store, _find_best(location, named)
    if name not in named:
        names = ", ".join(named) or "none"
        raise RunNotFoundError(f"run {location.name} has no checkpoint {name!r}\n\nhint: it has {names}")
    return run_store, named[name]


def _find_best(location: RunLocation, named: dict[str, CheckpointRecord]) -> CheckpointRecord:
    best = next((each.name for each in read_checkpoints(location) if each.is_best and each.name in named), None)
    if best is None:
        raise RunNotFoundError(
            f"run {location.name} does not define a best checkpoint\n\n"
            "hint: CheckpointConfig(checkpoint_score_attribute=...) defines it; give a checkpoint's name instead, "
            "as `paceline checkpoints RUN` lists them"
        )
    return named[best]


def verify_checkpoint(run_store: RunStore, record: CheckpointRecord) -> CheckpointVerification:
    """Read and hash every file of a checkpoint. Files in a store are downloaded one at a time."""
    path, filesystem = run_store.locate_checkpoint(record)
    manifest = None
    if filesystem is None:
        with contextlib.suppress(StorageError):  # Reported as a problem by find_problems.
            manifest = commit.read_manifest(Path(path))
        problems = tuple(commit.find_problems(Path(path)))
    else:
        store = open_store_at(path, filesystem)
        problems = (f"{store.uri}/{MANIFEST} is missing",)
        try:
            manifest = read_store_manifest(store)
        except StorageError as problem:
            problems = (str(problem),)
        if manifest is not None:
            problems = tuple(_find_store_problems(store, manifest))
    return CheckpointVerification(record.name, len(manifest.files) if manifest is not None else 0, problems)


def export_checkpoint(run_store: RunStore, record: CheckpointRecord, directory: str) -> Path:
    """Copy a checkpoint to a new directory. A failed copy leaves nothing behind."""
    from paceline.train.checkpoint import Checkpoint

    target = Path(directory).expanduser().absolute()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ValueError(f"{target} already exists\n\nhint: give a new or empty directory")
    target.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        try:
            Checkpoint(*run_store.locate_checkpoint(record)).to_directory(part, verify=False)
        except StorageError as problem:
            raise BrokenCheckpointError(f"{record.name} is broken, not copied: {problem}") from problem
        # Verify the copy, not the source: an intact copy implies an intact source.
        problems = list(commit.find_problems(part))
        if problems:
            lines = "\n".join(f"  {problem.replace(str(part), record.name)}" for problem in problems)
            raise BrokenCheckpointError(f"{record.name} is broken, not copied:\n{lines}")
        os.chmod(part, 0o755)
        if target.exists():
            target.rmdir()
        part.rename(target)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return target


def _find_store_problems(store: Store, manifest: commit.Manifest) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="paceline-verify-") as place:
        target = Path(place, "file")
        for entry in manifest.files:
            key = manifest.keys.get(entry.path, entry.path)
            try:
                entry_found = store.download(key, target)
            except FileNotFoundError:
                yield f"{store.uri}/{key} is missing"
                continue
            if entry_found.size != entry.size:
                yield f"{store.uri}/{key} has {entry_found.size} bytes where {entry.size} were written"
            elif entry.hash and entry_found.hash != entry.hash:
                yield f"{store.uri}/{key} has a wrong hash"


Records = tuple[CheckpointRecord, ...]


def split_checkpoints(
    run: Run, history: Iterable[Event], num_to_keep: int, best: Collection[str]
) -> tuple[Records, Records]:
    """Return the checkpoints to remove and those to keep. `best` names the checkpoints shown as best."""
    retention = run.retention
    pinned = {*run.pinned, *_latest_pins(history)}
    kept = select_kept(run.checkpoints, num_to_keep, retention.score_attribute, retention.score_order, pinned)
    seqs = {record.seq for record in kept} | {record.seq for record in run.checkpoints if record.name in best}
    removed = tuple(record for record in run.checkpoints if record.seq not in seqs)
    return removed, tuple(record for record in run.checkpoints if record.seq in seqs)


def _latest_pins(history: Iterable[Event]) -> tuple[int, ...]:
    """Return the pins in effect at the end of the journal: a finished run itself does not track them."""
    pins: tuple[int, ...] = ()
    for event in history:
        if isinstance(event, PinsSet | DriverStarted):
            pins = event.seqs if isinstance(event, PinsSet) else event.pinned
    return pins


def plan_pruning(location: RunLocation, num_to_keep: int) -> tuple[Records, Records]:
    """Like `split_checkpoints` for a stored run, without changing anything."""
    run, history = load_history(location.open_run_store_for_reading())
    return split_checkpoints(run, history, num_to_keep, _best_names(location))


def prune_checkpoints(location: RunLocation, num_to_keep: int, say: Callable[[str], None]) -> tuple[Records, Records]:
    """Remove checkpoints; return the removed and the kept ones. `RunHeldError` if a driver holds the run or search."""
    from paceline.train.driver.run_directory import open_run
    from paceline.train.driver.run_spec import RunEnvironment

    _refuse_in_unfinished_search(location)
    best = _best_names(location)
    with open_run(location, RunEnvironment(), say) as (opened, run_store):
        removed, kept = split_checkpoints(opened.run, opened.history, num_to_keep, best)
        if removed:
            opened.journal.append(CheckpointsFound(missing=tuple(record.seq for record in removed)))
            opened.journal.sync()
            run_store.upload_journal()
        for record in removed:
            run_store.delete(record, opened.fence)
    return removed, kept


def _best_names(location: RunLocation) -> set[str]:
    return {each.name for each in read_checkpoints(location) if each.is_best}


def _refuse_in_unfinished_search(location: RunLocation) -> None:
    """Refuse while the search is unfinished: paused and future trials may start from this run's checkpoints."""
    search = find_parent_search(location)
    if search is None:
        return
    reader = open_search(search)
    reader.refresh()
    state = reader.summary().state
    if state != "finished":
        raise RunHeldError(
            f"run {location.name!r} is a trial of the search {search.name!r}, which is {state} and may still use it"
            "\n\nhint: checkpoints of trials can be removed once their search has finished"
        )
