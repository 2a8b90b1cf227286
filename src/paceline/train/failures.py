"""From what happened in a run to what a user is told: the error that is raised, and the calls to callbacks."""

from __future__ import annotations

import contextlib
import logging
import pickle
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import msgspec

from paceline._control.events import (
    CommitFailed,
    Committed,
    Event,
    Failure,
    HangSuspected,
    Reported,
    StagingFailed,
    WorkerFailed,
    WorkerReturned,
)
from paceline._control.gathering import Gathering, Report, own_metrics
from paceline._control.policy import first_failure
from paceline._control.recover import reports_so_far
from paceline._control.run import Finished, Run, Running, Stopping
from paceline._core.errors import ReportMismatchError, StorageError, WorkerError, WorkerGroupError
from paceline._core.plain import unplain
from paceline._engine.messages import CheckpointRecord
from paceline._storage.depot import Depot
from paceline._storage.layout import SAVED
from paceline.train.callbacks import (
    Callback,
    LoggedCheckpoint,
    LoggedReport,
    LoggedRun,
    LoggerCallback,
    TracingCallback,
    TrainingCallback,
    TrainRunContext,
    UserCallback,
)
from paceline.train.checkpoint import Checkpoint

log = logging.getLogger("paceline")
_HINT = "\n\nhint: "


class Collector:
    """An observer that keeps what the Result will need and the journal does not hold."""

    def __init__(self, history: Iterable[Event], run: Run, reported: Report | None = None) -> None:
        self._gathering = Gathering()
        self._reported = reported
        self.failures: list[WorkerFailed] = []
        self._returned: WorkerReturned | None = None
        for event in history:
            if isinstance(event, WorkerReturned) and event.rank == 0 and run.is_trained:
                self._returned = event

    def saw(self, event: Event, run: Run) -> None:
        if done := self._gathering.hear(event, run):
            self._reported = done[-1]
        if isinstance(event, WorkerFailed):
            if self.failures and self.failures[0].attempt < event.attempt:
                self.failures.clear()
            self.failures.append(event)
        elif isinstance(event, WorkerReturned) and event.rank == 0:
            self._returned = event

    def tick(self, run: Run, now: float) -> None:
        """Time passes by."""

    @property
    def metrics(self) -> dict[str, Any] | None:
        if left := self._gathering.rest():
            self._reported = left[-1]
        return self._reported.metrics if self._reported is not None else None

    @property
    def return_value(self) -> Any:
        if self._returned is None:
            return None
        if self._returned.pickled is not None:
            return pickle.loads(self._returned.pickled)  # noqa: S301  from our own worker's memory, not storage
        return unplain(msgspec.json.decode(self._returned.value))


