"""A run as its driver shows it: the read model, fed with events as they happen, and the recent values of its metrics.

Memory is bounded: for metrics the last few values, for ranks the last two measurements. Receiving a report costs almost
nothing; its metrics are decoded only when a snapshot is taken.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from paceline._control import events
from paceline._control.report_aggregator import ReportAggregator, RunReport
from paceline._control.run import Run, Running
from paceline._core.arguments import flatten_dict
from paceline._core.cursor import count_dataset_epochs
from paceline._core.plain_values import from_plain
from paceline._view.history import build_attempt
from paceline._view.model import RunSnapshot, ShownCheckpoint, TimeBreakdown
from paceline._view.pace import PaceEstimate, PaceEstimator
from paceline._view.projection import RunProjection, build_checkpoint
from paceline._view.run_values import display_state, to_finite

MAX_TRACE = 64
"""Maximum number of recent values kept per metric, and of metrics with such values."""
_MAX_UNREAD = 16
"""If more reports than this arrive between two snapshots, the last one represents all of them."""


class LiveRun:
    """Times are wall-clock times."""

    def __init__(self, name: str, config: Mapping[str, Any] | None, began_at: float) -> None:
        self.traces: dict[str, deque[float | None]] = {}
        """Recent values of numeric metrics; None where one is not finite."""
        self._name = name
        self._projection = RunProjection(keeps_past=False)
        self._projection.history.began_at = began_at
        self._before = Run()
        self._aggregator = ReportAggregator()
        self._unread: deque[RunReport] = deque(maxlen=_MAX_UNREAD + 1)
        self._metrics: dict[str, Any] = {}
        self._pace = PaceEstimator(config)

    def add_event(self, event: events.Event, run: Run, at: float) -> list[RunReport]:
        """Process an event, given the run after it; return the reports of the run that are now complete."""
        self._projection.add_event(event, self._before, run, at)
        self._before = run
        reports = self._aggregator.add_event(event, run)
        self._unread.extend(reports)
        return reports

    def take_snapshot(self, run: Run, at: float) -> RunSnapshot:
        """Take a snapshot with the current attempt and the latest checkpoint."""
        self._read_reports()
        projection, latest = self._projection, run.latest
        state = display_state(run, is_held=True)
        pace = self._pace.estimate(at) if isinstance(run.phase, Running) else PaceEstimate()
        name = {"id": ".", "name": self._name, "path": "", "kind": "run"}
        checkpoints: tuple[ShownCheckpoint, ...] = ()
        if latest is not None:
            tracked = projection.history.checkpoints.get((latest.seq, latest.attempt))
            checkpoints = (build_checkpoint(latest, tracked.at if tracked is not None else 0.0),)
        attempts = projection.history.attempts
        snapshot = projection.take_snapshot(
            projection.summarize(run, state, at, self._metrics, pace, **name),
            at,
            pace=pace,
            attempts=tuple(map(build_attempt, attempts[-1:])),
            checkpoints=checkpoints,
        )
        is_measured = any(attempt.measured_at is not None for attempt in attempts)
        return snapshot if is_measured else replace(snapshot, spent=TimeBreakdown())

    def _read_reports(self) -> None:
        if len(self._unread) > _MAX_UNREAD:
            self._unread = deque([self._unread[-1]], maxlen=_MAX_UNREAD + 1)
        while self._unread:
            report = self._unread.popleft()
            epochs = count_dataset_epochs(report.rank_reports[0].data)
            self._pace.add_report(report.at, report.seq, report.metrics, report.attempt, epochs)
            metrics = from_plain(report.metrics, as_lists=True)
            self._metrics = {name: value for name, value in flatten_dict(metrics).items() if value != {}}
            for name, value in self._metrics.items():
                if isinstance(value, int | float) and not isinstance(value, bool):
                    if name not in self.traces and len(self.traces) < MAX_TRACE:
                        self.traces[name] = deque(maxlen=MAX_TRACE)
                    if name in self.traces:
                        self.traces[name].append(to_finite(value))
