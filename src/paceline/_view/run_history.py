"""The history of a run: its attempts with their workers, failures and hangs, its checkpoints, and a timeline.

Built event by event, from the run before and after each. Of reports, only the progress of ranks is recorded.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline._control.events import (
    CheckpointBroken,
    CheckpointsFound,
    CommitFailed,
    Committed,
    DriverStarted,
    Event,
    HangCleared,
    HangSuspected,
    PreemptionNoticeReceived,
    StagingFailed,
    StopRequested,
    ValidationEnded,
    WorkerFailed,
    WorkerReady,
    WorkerReturned,
)
from paceline._control.run import Finished, Run, Running, Stopping
from paceline._engine.messages import CheckpointRecord, WorkerFailure
from paceline._view.model import TimelineEntry, WorkerState

ENDINGS = {"interrupted": "stopped"}


@dataclass
class TrackedWorker:
    rank: int
    state: WorkerState = "starting"
    pid: int = 0
    host: str = ""
    num_reports: int = 0
    failure: str | None = None


@dataclass
class TrackedHang:
    """One detected hang of an attempt."""

    rank: int
    verdict: str
    action: str
    at: float
    passed_after_s: float | None = None


@dataclass
class AttemptHistory:
    """What the journal says about one attempt."""

    number: int
    began_at: float
    size: int
    resumed_from: str | None = None
    started_at: float | None = None
    """When its workers were requested."""
    ready_at: float | None = None
    """When the last worker was ready."""
    worked_until: float | None = None
    """When the first worker failed or the last one returned."""
    ended_at: float | None = None
    ending: str = ""
    first_report: int = 0
    last_report: int = 0
    failures: tuple[WorkerFailure, ...] = ()
    hangs: list[TrackedHang] = field(default_factory=list)
    workers: dict[int, TrackedWorker] = field(default_factory=dict)
    failure_heard_at: dict[tuple[int, str], float] = field(default_factory=dict)
    """When a failure was received, by rank and message: some carry no time."""


@dataclass
class TrackedCheckpoint:
    """A checkpoint that exists or has been deleted."""

    record: CheckpointRecord
    at: float


class RunHistory:
    def __init__(self) -> None:
        self.began_at = 0.0
        self.ended_at: float | None = None
        self.last_at = 0.0
        self.attempts: list[AttemptHistory] = []
        self.checkpoints: dict[tuple[int, int], TrackedCheckpoint] = {}
        """By number and attempt, in commit order."""
        self.timeline: list[TimelineEntry] = []

    @property
    def current_attempt(self) -> AttemptHistory | None:
        return self.attempts[-1] if self.attempts else None

    def add_event(self, event: Event, before: Run, after: Run, at: float) -> None:
        if isinstance(event, DriverStarted):
            self._add_driver(event, before, after, at)
        self.last_at = max(self.last_at, at)
        if after.attempt != before.attempt or not isinstance(after.phase, Running | Stopping):
            self._close_attempt(before, after, at)
        if after.attempt != before.attempt:
            self._begin_attempt(after, at)
        if isinstance(after.phase, Running) and not (
            isinstance(before.phase, Running) and before.attempt == after.attempt
        ):
            self._start_workers(after, at)
        self._update_workers(event, after, at)
        self._update_checkpoints(event, after, at)
        if isinstance(after.phase, Running | Stopping):
            self._update_failures(after, at)
        if isinstance(event, StopRequested):
            self._add_timeline_entry(
                at, "stop", "stopped at once" if event.now else "asked to stop at the next report", after
            )
        elif isinstance(event, PreemptionNoticeReceived):
            whole = "the machine is" if event.includes_driver else f"{len(event.ranks)} workers' machines are"
            self._add_timeline_entry(at, "preemption", f"{whole} taken away in {event.grace_s:.0f} s", after)
        if isinstance(after.phase, Finished) and not isinstance(before.phase, Finished):
            self.ended_at = at
            why = f": {after.phase.reason}" if after.phase.reason else ""
            self._add_timeline_entry(at, "end", f"{ENDINGS.get(after.phase.ending, after.phase.ending)}{why}", after)
        elif not isinstance(after.phase, Finished):
            self.ended_at = None

    def add_progress(self, rank: int, seq: int) -> None:
        """Record that a rank has reached this report."""
        now = self.current_attempt
        if now is None:
            return
        if rank == 0:
            now.first_report = now.first_report or seq
            now.last_report = seq
        worker = now.workers.get(rank)
        if worker is not None:
            worker.num_reports = seq
            if worker.state in ("hangs", "starting"):
                worker.state = "running"

    def _add_driver(self, event: DriverStarted, before: Run, after: Run, at: float) -> None:
        if not self.began_at:
            self.began_at = at
        if isinstance(before.phase, Running | Stopping):  # It was lost some time after its last event.
            self._end_attempt("lost", self.last_at)
        who = f"process {event.pid} on {event.host}" if event.pid else "a driver"
        if after is not before:
            self._add_timeline_entry(at, "driver", f"{who} took the run in hand", after)

    def _close_attempt(self, before: Run, after: Run, at: float) -> None:
        chapter = self.current_attempt
        if chapter is None or chapter.ended_at is not None or not isinstance(before.phase, Running | Stopping):
            return
        ending: str = before.phase.ending if isinstance(before.phase, Stopping) else "lost"
        if isinstance(after.phase, Finished):
            ending = after.phase.ending
        elif after.num_preemptions > before.num_preemptions:
            ending = "preempted"
        failures = before.phase.failures if isinstance(before.phase, Stopping) else tuple(before.phase.failed)
        chapter.failures = failures or chapter.failures
        self._end_attempt(ENDINGS.get(ending, ending), at)
        if ending == "resized":
            self._add_timeline_entry(at, "resize", "workers start again in another number", before)

    def _end_attempt(self, ending: str, at: float) -> None:
        chapter = self.current_attempt
        if chapter is None or chapter.ended_at is not None:
            return
        chapter.ending, chapter.ended_at = ending, at
        for worker in chapter.workers.values():
            if worker.state in ("starting", "running", "hangs"):
                worker.state = "gone"

    def _begin_attempt(self, after: Run, at: float) -> None:
        self.attempts.append(AttemptHistory(after.attempt, at, after.size))

    def _start_workers(self, after: Run, at: float) -> None:
        chapter = self.current_attempt
        if chapter is None:
            return
        resume = after.latest
        chapter.started_at, chapter.size = at, after.size
        chapter.resumed_from = resume.name if resume is not None else after.initial
        chapter.workers = {rank: TrackedWorker(rank) for rank in range(after.size)}
        began = f"attempt {after.attempt} with {after.size} worker{'s' if after.size != 1 else ''}"
        self._add_timeline_entry(
            at, "attempt", began + (f" from {chapter.resumed_from}" if chapter.resumed_from else ""), after
        )

    def _update_workers(self, event: Event, after: Run, at: float) -> None:
        chapter = self.current_attempt
        if chapter is None:
            return
        match event:
            case WorkerReady(rank=rank, pid=pid):
                if (worker := chapter.workers.get(rank)) is not None:
                    worker.state, worker.pid = "running", pid
                if isinstance(after.phase, Running) and after.phase.num_ready >= after.size:
                    chapter.ready_at = at
            case WorkerReturned(rank=rank):
                if (worker := chapter.workers.get(rank)) is not None and worker.state != "failed":
                    worker.state, worker.num_reports = "returned", event.num_reports
                chapter.worked_until = at
            case WorkerFailed(failure=failure):
                chapter.failure_heard_at.setdefault((failure.rank, failure.message), at)
                self._mark_failed(chapter, failure, at)
            case HangSuspected(failure=failure, action=action):
                chapter.hangs.append(TrackedHang(failure.rank, failure.message, action, failure.at or at))
                if (worker := chapter.workers.get(failure.rank)) is not None and worker.state == "running":
                    worker.state = "hangs"
                self._add_timeline_entry(failure.at or at, "hang", failure.message, after, failure.rank)
            case HangCleared(rank=rank, after_s=after_s):
                for told in reversed(chapter.hangs):
                    if told.rank == rank and told.passed_after_s is None:
                        told.passed_after_s = after_s
                        break
                if (worker := chapter.workers.get(rank)) is not None and worker.state == "hangs":
                    worker.state = "running"
                self._add_timeline_entry(at, "hang", f"rank {rank} goes on after {after_s:.0f} s", after, rank)

    def _mark_failed(self, chapter: AttemptHistory, failure: WorkerFailure, at: float) -> None:
        worker = chapter.workers.get(failure.rank)
        if worker is None or worker.state == "failed":
            return
        worker.state, worker.failure = "failed", failure.message
        worker.pid, worker.host = failure.pid or worker.pid, failure.host
        if chapter.worked_until is None:
            chapter.worked_until = at

    def _update_failures(self, after: Run, at: float) -> None:
        """Update the attempt's failures, including those that `step` itself detected."""
        chapter, phase = self.current_attempt, after.phase
        if chapter is None or not isinstance(phase, Running | Stopping):
            return
        if len(phase.failed) == len(chapter.failures):
            return
        failures = tuple(phase.failed)
        for failure in failures:
            if (failure.rank, failure.message) not in {(f.rank, f.message) for f in chapter.failures}:
                chapter.failure_heard_at.setdefault((failure.rank, failure.message), at)
                self._mark_failed(chapter, failure, at)
                self._add_timeline_entry(failure.at or at, "failure", failure.message, after, failure.rank)
        chapter.failures = failures

    def _update_checkpoints(self, event: Event, after: Run, at: float) -> None:
        match event:
            case Committed(record=record):
                self._add_checkpoint(record, at)
                self._add_timeline_entry(at, "checkpoint", f"{record.name} is committed", after)
            case CheckpointsFound(records=records):
                for record in records:
                    self._add_checkpoint(record, at)
            case CommitFailed(seq=seq, error=error):
                self._add_timeline_entry(
                    at, "checkpoint", f"the checkpoint of report {seq} could not be committed: {error}", after
                )
            case StagingFailed(seq=seq, error=error, rank=rank):
                self._add_timeline_entry(
                    at, "checkpoint", f"the checkpoint of report {seq} is given up: {error}", after, rank
                )
            case CheckpointBroken(seq=seq, problem=problem):
                self._add_timeline_entry(
                    at, "checkpoint", f"the checkpoint of report {seq} is broken: {problem}", after
                )
            case ValidationEnded(name=name, status=status):
                self._add_timeline_entry(at, "checkpoint", f"{name}: {status.lower().replace('_', ' ')}", after)
            case _:
                return
        for record in after.checkpoints:
            kept = self.checkpoints.get((record.seq, record.attempt))
            if kept is not None and kept.record is not record:
                kept.record = record

    def _add_checkpoint(self, record: CheckpointRecord, at: float) -> None:
        self.checkpoints[record.seq, record.attempt] = TrackedCheckpoint(record, at)

    def _add_timeline_entry(self, at: float, kind: str, text: str, run: Run, rank: int | None = None) -> None:
        self.timeline.append(TimelineEntry(at=at, kind=kind, text=text, attempt=run.attempt, rank=rank))  # type: ignore[arg-type]
