"""Builds the `Detail` of a run: everything except its points."""

from __future__ import annotations

from typing import Any

import msgspec

from paceline._control.events import DiagnosticFileWritten, UsageMeasured
from paceline._control.run import Run
from paceline._core.errors import StorageError
from paceline._engine.messages import CheckpointRecord
from paceline._storage.commit import has_manifest
from paceline._storage.retention import checkpoint_score, rank_checkpoints
from paceline._storage.run_layout import MANIFEST
from paceline._storage.run_location import RunLocation
from paceline._storage.run_store import checkpoint_prefix
from paceline._storage.store import Store
from paceline._view import logs
from paceline._view.attempts import build_attempts
from paceline._view.journal_replay import JournalReplay
from paceline._view.model import Detail, ShownCheckpoint, ShownFile, ShownStage, Summary, TimeBreakdown, TimelineEntry
from paceline._view.report_table import flatten_metrics
from paceline._view.run_history import TrackedCheckpoint
from paceline._view.run_values import to_json_values
from paceline._view.usage import AttemptWork, compute_time_breakdown

_MAX_LISTED = 1000
"""Limit for deleted checkpoints, and for timeline entries about checkpoints."""


def build_detail(summary: Summary, play: JournalReplay, home: RunLocation, store: Store | None, version: int) -> Detail:
    run, about = play.run, play.about
    stages, limited_by = _build_stages(play.usage.measured)
    there = _RunFiles(home, store)
    return Detail(
        summary=summary,
        attempts=build_attempts(play.history, play.usage, is_lost=summary.state == "lost", has=there.has),
        checkpoints=_build_checkpoints(play, run, there),
        spent=compute_run_time_breakdown(play),
        stages=stages,
        limited_by=limited_by,
        metric_names=tuple(name for name, column in play.reports.columns.items() if len(column.rows)),
        config=_as_dict(about.get("config")),
        scaling=_as_dict(about.get("scaling")),
        run_config=_as_dict(about.get("run")),
        environment=_as_dict(about.get("environment")),
        code=_as_dict(about.get("code")),
        logs=logs.list_log_files(home, store),
        files=tuple(
            _build_file(made, there) for made in play.files if logs.resolve_inside(home, made.path) is not None
        ),
        timeline=_build_timeline(play),
        version=version,
    )


class _RunFiles:
    """The files in the run's directory or store; a store is listed once."""

    def __init__(self, home: RunLocation, store: Store | None) -> None:
        self._home = home
        self._sizes = {entry.key: entry.size for entry in store.list_entries()} if store is not None else None
        self._uri = store.uri if store is not None else ""

    def size(self, path: str) -> int | None:
        """Return the size of a file by its path below the run; None if there is none."""
        if self._sizes is not None:
            return self._sizes.get(path)
        found = logs.resolve_inside(self._home, path)
        try:
            return found.stat().st_size if found is not None else None
        except OSError:
            return None

    def has(self, path: str) -> bool:
        return self.size(path) is not None

    def find_checkpoint(self, record: CheckpointRecord) -> tuple[str, bool]:
        """Return a checkpoint's full path and whether it exists; no path for a name that leads elsewhere."""
        try:
            inside = self._home.layout.checkpoint(record.name)
        except StorageError:
            return "", False
        if self._sizes is not None:
            prefix = checkpoint_prefix(record)
            return f"{self._uri}/{prefix}", f"{prefix}/{MANIFEST}" in self._sizes
        return str(inside), has_manifest(inside)


def _build_timeline(play: JournalReplay) -> tuple[TimelineEntry, ...]:
    """Build the timeline; of very many entries about checkpoints, only the last."""
    told = play.history.timeline
    too_many = sum(happened.kind == "checkpoint" for happened in told) - _MAX_LISTED
    if too_many <= 0:
        return tuple(told)
    kept = []
    for happened in told:
        if happened.kind == "checkpoint" and too_many > 0:
            too_many -= 1
        else:
            kept.append(happened)
    return tuple(kept)


def compute_run_time_breakdown(play: JournalReplay) -> TimeBreakdown:
    """Compute where the time went, from the start of the run to its last known moment."""
    story, usage = play.history, play.usage
    until = story.ended_at if story.ended_at is not None else play.updated_at
    worked = []
    for chapter in story.attempts:
        if chapter.started_at is None:
            continue
        uses = tuple(use for (attempt, _), use in sorted(usage.last.items()) if attempt == chapter.number)
        end = chapter.worked_until if chapter.worked_until is not None else chapter.ended_at
        measured = usage.measured_at.get(chapter.number)
        worked.append(
            AttemptWork(chapter.started_at, end if end is not None else until, measured, chapter.ready_at, uses)
        )
    return compute_time_breakdown(story.began_at, until, worked)


def _build_checkpoints(play: JournalReplay, run: Run, there: _RunFiles) -> tuple[ShownCheckpoint, ...]:
    """Return the existing checkpoints and the last of the deleted ones, oldest first."""
    kept = {(record.seq, record.attempt): record for record in run.checkpoints}
    rules, best = run.retention, None
    if rules.score_attribute is not None:
        scored = [record for record in run.checkpoints if checkpoint_score(record, rules.score_attribute) is not None]
        best = next(reversed(rank_checkpoints(scored, rules.score_attribute, rules.score_order)), None)
    known = {key: TrackedCheckpoint(record, 0.0) for key, record in kept.items()} | play.history.checkpoints
    gone = [key for key in known if key not in kept][-_MAX_LISTED:]
    found = []
    for key in sorted({*kept, *gone}):
        record = known[key].record
        path, is_there = there.find_checkpoint(record)
        found.append(
            ShownCheckpoint(
                name=record.name,
                seq=record.seq,
                attempt=record.attempt,
                path=path,
                num_bytes=record.num_bytes,
                at=known[key].at,
                status=record.status,
                kept=key in kept and is_there,
                is_best=best is not None and key == (best.seq, best.attempt),
                is_latest=run.latest is not None and key == (run.latest.seq, run.latest.attempt),
                metrics=to_json_values(dict(flatten_metrics(_as_dict(msgspec.json.decode(record.metrics))))),
            )
        )
    return tuple(found)


def _build_file(made: DiagnosticFileWritten, there: _RunFiles) -> ShownFile:
    return ShownFile(
        kind=made.kind,
        path=made.path,
        rank=made.rank,
        at=made.at,
        seconds=made.seconds,
        num_bytes=there.size(made.path) or 0,
    )


def _build_stages(measured: UsageMeasured | None) -> tuple[tuple[ShownStage, ...], str | None]:
    if measured is None or not measured.stages:
        return (), None
    stages = tuple(
        ShownStage(
            dataset=use.dataset,
            name=use.name,
            num_rows=use.num_rows,
            num_bytes=use.num_bytes,
            busy_s=use.busy_s,
            waited_for_input_s=use.waited_for_input_s,
            waited_for_room_s=use.waited_for_room_s,
            limits=use.limits,
        )
        for use in measured.stages
    )
    if not measured.consumers_wait:
        return stages, "the consumer"
    limiting = next((stage for stage in stages if stage.limits), None)
    if limiting is None:
        return stages, None
    several = len({stage.dataset for stage in stages}) > 1
    return stages, f"{limiting.dataset}: {limiting.name}" if several else limiting.name


def _as_dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
