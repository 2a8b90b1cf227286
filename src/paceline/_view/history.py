"""The history of a run: its attempts with their workers, failures and hangs, its checkpoints, and a timeline.

Built event by event, from the run before and after each: by whoever reads its journal, and in its driver, which keeps
only what still matters of the past. Of reports, only the progress of ranks is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from msgspec import convert
from msgspec.structs import replace

from paceline._control import events
from paceline._control.events import Event
from paceline._control.retry_policy import first_failure
from paceline._control.run import Finished, Run, Running, Stopping
from paceline._core.checkpoint_records import CheckpointRecord
from paceline._engine.messages import RankUsage, WorkerFailure
from paceline._view.formatting import format_count
from paceline._view.journal.usage import AttemptWork, mean_usage
from paceline._view.model import Attempt, ShownFailure, ShownGpu, ShownHang, TimelineEntry, Worker, WorkerState
from paceline._view.save_history import SaveHistory

ENDINGS = {"complete": "finished", "interrupted": "stopped"}
_ALIVE = ("starting", "running", "hangs")


@dataclass(slots=True)
class TrackedWorker:
    rank: int
    state: WorkerState = "starting"
    pid: int = 0
    host: str = ""
    num_reports: int = 0
    failure: str | None = None
    usage: RankUsage | None = None
    """The last measurement, and when it was."""
    measured_at: float = 0.0
    cpu: float | None = None
    """Cores in use between the last two measurements."""

    def add_usage(self, usage: RankUsage, at: float) -> None:
        if self.usage is not None:
            since = at - self.measured_at
            self.cpu = max(0.0, (usage.cpu_s - self.usage.cpu_s) / since) if since > 0 else 0.0
        self.usage, self.measured_at = usage, at


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
    hangs: list[ShownHang] = field(default_factory=list)
    workers: dict[int, TrackedWorker] = field(default_factory=dict)
    failure_received_at: dict[tuple[int, str], float] = field(default_factory=dict)
    """When a failure was received, by rank and message: some carry no time."""
    measured_at: float | None = None

    def usages(self) -> tuple[RankUsage, ...]:
        return tuple(worker.usage for worker in self.workers.values() if worker.usage is not None)

    def first_failures(self) -> tuple[WorkerFailure, ...]:
        return (first_failure(self.failures),) if self.failures else ()

    def condense(self) -> None:
        """Keep only the cause of failures and what the time breakdown needs."""
        mean = mean_usage(self.usages())
        self.workers = {0: TrackedWorker(0, usage=mean)} if mean is not None else {}
        self.failures = self.first_failures()
        self.hangs, self.failure_received_at = [], {}


@dataclass
class TrackedCheckpoint:
    """A checkpoint that exists or has been deleted."""

    record: CheckpointRecord
    at: float


class RunHistory:
    def __init__(self, *, keeps_past: bool = True) -> None:
        """Without `keeps_past`, there is no timeline, and of ended attempts and deleted checkpoints hardly anything."""
        self._keeps_past = keeps_past
        self.began_at = 0.0
        self.ended_at: float | None = None
        self.last_at = 0.0
        self.attempts: list[AttemptHistory] = []
        self.checkpoints: dict[tuple[int, int], TrackedCheckpoint] = {}
        """By number and attempt, in commit order."""
        self.timeline: list[TimelineEntry] = []
        self.saves = SaveHistory()

    @property
    def current_attempt(self) -> AttemptHistory | None:
        return self.attempts[-1] if self.attempts else None

    def add_event(self, event: Event, before: Run, after: Run, at: float) -> None:
        if isinstance(event, events.DriverStarted):
            self._add_driver(event, before, after, at)
        self.last_at = max(self.last_at, at)
        self.saves.add_event(event)
        if after.attempt != before.attempt or not isinstance(after.phase, Running | Stopping):
            self._close_attempt(before, after, at)
        if after.attempt != before.attempt:
            if self.attempts and not self._keeps_past:
                self.attempts[-1].condense()
            self.attempts.append(AttemptHistory(after.attempt, at, after.size))
        was_running = isinstance(before.phase, Running) and before.attempt == after.attempt
        if isinstance(after.phase, Running) and not was_running:
            self._start_workers(after, at)
        self._update_workers(event, after, at)
        self._update_checkpoints(event, after, at)
        self._update_failures(after, at)
        if isinstance(event, events.StopRequested):
            text = "stopped at once" if event.now else "stop requested at the next report"
            self._add_timeline_entry(at, "stop", text, after)
        elif isinstance(event, events.PreemptionNoticeReceived):
            machines = "the machine is" if event.includes_driver else f"{len(event.ranks)} workers' machines are"
            self._add_timeline_entry(at, "preemption", f"{machines} preempted in {event.grace_s:.0f} s", after)
        if isinstance(after.phase, Finished) and not isinstance(before.phase, Finished):
            self.ended_at = at
            why = f": {after.phase.reason}" if after.phase.reason else ""
            self._add_timeline_entry(at, "end", f"{ENDINGS.get(after.phase.ending, after.phase.ending)}{why}", after)
        elif not isinstance(after.phase, Finished):
            self.ended_at = None

    def restore_attempt(self, number: int, began_at: float, size: int, failures: tuple[WorkerFailure, ...]) -> None:
        self.attempts.append(AttemptHistory(number, began_at, size, failures=failures))

    def add_progress(self, rank: int, seq: int, at: float = 0.0) -> None:
        """Record that a rank has reached this report."""
        self.last_at = max(self.last_at, at)
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

    def add_measurement(self, event: events.UsageMeasured) -> None:
        attempt = next((each for each in reversed(self.attempts) if each.number == event.attempt), None)
        if attempt is None:
            return
        attempt.measured_at = event.at
        for usage in event.ranks:
            if (worker := attempt.workers.get(usage.rank)) is not None:
                worker.add_usage(usage, event.at)

    def list_work(self, until: float) -> Iterable[AttemptWork]:
        """Yield when workers existed and what they did, for the time breakdown."""
        for attempt in self.attempts:
            if attempt.started_at is not None:
                end = next((at for at in (attempt.worked_until, attempt.ended_at) if at is not None), until)
                yield AttemptWork(attempt.started_at, end, attempt.measured_at, attempt.ready_at, attempt.usages())

    def _add_driver(self, event: events.DriverStarted, before: Run, after: Run, at: float) -> None:
        self.began_at = self.began_at or at
        if isinstance(before.phase, Running | Stopping):  # It was lost some time after its last event.
            self._end_attempt("lost", self.last_at)
        who = f"process {event.pid} on {event.host}" if event.pid else "a driver"
        if after is not before:
            self._add_timeline_entry(at, "driver", f"{who} took over the run", after)

    def _close_attempt(self, before: Run, after: Run, at: float) -> None:
        attempt = self.current_attempt
        if attempt is None or attempt.ended_at is not None or not isinstance(before.phase, Running | Stopping):
            return
        ending: str = before.phase.ending if isinstance(before.phase, Stopping) else "lost"
        if isinstance(after.phase, Finished):
            ending = after.phase.ending
        elif after.num_preemptions > before.num_preemptions:
            ending = "preempted"
        failures = before.phase.failures if isinstance(before.phase, Stopping) else tuple(before.phase.failed)
        attempt.failures = failures or attempt.failures
        self._end_attempt(ENDINGS.get(ending, ending), at)
        if ending == "resized":
            self._add_timeline_entry(at, "resize", "workers restart in a different number", before)

    def _end_attempt(self, ending: str, at: float) -> None:
        attempt = self.current_attempt
        if attempt is None or attempt.ended_at is not None:
            return
        attempt.ending, attempt.ended_at = ending, at
        for worker in attempt.workers.values():
            if worker.state in _ALIVE:
                worker.state = "gone"

    def _start_workers(self, after: Run, at: float) -> None:
        attempt = self.current_attempt
        if attempt is None:
            return
        attempt.started_at, attempt.size = at, after.size
        attempt.resumed_from = after.latest.name if after.latest is not None else after.initial
        attempt.workers = {rank: TrackedWorker(rank) for rank in range(after.size)}
        since = f" from {attempt.resumed_from}" if attempt.resumed_from else ""
        text = f"attempt {after.attempt} with {format_count(after.size, 'worker')}{since}"
        self._add_timeline_entry(at, "attempt", text, after)

    def _update_workers(self, event: Event, after: Run, at: float) -> None:
        attempt = self.current_attempt
        if attempt is None:
            return
        match event:
            case events.WorkerReady(rank=rank, pid=pid):
                if (worker := attempt.workers.get(rank)) is not None:
                    worker.state, worker.pid = "running", pid
                if isinstance(after.phase, Running) and after.phase.num_ready >= after.size:
                    attempt.ready_at = at
            case events.WorkerReturned(rank=rank):
                if (worker := attempt.workers.get(rank)) is not None and worker.state != "failed":
                    worker.state, worker.num_reports = "returned", event.num_reports
                attempt.worked_until = at
            case events.WorkerFailed(failure=failure):
                attempt.failure_received_at.setdefault((failure.rank, failure.message), at)
                self._mark_failed(attempt, failure, at)
            case events.HangSuspected(failure=failure, action=action):
                began, rank, verdict = failure.at or at, failure.rank, failure.message
                attempt.hangs.append(ShownHang(rank=rank, verdict=verdict, action=action, at=began))
                if (worker := attempt.workers.get(rank)) is not None and worker.state == "running":
                    worker.state = "hangs"
                self._add_timeline_entry(began, "hang", verdict, after, rank)
            case events.HangCleared(rank=rank, after_s=after_s):
                open_hangs = [i for i, h in enumerate(attempt.hangs) if h.rank == rank and h.passed_after_s is None]
                for index in open_hangs[-1:]:
                    attempt.hangs[index] = replace(attempt.hangs[index], passed_after_s=after_s)
                if (worker := attempt.workers.get(rank)) is not None and worker.state == "hangs":
                    worker.state = "running"
                self._add_timeline_entry(at, "hang", f"rank {rank} continued after {after_s:.0f} s", after, rank)
            case events.ExitDelayed(rank=rank):
                self._add_timeline_entry(at, "hang", event.message, after, rank)

    def _mark_failed(self, attempt: AttemptHistory, failure: WorkerFailure, at: float) -> None:
        worker = attempt.workers.get(failure.rank)
        if worker is None or worker.state == "failed":
            return
        worker.state, worker.failure = "failed", failure.message
        worker.pid, worker.host = failure.pid or worker.pid, failure.host
        attempt.worked_until = at if attempt.worked_until is None else attempt.worked_until

    def _update_failures(self, after: Run, at: float) -> None:
        """Update the attempt's failures, including those that `step` itself detected."""
        attempt, phase = self.current_attempt, after.phase
        if attempt is None or not isinstance(phase, Running | Stopping) or len(phase.failed) == len(attempt.failures):
            return
        known = {(failure.rank, failure.message) for failure in attempt.failures}
        for failure in phase.failed:
            if (failure.rank, failure.message) not in known:
                attempt.failure_received_at.setdefault((failure.rank, failure.message), at)
                self._mark_failed(attempt, failure, at)
                self._add_timeline_entry(failure.at or at, "failure", failure.message, after, failure.rank)
        attempt.failures = tuple(phase.failed)

    def _update_checkpoints(self, event: Event, after: Run, at: float) -> None:
        records: tuple[CheckpointRecord, ...] = ()
        text = ""
        match event:
            case events.Committed(record=record):
                records, text = (record,), f"{record.name} is committed"
            case events.CheckpointsFound():
                records = event.records
            case events.CommitFailed(seq=seq, error=error):
                text = f"the checkpoint of report {seq} was not committed: {error}"
            case events.StagingFailed(seq=seq, error=error, is_skipped=is_skipped):
                text = f"the checkpoint of report {seq} was {'skipped' if is_skipped else 'abandoned'}: {error}"
            case events.CheckpointBroken(seq=seq, problem=problem):
                text = f"the checkpoint of report {seq} is broken: {problem}"
            case events.ValidationEnded(name=name, status=status):
                text = f"{name}: {status.lower().replace('_', ' ')}"
            case _:
                return
        for record in records:
            self.checkpoints[record.seq, record.attempt] = TrackedCheckpoint(record, at)
        if text:
            rank = event.rank if isinstance(event, events.StagingFailed) else None
            self._add_timeline_entry(at, "checkpoint", text, after, rank)
        existing = {}
        for record in after.checkpoints:
            key = record.seq, record.attempt
            if (tracked := self.checkpoints.get(key)) is not None:
                tracked.record, existing[key] = record, tracked
        if not self._keeps_past:
            self.checkpoints = existing

    def _add_timeline_entry(self, at: float, kind: str, text: str, run: Run, rank: int | None = None) -> None:
        if self._keeps_past:
            self.timeline.append(TimelineEntry(at=at, kind=kind, text=text, attempt=run.attempt, rank=rank))  # type: ignore[arg-type]


