"""All about one run but its points: put together from what was read of it."""

from __future__ import annotations

from typing import Any

import msgspec

from paceline._control.events import FileMade, Measured
from paceline._control.run import Run
from paceline._core.errors import StorageError
from paceline._engine.messages import CheckpointRecord
from paceline._storage.commit import has_manifest
from paceline._storage.depot import prefix_of
from paceline._storage.home import Home
from paceline._storage.layout import MANIFEST
from paceline._storage.retention import ranked, score_of
from paceline._storage.store import Store
from paceline._view import logs
from paceline._view.attempts import attempts_of
from paceline._view.model import Detail, Happened, ShownCheckpoint, ShownFile, Spent, Stage, Summary
from paceline._view.playing import Play
from paceline._view.reports import flattened
from paceline._view.shown import values_of
from paceline._view.story import Kept
from paceline._view.usage import Worked, spent

_MOST = 1000
"""Of checkpoints that are gone, and of entries about checkpoints in the timeline."""


def detail_of(summary: Summary, play: Play, home: Home, store: Store | None, version: int) -> Detail:
    run, about = play.run, play.about
    stages, limited_by = _stages(play.usage.measured)
    there = _There(home, store)
    return Detail(
        summary=summary,
        attempts=attempts_of(play.story, play.usage, is_lost=summary.state == "lost", has=there.has),
        checkpoints=_checkpoints(play, run, there),
        spent=spent_by(play),
        stages=stages,
        limited_by=limited_by,
        metric_names=tuple(name for name, column in play.reports.columns.items() if len(column.rows)),
        config=_object(about.get("config")),
        scaling=_object(about.get("scaling")),
        run_config=_object(about.get("run")),
        environment=_object(about.get("environment")),
        code=_object(about.get("code")),
        logs=logs.files(home, store),
        files=tuple(_file(made, there) for made in play.files if logs.inside(home, made.path) is not None),
        timeline=_timeline(play),
        version=version,
    )


class _There:
    """What lies in the run's directory or store; the latter is listed once."""

    def __init__(self, home: Home, store: Store | None) -> None:
        self._home = home
        self._sizes = {entry.key: entry.size for entry in store.entries()} if store is not None else None
        self._uri = store.uri if store is not None else ""

    def size(self, path: str) -> int | None:
        """Of a file by its path below the run; None where there is none."""
        if self._sizes is not None:
            return self._sizes.get(path)
        found = logs.inside(self._home, path)
        try:
            return found.stat().st_size if found is not None else None
        except OSError:
            return None

    def has(self, path: str) -> bool:
        return self.size(path) is not None

    def checkpoint(self, record: CheckpointRecord) -> tuple[str, bool]:
        """Its whole path, and whether it is there; no path for a name that leads elsewhere."""
        try:
            inside = self._home.layout.checkpoint(record.name)
        except StorageError:
            return "", False
        if self._sizes is not None:
            prefix = prefix_of(record)
            return f"{self._uri}/{prefix}", f"{prefix}/{MANIFEST}" in self._sizes
        return str(inside), has_manifest(inside)


def _timeline(play: Play) -> tuple[Happened, ...]:
    """All that happened, but of very many checkpoints the last."""
    told = play.story.timeline
    too_many = sum(happened.kind == "checkpoint" for happened in told) - _MOST
    if too_many <= 0:
        return tuple(told)
    kept = []
    for happened in told:
        if happened.kind == "checkpoint" and too_many > 0:
            too_many -= 1
        else:
            kept.append(happened)
    return tuple(kept)


def spent_by(play: Play) -> Spent:
    """Where the time went so far, from the run's beginning to the last that is known of it."""
    story, usage = play.story, play.usage
    until = story.ended_at if story.ended_at is not None else play.updated_at
    worked = []
    for chapter in story.chapters:
        if chapter.started_at is None:
            continue
        uses = tuple(use for (attempt, _), use in sorted(usage.last.items()) if attempt == chapter.number)
        end = chapter.worked_until if chapter.worked_until is not None else chapter.ended_at
        measured = usage.measured_at.get(chapter.number)
        worked.append(Worked(chapter.started_at, end if end is not None else until, measured, chapter.ready_at, uses))
    return spent(story.began_at, until, worked)


def _checkpoints(play: Play, run: Run, there: _There) -> tuple[ShownCheckpoint, ...]:
    """Those that there are, and the last of those that there were, oldest first."""
    kept = {(record.seq, record.attempt): record for record in run.checkpoints}
    rules, best = run.retention, None
    if rules.score_attribute is not None:
        scored = [record for record in run.checkpoints if score_of(record, rules.score_attribute) is not None]
        best = next(reversed(ranked(scored, rules.score_attribute, rules.score_order)), None)
    known = {key: Kept(record, 0.0) for key, record in kept.items()} | play.story.checkpoints
    gone = [key for key in known if key not in kept][-_MOST:]
    found = []
    for key in sorted({*kept, *gone}):
        record = known[key].record
        path, is_there = there.checkpoint(record)
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
                metrics=values_of(dict(flattened(_object(msgspec.json.decode(record.metrics))))),
            )
        )
    return tuple(found)


def _file(made: FileMade, there: _There) -> ShownFile:
    return ShownFile(
        kind=made.kind,
        path=made.path,
        rank=made.rank,
        at=made.at,
        seconds=made.seconds,
        num_bytes=there.size(made.path) or 0,
    )


def _stages(measured: Measured | None) -> tuple[tuple[Stage, ...], str | None]:
    if measured is None or not measured.stages:
        return (), None
    stages = tuple(
        Stage(
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


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
