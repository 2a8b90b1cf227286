"""The read model of a run: its events in, a `RunSnapshot` of it out.

Whatever shows a run uses it: the terminal and the notebook in the driver, event by event; the command line, the
dashboard and the report, from the journal; OpenTelemetry, for its spans. Pure: no clock, no files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import convert

from paceline._control import events
from paceline._control.retry_policy import first_failure
from paceline._control.run import NO_FAILURES, Finished, Run, Running, Validating
from paceline._core.checkpoint_records import CheckpointRecord
from paceline._view.history import RunHistory
from paceline._view.journal.report_table import flatten_metrics
from paceline._view.journal.usage import compute_time_breakdown
from paceline._view.model import RunSnapshot, ShownCheckpoint, ShownStage, State, Summary
from paceline._view.pace import PaceEstimate
from paceline._view.run_values import to_json_values


class RunProjection:
    def __init__(self, *, keeps_past: bool = True) -> None:
        self.history = RunHistory(keeps_past=keeps_past)
        self.about: dict[str, Any] = {}
        """The latest description that a driver wrote."""
        self.files: list[events.DiagnosticFileWritten] = []
        self._stages: events.UsageMeasured | None = None
        """The last measurement that has dataset stages."""

    def add_event(self, event: events.Event, before: Run, after: Run, at: float) -> None:
        """Add an event, or a note, which happened at `at`, with the run before and after it."""
        if type(event) is events.Reported:
            self.history.add_progress(event.rank, event.seq, at)
            phase = after.phase
            if type(phase) is Running and (phase.failed is NO_FAILURES or not phase.failed):
                return  # There are many, and nothing else changes.
        match event:
            case events.RunDescribed(about=about):
                description = msgspec.json.decode(about)
                self.about = description if isinstance(description, dict) else {}
            case events.UsageMeasured():
                self.history.add_measurement(event)
                self._stages = event if event.stages else self._stages
            case events.DiagnosticFileWritten():
                self.files.append(event)
        if not isinstance(event, events.Note):
            self.history.add_event(event, before, after, at)

    def summarize(
        self, run: Run, state: State, updated_at: float, metrics: Mapping[str, Any], pace: PaceEstimate, **named: Any
    ) -> Summary:
        """Summarize the run. `metrics`: the last report, flat; `named`: what the events do not tell."""
        history = self.history
        failed = [attempt for attempt in history.attempts if attempt.failures]
        failure = first_failure(failed[-1].failures).message if failed else None
        if isinstance(run.phase, Finished) and run.phase.failures:
            failure = first_failure(run.phase.failures).message
        elif isinstance(run.phase, Finished | Validating) and run.is_trained:
            failure = None
        fields: dict[str, Any] = {
            "state": state,
            "began_at": history.began_at,
            "ended_at": history.ended_at if history.ended_at is not None or state != "lost" else updated_at,
            "updated_at": updated_at,
            "attempt": run.attempt,
            "num_workers": run.size,
            "num_reports": run.num_reports,
            "num_checkpoints": len(run.checkpoints),
            "num_failures": len(failed),
            "metrics": to_json_values(metrics),
            "progress": pace.progress,
            "left_s": pace.left_s,
            "steps_per_s": pace.reports_per_s,
            "epochs_per_s": pace.epochs_per_s,
            "failure": failure,
            "hang": (run.phase.hang or None) if isinstance(run.phase, Running) and state != "lost" else None,
        }
        return Summary(**fields | named)

    def take_snapshot(self, summary: Summary, until: float, **more: Any) -> RunSnapshot:
        """Build the snapshot at `until`; `more`: the fields that only the caller knows."""
        stages, limited_by = self._build_stages()
        spent = compute_time_breakdown(self.history.began_at, until, self.history.list_work(until))
        saves = self.history.saves.build()
        return RunSnapshot(summary=summary, spent=spent, saves=saves, stages=stages, limited_by=limited_by, **more)

    def _build_stages(self) -> tuple[tuple[ShownStage, ...], str | None]:
        if self._stages is None:
            return (), None
        stages = tuple(convert(stage, ShownStage, from_attributes=True) for stage in self._stages.stages)
        if not self._stages.consumers_wait:
            return stages, CONSUMER
        limiting = next((stage for stage in stages if stage.limits), None)
        if limiting is None:
            return stages, None
        several = len({stage.dataset for stage in stages}) > 1
        return stages, f"{limiting.dataset}: {limiting.name}" if several else limiting.name


CONSUMER = "the consumer"


def build_checkpoint(record: CheckpointRecord, at: float, path: str = "", **marks: bool) -> ShownCheckpoint:
    metrics = msgspec.json.decode(record.metrics)
    return ShownCheckpoint(
        name=record.name,
        seq=record.seq,
        attempt=record.attempt,
        path=path,
        num_bytes=record.num_bytes,
        at=at,
        status=record.status,
        metrics=to_json_values(dict(flatten_metrics(metrics if isinstance(metrics, dict) else {}))),
        **{"kept": True} | marks,
    )
