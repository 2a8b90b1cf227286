"""A run as it is seen now, told event by event: what the live block, the lines and the notebook show.

Little is kept, whatever happens: of reports the last few values of each metric, of ranks their last two measurements.
Hearing a report costs next to nothing; its metrics are read when somebody looks.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from paceline._control.events import (
    Committed,
    Event,
    HangPassed,
    HangSuspected,
    Measured,
    WorkerFailed,
    WorkerReady,
    WorkerReturned,
)
from paceline._control.gathering import Gathering, Report
from paceline._control.run import Finished, Restoring, Run, Running, Stopping, Unopened, Validating, Waiting
from paceline._engine.messages import CheckpointRecord, RankUse
from paceline._view.model import GpuNow, Spent, Worker, WorkerState
from paceline._view.pace import Pace, Pacing
from paceline._view.usage import Worked, spent

TRACE = 64
"""So many of the last values of each metric are kept, at most, and of so many metrics."""
_UNREAD = 16
"""Where there are more reports than this between two looks, the last of them stands for all."""


_UNKNOWN = Pacing()


@dataclass(frozen=True)
class Metric:
    name: str
    value: Any
    trace: tuple[float | None, ...] = ()
    """The last values; empty where there are no numbers."""


@dataclass(frozen=True)
class Seen:
    """At one moment."""

    name: str
    state: str
    attempt: int
    size: int
    elapsed_s: float
    """Since this driver began."""
    num_reports: int = 0
    workers: tuple[Worker, ...] = ()
    metrics: tuple[Metric, ...] = ()
    pacing: Pacing = _UNKNOWN
    checkpoint: CheckpointRecord | None = None
    checkpoint_age_s: float | None = None
    spent: Spent | None = None
    """None: nothing was measured yet."""
    limited_by: str = ""
    """The stage of a dataset that the workers wait for."""
    hang: str = ""


@dataclass
class _Attempt:
    began: float | None = None
    ready: float | None = None
    until: float | None = None
    measured: float | None = None
    states: dict[int, WorkerState] = field(default_factory=dict)
    """Of those that are not as all were in the beginning."""
    uses: dict[int, RankUse] = field(default_factory=dict)
    cores: dict[int, float] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)

    def worked(self, now: float) -> Worked | None:
        if self.began is None:
            return None
        until = self.until if self.until is not None else now
        return Worked(self.began, until, self.measured, self.ready, tuple(self.uses.values()))


class Watching:
    """Hears what happens in a run. Times are those of the wall clock."""

    def __init__(self, name: str, config: Mapping[str, Any] | None, began: float) -> None:
        self._name = name
        self._began = began
        self._gathering = Gathering()
        self._unread: deque[Report] = deque(maxlen=_UNREAD + 1)
        self._last: Report | None = None
        self._traces: dict[str, deque[float | None]] = {}
        self._pace = Pace(config)
        self._now = _Attempt()
        self._number = 0
        self._over: list[Worked] = []
        self._checkpoint: CheckpointRecord | None = None
        self._committed_at: float | None = None
        self._is_measured = False
        self._limited_by = ""

    def told(self, event: Event, run: Run) -> list[Report]:
        """An event took effect, and this is the run after it. Gives the reports of the run that are ready by it."""
        reports = self._gathering.hear(event, run)
        if reports:
            self._unread.extend(reports)
        return reports

    def heard(self, event: Event, run: Run, at: float) -> None:
        """The same of all but reports, and when it was."""
        if run.attempt != self._number:
            self._end(at)
            self._now, self._number = _Attempt(), run.attempt
        now = self._now
        if now.began is None and isinstance(run.phase, Running):
            now.began = at
        match event:
            case WorkerReady(rank=rank):
                now.states[rank] = "running"
                if isinstance(run.phase, Running) and run.phase.num_ready >= run.size:
                    now.ready = at
            case WorkerReturned(rank=rank):
                now.states[rank] = "returned"
            case WorkerFailed(rank=rank, failure=failure):
                now.states[rank], now.failures[rank] = "failed", failure.message
            case HangSuspected(failure=failure):
                now.states[failure.rank] = "hangs"
            case HangPassed(rank=rank):
                now.states[rank] = "running"
            case Committed(record=record):
                self._checkpoint, self._committed_at = record, at
            case Measured() if event.attempt == self._number:
                self._measure(event)
        if now.until is None and now.began is not None and not isinstance(run.phase, Running):
            now.until = at

    def look(self, run: Run, at: float) -> Seen:
        self._read()
        latest = run.latest
        age = None
        if self._checkpoint is not None and latest is not None and self._checkpoint.name == latest.name:
            age = max(0.0, at - self._committed_at) if self._committed_at is not None else None
        return Seen(
            name=self._name,
            state=state_of(run),
            attempt=run.attempt,
            size=run.size,
            elapsed_s=max(0.0, at - self._began),
            num_reports=run.num_reports,
            workers=tuple(self._workers(run)),
            metrics=tuple(self._metrics()),
            pacing=self._pace.now(at) if isinstance(run.phase, Running) else _UNKNOWN,
            checkpoint=latest,
            checkpoint_age_s=age,
            spent=self._spent(at) if self._is_measured else None,
            limited_by=self._limited_by,
            hang=run.phase.hang if isinstance(run.phase, Running) else "",
        )

    def _read(self) -> None:
        if len(self._unread) > _UNREAD:
            self._unread = deque([self._unread[-1]], maxlen=_UNREAD + 1)
        while self._unread:
            report = self._last = self._unread.popleft()
            metrics = report.metrics
            self._pace.hear(report.at, report.seq, metrics, report.attempt)
            for name, value in numbers(metrics):
                trace = self._traces.get(name)
                if trace is None:
                    if len(self._traces) >= TRACE:
                        continue
                    trace = self._traces[name] = deque(maxlen=TRACE)
                trace.append(value)

    def _metrics(self) -> Iterator[Metric]:
        if self._last is None:
            return
        for name, value in flat(self._last.metrics):
            yield Metric(name, value, tuple(self._traces.get(name, ())))

    def _measure(self, event: Measured) -> None:
        now = self._now
        for use in event.ranks:
            before = now.uses.get(use.rank)
            if before is not None and now.measured is not None and event.at > now.measured:
                now.cores[use.rank] = max(0.0, use.cpu_s - before.cpu_s) / (event.at - now.measured)
            now.uses[use.rank] = use
        now.measured = event.at
        self._is_measured = True
        limiting = next((f"{stage.dataset}: {stage.name}" for stage in event.stages if stage.limits), "")
        self._limited_by = limiting if event.consumers_wait else ""

    def _end(self, at: float) -> None:
        """Of the attempt, what is needed to tell where the time went."""
        worked = self._now.worked(at)
        if worked is not None:
            self._over.append(replace(worked, uses=_mean(worked.uses)))

    def _spent(self, at: float) -> Spent:
        worked = self._now.worked(at)
        return spent(self._began, at, [*self._over, *([worked] if worked is not None else [])])

    def _workers(self, run: Run) -> Iterator[Worker]:
        if not isinstance(run.phase, Running | Stopping):
            return
        now = self._now
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
                    GpuNow(gpu.index, gpu.used_bytes, gpu.total_bytes, gpu.busy if gpu.busy >= 0 else None)
                    for gpu in (use.gpus if use is not None else ())
                ),
                failure=now.failures.get(rank),
            )


def state_of(run: Run) -> str:
    """In words."""
    match run.phase:
        case Unopened():
            return "opening"
        case Restoring(record=record):
            return f"verifying {record.name}"
        case Waiting():
            return "waiting for room"
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


def flat(metrics: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """By one name each: `eval/loss`."""
    for name, value in metrics.items():
        if isinstance(value, dict):
            yield from flat(value, f"{above}{name}/")
        else:
            yield f"{above}{name}", value


def numbers(metrics: Mapping[str, Any]) -> Iterator[tuple[str, float | None]]:
    """Those that can be drawn; what is not finite is a gap."""
    for name, value in flat(metrics):
        if isinstance(value, int | float) and not isinstance(value, bool):
            try:
                number = float(value)
            except OverflowError:
                number = math.inf
            yield name, number if math.isfinite(number) else None


def _mean(uses: tuple[RankUse, ...]) -> tuple[RankUse, ...]:
    if not uses:
        return ()
    names = ("wall_s", "setup_s", "data_s", "report_s", "checkpoint_s")
    return (RankUse(0, **{name: sum(getattr(use, name) for use in uses) / len(uses) for name in names}),)
