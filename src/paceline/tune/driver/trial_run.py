"""One run of a trial, driven by its own thread, which sends messages to the search.

The thread decides nothing. The search's decisions come back through `release_report` and `stop`, which may be called at
any time and from any thread.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from paceline._control.controller import Controller
from paceline._control.events import (
    CheckpointRecord,
    CommitFailed,
    Committed,
    PinsSet,
    StagingFailed,
    WorkerFailed,
    WorkerReady,
)
from paceline._control.events import Event as RunEvent
from paceline._control.recovery import RecoveredRun
from paceline._control.report_aggregator import (
    ReportAggregator,
    RunReport,
    drop_superseded_reports,
    encode_reduced_metrics,
    iter_reports,
)
from paceline._control.retry_policy import first_failure
from paceline._control.run import Finished, Run, Running
from paceline._core.errors import PreemptionError, TrainingFailedError
from paceline.train.driver.run_spec import DifferentRunError, RunHooks
from paceline.train.result import Result
from paceline.tune.driver.events import TrialReported, TrialRetried, TrialSaved

Ending = Literal["returned", "failed", "interrupted", "preempted", "not its own"]
""""not its own": another run is stored in the place of this one."""


class _RunNotStarted(Exception):
    """The run was asked to stop before any of its workers started."""


class FailedEarlierError(TrainingFailedError):
    """The run failed under a driver that was lost before it could record the failure."""


@dataclass(frozen=True)
class TrialReportMessage:
    event: TrialReported
    attempt: int


@dataclass(frozen=True)
class TrialEndMessage:
    trial_id: str
    ending: Ending
    error: BaseException | None
    at: float


@dataclass(frozen=True)
class TrialPinsMessage:
    """The checkpoints that a run keeps for others from now on."""

    trial_id: str
    seqs: tuple[int, ...]


TrialRunMessage = TrialReportMessage | TrialSaved | TrialRetried | TrialPinsMessage | TrialEndMessage


class TrialRun:
    """Drives a run to its end with `execute`, which gets the hooks that connect the run to the search."""

    def __init__(
        self,
        trial_id: str,
        run: str,
        execute: Callable[[RunHooks], Result],
        send: Callable[[TrialRunMessage], None],
        *,
        last_known_seq: int,
        waits_in_reports: bool,
        waits_for_checkpoints: bool,
        is_retried: bool = False,
    ) -> None:
        """`last_known_seq`: the last report that the search knows. `waits_in_reports`: after each report, recovered
        ones included, the run waits for the decision. `is_retried`: a failure of the run is known; it is to resume.
        """
        self.trial_id = trial_id
        self.run = run
        self.is_stopped_by_person = False
        self._execute = execute
        self._send = send
        self._reporter = _TrialRunReporter(trial_id, run, send, last_known_seq, waits_for_checkpoints, is_retried)
        self._waits_in_reports = waits_in_reports
        # Protects the four below: a stop may be requested before there is a controller.
        self._changed = threading.Condition()
        self._controller: Controller | None = None
        self._queued_requests: list[Callable[[Controller], None]] = []
        self._released_seq = 0
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run_thread, name=f"paceline-{run}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def release_report(self, attempt: int, seq: int, *, save: bool = False) -> None:
        with self._changed:
            self._released_seq = max(self._released_seq, seq)
            self._changed.notify_all()
        self._ask_controller(lambda controller: controller.release_report(attempt, seq, save=save))

    def stop(self, *, now: bool = False) -> None:
        self._mark_stopped()
        self._ask_controller(lambda controller: controller.request_stop(now=now))

    def preempt(self, grace_s: float) -> None:
        self._mark_stopped()
        self._ask_controller(lambda controller: controller.request_preemption(grace_s))

    def pin(self, seqs: tuple[int, ...]) -> None:
        """Ask the run to keep these checkpoints. A `TrialPinsMessage` says which it has, unless the run ends first."""
        self._ask_controller(lambda controller: controller.request_pins(seqs))

    def join(self) -> None:
        self._thread.join()

    def attach(self, controller: Controller | None) -> None:
        with self._changed:
            self._controller = controller
            requests, self._queued_requests = self._queued_requests, []
        if controller is not None:
            for request in requests:
                request(controller)

    def _mark_stopped(self) -> None:
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()

    def _on_recovered(self, recovered: RecoveredRun) -> None:
        """Report what already exists and wait for the decision on it, so that no worker starts in vain."""
        last = self._reporter.report_recovered(recovered)
        with self._changed:
            if self._waits_in_reports and last:
                self._changed.wait_for(lambda: self._released_seq >= last or self._is_stopped)
            if self._is_stopped:
                raise _RunNotStarted

    def _ask_controller(self, request: Callable[[Controller], None]) -> None:
        with self._changed:
            controller = self._controller
            if controller is None:
                self._queued_requests.append(request)
                return
        request(controller)

    def _run_thread(self) -> None:
        ending: Ending = "failed"
        error: BaseException | None = None
        try:
            hooks = RunHooks(
                observer_factories=(lambda stop: self._reporter,),
                make_interrupts=lambda controller: _AttachedController(self, controller),
                on_recovered=self._on_recovered,
            )
            self._execute(hooks)
            ending = "interrupted" if self._reporter.was_interrupted else "returned"
        except _RunNotStarted:
            ending = "interrupted"
        except PreemptionError as problem:
            ending, error = "preempted", problem
        except DifferentRunError as problem:
            ending, error = "not its own", problem
        except BaseException as problem:  # noqa: BLE001
            error = problem
        finally:
            self._reporter.flush()
            self._send(TrialEndMessage(self.trial_id, ending, error, time.time()))


class _AttachedController:
    """Lets the search reach a controller while it is driving."""

    count = 0
    has_ctrl_c = False

    def __init__(self, run: TrialRun, controller: Controller) -> None:
        self._run = run
        self._controller = controller

    def __enter__(self) -> None:
        self._run.attach(self._controller)

    def __exit__(self, *_: object) -> None:
        self._run.attach(None)

    def on_stop_request(self, *, now: bool) -> None:
        """Stop this trial only; the search continues."""
        self._run.is_stopped_by_person = True
        self._controller.request_stop(now=now)


@dataclass(eq=False)
class _TrialRunReporter:
    """Observes the run. It may hold a report back until the checkpoint that came with it is committed."""

    _trial_id: str
    _run: str
    _send: Callable[[TrialRunMessage], None]
    _last_known_seq: int
    _waits_for_checkpoints: bool
    _is_retried: bool
    was_interrupted: bool = False
    _attempt: int = 0
    _has_failed: bool = False
    _worker: WorkerReady | None = None
    """The process of rank 0, until a report has named it."""
    _aggregator: ReportAggregator = field(default_factory=ReportAggregator)
    _held_reports: deque[RunReport] = field(default_factory=deque)

    def report_recovered(self, recovered: RecoveredRun) -> int:
        """Send what an earlier driver may not have recorded, in order; return the last report's number, or 0."""
        last, latest, sent = recovered.last_report, recovered.run.latest, 0
        for report in drop_superseded_reports(iter_reports(recovered.iter_rank_0_reports())):
            if report.seq <= self._last_known_seq:
                continue
            if self._waits_for_checkpoints and latest is not None and sent < latest.seq <= report.seq:
                self._send_checkpoint(latest)
            sent = report.seq
            self._send_report(last if last is not None and last.seq == report.seq else report)
        if latest is not None:
            self._send_checkpoint(latest)
        phase = recovered.run.phase
        if isinstance(phase, Finished) and phase.ending == "failed" and not self._is_retried:
            raise FailedEarlierError(first_failure(phase.failures).message if phase.failures else phase.reason)
        return sent

    def _send_checkpoint(self, record: CheckpointRecord) -> None:
        self._send(TrialSaved(self._trial_id, self._run, record.seq, record.name, time.time()))

    def on_event(self, event: RunEvent, run: Run) -> None:
        if run.attempt > self._attempt:
            if self._has_failed:
                self._send(TrialRetried(self._trial_id, self._run, time.time()))
            self._attempt, self._has_failed = run.attempt, False
        match event:
            case WorkerFailed():
                self._has_failed = True
            case WorkerReady(rank=0):
                self._worker = event
            case Committed(record=record):
                self._send_checkpoint(record)
                self._release_until(record.seq)
            case PinsSet():
                self._send(TrialPinsMessage(self._trial_id, tuple(run.pinned)))
            case CommitFailed(seq=seq) | StagingFailed(seq=seq):
                self._release_until(seq)
        for report in self._aggregator.add_event(event, run):
            self._held_reports.append(report)
            if not (
                self._waits_for_checkpoints
                and report.rank_reports[0].checkpoint is not None
                and isinstance(run.phase, Running)
            ):
                self._release_until(report.seq)
        if isinstance(run.phase, Finished):
            self.was_interrupted = run.phase.ending == "interrupted"
        if not isinstance(run.phase, Running):
            self.flush()

    def tick(self, run: Run, now: float) -> None:
        """Do nothing: messages are not driven by the clock."""

    def flush(self) -> None:
        self._release_until(math.inf)

    def _release_until(self, seq: float) -> None:
        while self._held_reports and self._held_reports[0].seq <= seq:
            self._send_report(self._held_reports.popleft())

    def _send_report(self, report: RunReport) -> None:
        first = report.rank_reports[0]
        metrics = encode_reduced_metrics(report.rank_reports) if first.reduce else first.metrics
        event = TrialReported(self._trial_id, self._run, report.seq, metrics, report.at, worker=self._worker)
        self._worker = None
        self._send(TrialReportMessage(event, report.attempt))


def format_error_line(error: BaseException | None) -> str:
    if error is None:
        return "failed"
    if isinstance(error, FailedEarlierError):
        return str(error).partition("\n")[0]
    cause: Any = error.__cause__ if error.__cause__ is not None else error
    text = str(cause).strip().splitlines()
    return f"{type(cause).__name__}: {text[0]}" if text else type(cause).__name__
