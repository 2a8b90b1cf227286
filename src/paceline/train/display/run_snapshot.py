"""The current state of a run, built event by event: what the live block, plain lines and the notebook show.

Memory is bounded: for metrics the last few values, for ranks the last two measurements. Receiving a report costs almost
nothing; its metrics are decoded only when a snapshot is taken.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from paceline._control import events
from paceline._control.report_aggregator import ReportAggregator, RunReport
from paceline._control.run import Finished, Restoring, Run, Running, Stopping, Unopened, Validating, Waiting
from paceline._core.arguments import flatten_dict, is_number
from paceline._core.checkpoint_records import CheckpointRecord
from paceline._engine.messages import RankUsage
from paceline._view.journal.usage import AttemptWork, compute_time_breakdown
from paceline._view.model import ShownGpu, TimeBreakdown, Worker, WorkerState
from paceline._view.pace import PaceEstimate, PaceEstimator

MAX_TRACE = 64
"""Maximum number of recent values kept per metric, and of metrics with such values."""
_MAX_UNREAD = 16
"""If more reports than this arrive between two snapshots, the last one represents all of them."""
_UNKNOWN_PACING = PaceEstimate()


@dataclass(frozen=True)
class MetricSnapshot:
    name: str
    value: Any
    trace: tuple[float | None, ...] = ()
    """The recent values; empty if the metric is not numeric."""


@dataclass(frozen=True)
class RunSnapshot:
    """What a run looks like at one moment."""

    name: str
    state: str
    attempt: int
    size: int
    elapsed_s: float
    """Since this driver started."""
    num_reports: int = 0
    workers: tuple[Worker, ...] = ()
    metrics: tuple[MetricSnapshot, ...] = ()
    pacing: PaceEstimate = _UNKNOWN_PACING
    checkpoint: CheckpointRecord | None = None
    checkpoint_age_s: float | None = None
    spent: TimeBreakdown | None = None
    """None: nothing measured yet."""
    limited_by: str = ""
    """The dataset stage that the workers wait for."""
    hang: str = ""


@dataclass
class _AttemptActivity:
    started_at: float | None = None
    ready_at: float | None = None
    ended_at: float | None = None
    measured_at: float | None = None
    states: dict[int, WorkerState] = field(default_factory=dict)
    """Only ranks that have left the initial state."""
    uses: dict[int, RankUsage] = field(default_factory=dict)
    cores: dict[int, float] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)

    def summarize_work(self, now: float) -> AttemptWork | None:
        if self.started_at is None:
            return None
        until = self.ended_at if self.ended_at is not None else now
        return AttemptWork(self.started_at, until, self.measured_at, self.ready_at, tuple(self.uses.values()))


class ProgressTracker:
    """Tracks the progress of a run from its events. Times are wall-clock times."""

    def __init__(self, name: str, config: Mapping[str, Any] | None, began: float) -> None:
        self._name = name
        self._started_at = began
        self._aggregator = ReportAggregator()
        self._unread: deque[RunReport] = deque(maxlen=_MAX_UNREAD + 1)
        self._last: RunReport | None = None
        self._traces: dict[str, deque[float | None]] = {}
        self._pace = PaceEstimator(config)
        self._attempt = _AttemptActivity()
        self._attempt_number = 0
        self._past_work: list[AttemptWork] = []
        self._committed_name, self._committed_at = "", 0.0
        self._is_measured = False
        self._limited_by = ""

    def collect_reports(self, event: events.Event, run: Run) -> list[RunReport]:
        """Process an event, given the run after it; return the reports of the run that are now complete."""
        reports = self._aggregator.add_event(event, run)
        self._unread.extend(reports)
        return reports

    def update_state(self, event: events.Event, run: Run, at: float) -> None:
        """Process an event other than a report, which happened at `at`."""
        if run.attempt != self._attempt_number:
            self._end_attempt(at)
            self._attempt, self._attempt_number = _AttemptActivity(), run.attempt
        now = self._attempt
        if now.started_at is None and isinstance(run.phase, Running):
            now.started_at = at
        match event:
            case events.WorkerReady(rank=rank):
                now.states[rank] = "running"
                if isinstance(run.phase, Running) and run.phase.num_ready >= run.size:
                    now.ready_at = at
            case events.WorkerReturned(rank=rank):
                now.states[rank] = "returned"
            case events.WorkerFailed(rank=rank, failure=failure):
                now.states[rank], now.failures[rank] = "failed", failure.message
            case events.HangSuspected(failure=failure):
                now.states[failure.rank] = "hangs"
            case events.HangCleared(rank=rank):
                now.states[rank] = "running"
            case events.Committed(record=record):
                self._committed_name, self._committed_at = record.name, at
            case events.UsageMeasured() if event.attempt == self._attempt_number:
                self._apply_measurement(event)
        if now.ended_at is None and now.started_at is not None and not isinstance(run.phase, Running):
            now.ended_at = at

    def take_snapshot(self, run: Run, at: float) -> RunSnapshot:
        self._read_reports()
        latest = run.latest
        age = None
        if latest is not None and latest.name == self._committed_name:
            age = max(0.0, at - self._committed_at)
        return RunSnapshot(
            name=self._name,
            state=describe_state(run),
            attempt=run.attempt,
            size=run.size,
            elapsed_s=max(0.0, at - self._started_at),
            num_reports=run.num_reports,
            workers=tuple(self._iter_workers(run)),
            metrics=tuple(self._iter_metrics()),
            pacing=self._pace.estimate(at) if isinstance(run.phase, Running) else _UNKNOWN_PACING,
            checkpoint=latest,
            checkpoint_age_s=age,
            spent=compute_time_breakdown(self._started_at, at, self._list_work(at)) if self._is_measured else None,
            limited_by=self._limited_by,
            hang=run.phase.hang if isinstance(run.phase, Running) else "",
        )

    def _read_reports(self) -> None:
        if len(self._unread) > _MAX_UNREAD:
            self._unread = deque([self._unread[-1]], maxlen=_MAX_UNREAD + 1)
        while self._unread:
            report = self._last = self._unread.popleft()
            metrics = report.metrics
            self._pace.add_report(report.at, report.seq, metrics, report.attempt)
            for name, value in iter_numbers(metrics):
                trace = self._traces.get(name)
                if trace is None:
                    if len(self._traces) >= MAX_TRACE:
                        continue
                    trace = self._traces[name] = deque(maxlen=MAX_TRACE)
                trace.append(value)

    def _iter_metrics(self) -> Iterator[MetricSnapshot]:
        if self._last is None:
            return
        for name, value in flatten_dict(self._last.metrics).items():
            if value != {}:
                yield MetricSnapshot(name, value, tuple(self._traces.get(name, ())))

    def _apply_measurement(self, event: events.UsageMeasured) -> None:
        now = self._attempt
        for use in event.ranks:
            before = now.uses.get(use.rank)
            if before is not None and now.measured_at is not None and event.at > now.measured_at:
                now.cores[use.rank] = max(0.0, use.cpu_s - before.cpu_s) / (event.at - now.measured_at)
            now.uses[use.rank] = use
        now.measured_at = event.at
        self._is_measured = True
        limiting = next((f"{stage.dataset}: {stage.name}" for stage in event.stages if stage.limits), "")
        self._limited_by = limiting if event.consumers_wait else ""

    def _end_attempt(self, at: float) -> None:
        """Keep only the part of the attempt that the time breakdown needs."""
        worked = self._attempt.summarize_work(at)
        if worked is not None:
            self._past_work.append(replace(worked, uses=_mean_use(worked.uses)))

    def _list_work(self, at: float) -> list[AttemptWork]:
        worked = self._attempt.summarize_work(at)
        return self._past_work if worked is None else [*self._past_work, worked]

    def _iter_workers(self, run: Run) -> Iterator[Worker]:
        if not isinstance(run.phase, Running | Stopping):
            return
        now = self._attempt
        for rank in range(run.size):
            use = now.uses.get(rank)
            yield Worker(
                rank=rank,
                state=now.states.get(rank, "starting"),
                pid=use.pid if use is not None else 0,
                host=use.host if use is not None else "",
                device=use.device if use is not None else "",
                cpu=now.cores.get(rank),
                rss_bytes=use.rss_bytes if use is not None else None,
                gpus=tuple(
                    ShownGpu(gpu.index, gpu.used_bytes, gpu.total_bytes, gpu.busy if gpu.busy >= 0 else None)
                    for gpu in (use.gpus if use is not None else ())
                ),
                failure=now.failures.get(rank),
            )


def describe_state(run: Run) -> str:
    """Describe the run's phase in words."""
    match run.phase:
        case Unopened():
            return "opening"
        case Restoring(record=record):
            return f"verifying {record.name}"
        case Waiting():
            return "waiting for resources"
        case Validating():
            return "validating"
        case Finished(ending=ending):
            return {"interrupted": "stopped"}.get(ending, ending)
        case Stopping():
            return "ending"
        case Running(num_ready=num_ready):
            if run.stop_requested or run.preempted:
                return "stopping at the next report"
            return "starting" if num_ready < run.size else "running"


def iter_numbers(metrics: Mapping[str, Any]) -> Iterator[tuple[str, float | None]]:
    """Yield the numeric metrics; a value that is not finite becomes a gap (None)."""
    for name, value in flatten_dict(metrics).items():
        if is_number(value):
            try:
                number = float(value)
            except OverflowError:
                number = math.inf
            yield name, number if math.isfinite(number) else None


def _mean_use(uses: tuple[RankUsage, ...]) -> tuple[RankUsage, ...]:
    if not uses:
        return ()
    names = ("wall_s", "setup_s", "data_s", "report_s", "checkpoint_s")
    return (RankUsage(0, **{name: sum(getattr(use, name) for use in uses) / len(uses) for name in names}),)
