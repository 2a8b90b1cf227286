"""Builds the `Detail` of a run: everything except its points."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import convert
from msgspec.structs import replace

from paceline._control.events import UsageMeasured
from paceline._control.run import Run
from paceline._core.checkpoint_records import CheckpointRecord
from paceline._core.errors import StorageError
from paceline._storage.commit import checkpoint_score, has_manifest, rank_checkpoints
from paceline._storage.run_layout import MANIFEST
from paceline._storage.run_location import RunLocation
from paceline._storage.run_store import checkpoint_prefix
from paceline._storage.store import Store
from paceline._view import logs
from paceline._view.journal.history import TrackedCheckpoint, build_attempts
from paceline._view.journal.replay import JournalReplay
from paceline._view.journal.report_table import flatten_metrics
from paceline._view.journal.usage import AttemptWork, compute_time_breakdown
from paceline._view.model import Detail, ShownCheckpoint, ShownFile, ShownStage, Summary, TimeBreakdown, TimelineEntry
from paceline._view.run_values import to_json_values

_MAX_LISTED = 1000
"""Limit for deleted checkpoints, and for timeline entries about checkpoints."""


def build_detail(
    summary: Summary, replay: JournalReplay, location: RunLocation, store: Store | None, version: int
) -> Detail:
    run, about = replay.run, replay.about
    stages, limited_by = _build_stages(replay.usage.measured)
    files = _RunFiles(location, store)
    return Detail(
        summary=summary,
        attempts=build_attempts(replay.history, replay.usage, is_lost=summary.state == "lost", file_exists=files.has),
        checkpoints=_build_checkpoints(replay, run, files),
        spent=compute_run_time_breakdown(replay),
        stages=stages,
        limited_by=limited_by,
        metric_names=replay.reports.numeric_names(),
        config=_as_dict(about.get("config")),
        scaling=_as_dict(about.get("scaling")),
        run_config=_as_dict(about.get("run")),
        environment=_as_dict(about.get("environment")),
        code=_as_dict(about.get("code")),
        logs=logs.list_log_files(location, store),
        files=tuple(
            replace(convert(file, ShownFile, from_attributes=True), num_bytes=files.size(file.path) or 0)
            for file in replay.files
            if logs.resolve_inside(location, file.path) is not None
        ),
        timeline=_build_timeline(replay),
        version=version,
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


def _build_timeline(replay: JournalReplay) -> tuple[TimelineEntry, ...]:
    """Build the timeline; of very many entries about checkpoints, only the last."""
    timeline = replay.history.timeline
    checkpoints = [entry for entry in timeline if entry.kind == "checkpoint"]
    dropped = set(map(id, checkpoints[:-_MAX_LISTED]))
    return tuple(entry for entry in timeline if id(entry) not in dropped)


def compute_run_time_breakdown(replay: JournalReplay) -> TimeBreakdown:
    """Compute where the time went, from the start of the run to its last known moment."""
    history, usage = replay.history, replay.usage
    until = history.ended_at if history.ended_at is not None else replay.updated_at
    work = []
    for attempt in history.attempts:
        if attempt.started_at is None:
            continue
        uses = tuple(use for (number, _), use in sorted(usage.last.items()) if number == attempt.number)
        end = next((at for at in (attempt.worked_until, attempt.ended_at) if at is not None), until)
        measured = usage.measured_at.get(attempt.number)
        work.append(AttemptWork(attempt.started_at, end, measured, attempt.ready_at, uses))
    return compute_time_breakdown(history.began_at, until, work)


def _build_checkpoints(replay: JournalReplay, run: Run, files: _RunFiles) -> tuple[ShownCheckpoint, ...]:
    """Return the existing checkpoints and the last of the deleted ones, oldest first."""
    kept = {(record.seq, record.attempt): record for record in run.checkpoints}
    rules, best = run.retention, None
    if rules.score_attribute is not None:
        scored = [record for record in run.checkpoints if checkpoint_score(record, rules.score_attribute) is not None]
        best = next(reversed(rank_checkpoints(scored, rules.score_attribute, rules.score_order)), None)
    tracked = {key: TrackedCheckpoint(record, 0.0) for key, record in kept.items()} | replay.history.checkpoints
    deleted = [key for key in tracked if key not in kept][-_MAX_LISTED:]
    checkpoints = []
    for key in sorted({*kept, *deleted}):
        record = tracked[key].record
        path, exists = files.find_checkpoint(record)
        checkpoints.append(
            ShownCheckpoint(
                name=record.name,
                seq=record.seq,
                attempt=record.attempt,
                path=path,
                num_bytes=record.num_bytes,
                at=tracked[key].at,
                status=record.status,
                kept=key in kept and exists,
                is_best=best is not None and key == (best.seq, best.attempt),
                is_latest=run.latest is not None and key == (run.latest.seq, run.latest.attempt),
                metrics=to_json_values(dict(flatten_metrics(_as_dict(msgspec.json.decode(record.metrics))))),
            )
        )
    return tuple(checkpoints)


def _build_stages(measured: UsageMeasured | None) -> tuple[tuple[ShownStage, ...], str | None]:
    if measured is None or not measured.stages:
        return (), None
    stages = tuple(convert(stage, ShownStage, from_attributes=True) for stage in measured.stages)
    if not measured.consumers_wait:
        return stages, "the consumer"
    limiting = next((stage for stage in stages if stage.limits), None)
    if limiting is None:
        return stages, None
    several = len({stage.dataset for stage in stages}) > 1
    return stages, f"{limiting.dataset}: {limiting.name}" if several else limiting.name


def _as_dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