def build_attempt(
    attempt: AttemptHistory, *, lost_at: float | None = None, file_exists: Callable[[str], bool] = lambda path: False
) -> Attempt:
    """Build what is shown of an attempt. `file_exists`: whether a file exists below the run's directory."""
    path = f"logs/attempt_{attempt.number}/stacks.txt"
    stacks = path if file_exists(path) else None
    is_lost = lost_at is not None
    cause = first_failure(attempt.failures) if attempt.failures else None
    is_over = is_lost or attempt.ended_at is not None
    return Attempt(
        number=attempt.number,
        began_at=attempt.began_at,
        ended_at=attempt.ended_at if attempt.ended_at is not None else lost_at,
        size=attempt.size,
        resumed_from=attempt.resumed_from,
        ending=attempt.ending or ("lost" if is_lost else ""),
        first_report=attempt.first_report,
        last_report=attempt.last_report,
        failures=tuple(_build_failure(attempt, failure, failure is cause) for failure in attempt.failures),
        hangs=tuple(replace(hang, stacks=stacks) for hang in attempt.hangs),
        workers=tuple(_build_worker(attempt.workers[rank], is_over) for rank in sorted(attempt.workers)),
    )


def _build_failure(attempt: AttemptHistory, failure: WorkerFailure, is_cause: bool) -> ShownFailure:
    at = failure.at or attempt.failure_received_at.get((failure.rank, failure.message), 0.0)
    return replace(convert(failure, ShownFailure, from_attributes=True), at=at, is_cause=is_cause)


def _build_worker(worker: TrackedWorker, is_over: bool) -> Worker:
    usage = worker.usage if worker.usage is not None else RankUsage(worker.rank)
    return Worker(
        rank=worker.rank,
        state="gone" if is_over and worker.state in _ALIVE else worker.state,
        pid=worker.pid or usage.pid,
        host=usage.host or worker.host,
        device=usage.device,
        num_reports=max(worker.num_reports, usage.num_reports),
        cpu=worker.cpu,
        rss_bytes=usage.rss_bytes if worker.usage is not None else None,
        gpus=tuple(
            ShownGpu(gpu.index, gpu.used_bytes, gpu.total_bytes, gpu.busy if gpu.busy >= 0 else None)
            for gpu in usage.gpus
        ),
        failure=worker.failure,
    )