class _Telling:
    """Tells one callback of a run. It is not called again once it has raised."""

    def __init__(self, callback: object) -> None:
        self.name = f"the callback {type(callback).__name__}"
        self._is_dropped = False

    def tick(self, run: Run, now: float) -> None:
        """Time passes by."""

    @contextlib.contextmanager
    def _calling(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._is_dropped = True
            raise

    def close(self, failed: bool) -> None:
        """The run has ended, or this driver's part in it. Called in any case, unlike all else."""
        if self._is_dropped:
            return
        self._is_dropped = True
        try:
            self._end(failed)
        except (Exception, SystemExit):
            log.exception("%s raised at the end of the run", self.name)

    def _end(self, failed: bool) -> None:
        raise NotImplementedError


class LoggerObserver(_Telling):
    """Gives one logger every report of the run."""

    def __init__(self, logger: LoggerCallback, about: TrainRunContext, depot: Depot, *, continues: bool) -> None:
        super().__init__(logger)
        self._logger = logger
        self._depot = depot
        self._gathering = Gathering()
        self._run: LoggedRun | None = LoggedRun(
            about,
            depot.layout.root,
            depot.uri,
            continues,
            (logged(report) for report in reports_so_far(depot.layout)) if continues else iter(()),
        )

    def saw(self, event: Event, run: Run) -> None:
        self.start()
        for report in self._gathering.hear(event, run):
            with self._calling():
                self._logger.log_report(logged(report))
        if isinstance(event, Committed):
            with self._calling():
                self._logger.log_checkpoint(self._checkpoint(event.record))

    def _checkpoint(self, record: CheckpointRecord) -> LoggedCheckpoint:
        metrics = unplain(msgspec.json.decode(record.metrics))
        return LoggedCheckpoint(record.seq, record.name, self._depot.address(record), record.num_bytes, metrics)

    def start(self) -> None:
        """What was reported before is read from the journal: this comes before the first event that is told."""
        if self._run is not None:
            told, self._run = self._run, None
            with self._calling():
                self._logger.log_start(told)

    def catch_up(self) -> None:
        """Of a run that has ended: log what was reported."""
        try:
            self.start()
        except (Exception, SystemExit):
            log.exception("%s raised and is dropped", self.name)
        self.close(failed=False)

    def _end(self, failed: bool) -> None:
        if self._run is None:
            for report in self._gathering.rest():
                self._logger.log_report(logged(report))
            self._logger.log_end(failed)


def logged(report: Report) -> LoggedReport:
    return LoggedReport(report.seq, report.attempt, report.at, report.metrics)


class TracingObserver(_Telling):
    """Tells one who is to know all."""

    def __init__(self, callback: TracingCallback, about: TrainRunContext, depot: Depot) -> None:
        super().__init__(callback)
        self._watcher = callback.watcher(about, depot.uri)

    def saw(self, event: Event, run: Run) -> None:
        with self._calling():
            self._watcher.saw(event, run)

    def _end(self, failed: bool) -> None:
        self._watcher.ended(failed)


class CallbackObserver(_Telling):
    """Tells one callback of reports and failures, and an older one also of the beginning and the end."""

    def __init__(self, callback: UserCallback | TrainingCallback, about: TrainRunContext, depot: Depot) -> None:
        super().__init__(callback)
        self._user = callback if isinstance(callback, UserCallback) else None
        self._older = callback if isinstance(callback, TrainingCallback) else None
        self._is_begun = False
        self._about = about
        self._depot = depot
        self._size = 0
        self._reports: dict[int, dict[int, Reported]] = {}
        self._announced: set[int] = set()
        """Reports with a checkpoint, for as long as they are not passed on; and what became of it."""
        self._committed: dict[int, CheckpointRecord] = {}
        self._refused: set[int] = set()
        self._attempt = 0
        self._failures: dict[int, BaseException] = {}

    def saw(self, event: Event, run: Run) -> None:
        with self._calling():
            self._tell(event, run)

    def _tell(self, event: Event, run: Run) -> None:
        if not self._is_begun:
            self._is_begun = True
            if self._older is not None:
                config = self._about.train_loop_config
                self._older.start_training(logdir=str(self._depot.layout.root), config=dict(config or {}))
        if run.attempt != self._attempt:
            self._attempt = run.attempt
            self._reports.clear()
            self._announced.clear()
            self._committed.clear()
            self._refused.clear()
        self._size = run.size
        if isinstance(event, Reported):
            self._reports.setdefault(event.seq, {})[event.rank] = event
            if event.checkpoint is not None:
                self._announced.add(event.seq)
            self._pass_on()
        elif isinstance(event, Committed):
            self._committed[event.record.seq] = event.record
            self._pass_on()
        elif isinstance(event, CommitFailed | StagingFailed):
            self._refused.add(event.seq)
            self._pass_on()
        elif isinstance(event, WorkerFailed):
            self._failures[event.rank] = exception_of(event.failure, event.pickled)
        elif isinstance(event, HangSuspected) and event.action != "warn":
            self._failures[event.failure.rank] = exception_of(event.failure, None)
        if self._failures and not isinstance(run.phase, Running | Stopping):
            failures, self._failures = self._failures, {}
            if self._user is not None:
                self._user.after_exception(self._about, failures)

    def _end(self, failed: bool) -> None:
        if self._older is not None and self._is_begun:
            self._older.finish_training(error=failed)

    def _pass_on(self) -> None:
        """In the order of reports, each once all ranks have made it and its checkpoint is committed or refused."""
        while self._reports:
            # The first is the least: no rank makes a report before the one that precedes it.
            seq, made = next(iter(self._reports.items()))
            if len(made) < self._size:
                return
            record = self._committed.get(seq)
            refused = seq in self._refused
            if seq in self._announced and record is None and not refused:
                return
            del self._reports[seq]
            self._announced.discard(seq)
            self._committed.pop(seq, None)
            self._refused.discard(seq)
            metrics = [own_metrics(made[rank]) for rank in range(self._size)]
            checkpoint = Checkpoint(*self._depot.place(record)) if record is not None and not refused else None
            if self._user is not None:
                self._user.after_report(replace(self._about, report_number=seq), metrics, checkpoint)
            if self._older is not None and not (made[0].checkpoint or "").startswith(SAVED):
                self._older.handle_result(metrics)


def observers_of(
    callbacks: Iterable[Callback], about: TrainRunContext, depot: Depot, *, continues: bool
) -> list[CallbackObserver | LoggerObserver | TracingObserver]:
    """Who tells the callbacks. A class may be of several kinds."""
    found: list[CallbackObserver | LoggerObserver | TracingObserver] = []
    for callback in callbacks:
        if isinstance(callback, UserCallback | TrainingCallback):
            found.append(CallbackObserver(callback, about, depot))
        if isinstance(callback, LoggerCallback):
            found.append(LoggerObserver(callback, about, depot, continues=continues))
        if isinstance(callback, TracingCallback):
            found.append(TracingObserver(callback, about, depot))
    return found


def exception_of(failure: Failure, pickled: bytes | None) -> BaseException:
    """The worker's own exception if it could be carried over, else one that says the same."""
    if pickled is not None:
        try:
            error = pickle.loads(pickled)  # noqa: S301  from our own worker's memory, not storage
        except Exception:  # noqa: BLE001  a class that this process cannot import; its text stands in
            error = None
        if isinstance(error, BaseException):
            error.add_note(failure.traceback)
            return error
    if failure.kind == "storage" and not failure.traceback:
        return StorageError(failure.message)
    kind, _, text = failure.message.partition(": ")
    stand_in = {"ReportMismatchError": ReportMismatchError, "StorageError": StorageError}.get(kind)
    return stand_in(text) if stand_in is not None else WorkerError(failure.message)


def training_error(depot: Depot, run: Run, collected: list[WorkerFailed], result: Any) -> WorkerGroupError:
    """The error of a run that failed: the cause first, the other ranks folded beneath it."""
    assert isinstance(run.phase, Finished)
    failures = run.phase.failures
    cause = first_failure(failures)
    pickled = {event.rank: event.pickled for event in collected}
    in_order = sorted(failures, key=lambda failure: failure is not cause)
    exceptions = {failure.rank: exception_of(failure, pickled.get(failure.rank)) for failure in in_order}
    error = WorkerGroupError(failure_text(depot, run, failures), exceptions, result)
    error.__cause__ = exceptions[cause.rank]
    return error


def failure_text(depot: Depot, run: Run, failures: tuple[Failure, ...]) -> str:
    cause = first_failure(failures)
    others = sorted({failure.rank for failure in failures} - {cause.rank})
    stopped = sorted(set(range(run.size)) - {cause.rank} - set(others))
    of = f" on attempt {run.attempt}"
    if run.num_failures:
        of = f" on attempt {run.num_failures + 1} of {run.max_failures + 1}" if run.max_failures > 0 else of
    reason = run.phase.reason if isinstance(run.phase, Finished) else ""
    limit = reason if "=" in reason else f"max_failures={run.max_failures}{'; ' + reason if reason else ''}"
    lines = [f"{len(others) + 1} of {run.size} workers failed{of} ({limit})", ""]
    at = ", ".join(
        part for part in (f"host {cause.host}" if cause.host else "", f"pid {cause.pid}" if cause.pid else "") if part
    )
    told = f"hang: {cause.message}" if cause.kind == "hang" else cause.message
    told, _, way_out = told.partition(_HINT)
    way_out = way_out or _hint_of(cause)
    lines.append(f"  rank {cause.rank}{', ' + at if at else ''}: {told}")
    lines += [f"    {frame}" for frame in cause.frames[-5:]]
    by_rank = {failure.rank: failure for failure in failures}
    lines += [f"  rank {rank}: {by_rank[rank].message}" for rank in others[:3]]
    if len(others) > 3:
        lines.append(f"  {_ranks(others[3:])}: failed too")
    if stopped:
        lines.append(f"  {_ranks(stopped)}: stopped after rank {cause.rank} failed")
    lines.append("")
    if run.latest is not None:
        lines.append(f"  last checkpoint: {depot.place(run.latest)[0]} (report {run.latest.seq})")
    else:
        lines.append("  no checkpoint was saved")
    lines.append(f"  log: {depot.layout.log(run.attempt, cause.rank)}")
    if cause.kind == "hang":
        lines.append(f"  all stacks: {depot.layout.stacks(run.attempt)}")
    lines.append("")
    if way_out:
        lines.append(f"hint: {way_out}")
    elif cause.kind == "mismatch":
        lines.append("hint: call report() equally often on every rank, with or without a checkpoint")
    elif run.latest is not None:
        lines.append(
            "hint: run the script again with the same RunConfig(storage_path=..., name=...) to continue from "
            f"report {run.latest.seq}; FailureConfig(max_failures=...) restarts workers by itself"
        )
    else:
        lines.append("hint: report(..., checkpoint=...) now and then, and a restart continues from there")
    return "\n".join(lines)


def _hint_of(failure: Failure) -> str:
    """What the exception itself says to do: its message is told by the first line alone."""
    _, found, hint = failure.traceback.rpartition(_HINT)
    # One of an exception that led to this one is about something else.
    return hint.split("\n\n")[0].strip() if found and "Traceback (most recent call last)" not in hint else ""


def _ranks(ranks: list[int]) -> str:
    if len(ranks) > 8:
        return f"{len(ranks)} other ranks"
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
