"""Completes the snapshot of a run with what is in its directory or store: checkpoints, logs and other files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import convert
from msgspec.structs import replace

from paceline._control.run import Run
from paceline._core.checkpoint_records import CheckpointRecord
from paceline._core.errors import StorageError
from paceline._storage.commit import checkpoint_score, has_manifest, rank_checkpoints
from paceline._storage.run_layout import MANIFEST
from paceline._storage.run_location import RunLocation
from paceline._storage.run_store import checkpoint_prefix
from paceline._storage.store import Store
from paceline._view import logs
from paceline._view.history import RunHistory, TrackedCheckpoint, build_attempt
from paceline._view.journal.replay import JournalReplay
from paceline._view.model import RunSnapshot, ShownCheckpoint, ShownFile, Summary, TimelineEntry
from paceline._view.projection import build_checkpoint

_MAX_LISTED = 1000
"""Limit for deleted checkpoints, and for timeline entries about checkpoints."""
_DESCRIBED = ("config", "scaling", "environment", "code")
"""Fields of a snapshot that a driver describes by the same names."""


def build_snapshot(
    summary: Summary, replay: JournalReplay, location: RunLocation, store: Store | None, **more: Any
) -> RunSnapshot:
    projection = replay.projection
    history, about = projection.history, projection.about
    files = _RunFiles(location, store)
    last_at = history.last_at if summary.state == "lost" else None
    return projection.take_snapshot(
        summary,
        history.ended_at if history.ended_at is not None else replay.updated_at,
        attempts=tuple(
            build_attempt(attempt, lost_at=last_at if attempt is history.attempts[-1] else None, file_exists=files.has)
            for attempt in history.attempts
        ),
        checkpoints=_build_checkpoints(history, replay.run, files),
        metric_names=replay.reports.numeric_names(),
        logs=logs.list_log_files(location, store),
        files=tuple(
            replace(convert(file, ShownFile, from_attributes=True), num_bytes=files.size(file.path) or 0)
            for file in projection.files
            if logs.resolve_inside(location, file.path) is not None
        ),
        timeline=_select_entries(history.timeline),
        run_config=_as_dict(about.get("run")),
        **{name: _as_dict(about.get(name)) for name in _DESCRIBED},
        **more,
    )


class _RunFiles:
    """The files in the run's directory or store; a store is listed once."""

    def __init__(self, location: RunLocation, store: Store | None) -> None:
        self._location = location
        self._sizes = {entry.key: entry.size for entry in store.list_entries()} if store is not None else None
        self._uri = store.uri if store is not None else ""

    def size(self, path: str) -> int | None:
        """Return the size of a file by its path below the run; None if there is none."""
        if self._sizes is not None:
            return self._sizes.get(path)
        target = logs.resolve_inside(self._location, path)
        try:
            return target.stat().st_size if target is not None else None
        except OSError:
            return None

    def has(self, path: str) -> bool:
        return self.size(path) is not None

    def find_checkpoint(self, record: CheckpointRecord) -> tuple[str, bool]:
        """Return a checkpoint's full path and whether it exists; no path for a name that leads elsewhere."""
        try:
            inside = self._location.layout.checkpoint(record.name)
        except StorageError:
            return "", False
        if self._sizes is not None:
            prefix = checkpoint_prefix(record)
            return f"{self._uri}/{prefix}", f"{prefix}/{MANIFEST}" in self._sizes
        return str(inside), has_manifest(inside)


def _select_entries(timeline: Sequence[TimelineEntry]) -> tuple[TimelineEntry, ...]:
    """Of very many entries about checkpoints, select only the last."""
    checkpoints = [entry for entry in timeline if entry.kind == "checkpoint"]
    dropped = set(map(id, checkpoints[:-_MAX_LISTED]))
    return tuple(entry for entry in timeline if id(entry) not in dropped)


def _build_checkpoints(history: RunHistory, run: Run, files: _RunFiles) -> tuple[ShownCheckpoint, ...]:
    """Return the existing checkpoints and the last of the deleted ones, oldest first."""
    kept = {(record.seq, record.attempt): record for record in run.checkpoints}
    rules, best = run.retention, None
    if rules.score_attribute is not None:
        scored = [record for record in run.checkpoints if checkpoint_score(record, rules.score_attribute) is not None]
        best = next(reversed(rank_checkpoints(scored, rules.score_attribute, rules.score_order)), None)
    tracked = {key: TrackedCheckpoint(record, 0.0) for key, record in kept.items()} | history.checkpoints
    deleted = [key for key in tracked if key not in kept][-_MAX_LISTED:]
    checkpoints = []
    for key in sorted({*kept, *deleted}):
        path, exists = files.find_checkpoint(tracked[key].record)
        marks = {
            "kept": key in kept and exists,
            "is_best": best is not None and key == (best.seq, best.attempt),
            "is_latest": run.latest is not None and key == (run.latest.seq, run.latest.attempt),
        }
        checkpoints.append(build_checkpoint(tracked[key].record, tracked[key].at, path, **marks))
    return tuple(checkpoints)


def _as_dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
