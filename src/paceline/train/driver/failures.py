"""Turn the events of a run into the error that `fit()` raises and into calls of the user's callbacks."""

from __future__ import annotations

import contextlib
import logging
import pickle
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from paceline._control import events
from paceline._control.extensions import Interrupts
from paceline._control.recovery import iter_reports_so_far
from paceline._control.report_aggregator import ReportAggregator, RunReport, own_metrics
from paceline._control.retry_policy import first_failure
from paceline._control.run import Finished, Run, Running, Stopping
from paceline._core.checkpoint_records import CheckpointRecord
from paceline._core.errors import (
    PreemptionError,
    ReportMismatchError,
    StorageError,
    TrainingInterrupt,
    WorkerError,
    WorkerGroupError,
)
from paceline._core.plain_values import decode_plain
from paceline._storage.run_layout import SAVED_PREFIX, RunLayout
from paceline._storage.run_store import RunStore
from paceline._view.formatting import format_count
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
from paceline.train.display.terminal import Terminal
from paceline.train.result import Result, build_result, finalize_metrics

log = logging.getLogger("paceline")
_HINT = "\n\nhint: "


class ResultCollector:
    """An observer that keeps what the `Result` needs and the journal does not contain."""

    def __init__(self, history: Iterable[events.Event], run: Run, reported: RunReport | None = None) -> None:
        self._aggregator = ReportAggregator()
        self._last_report = reported
        self.failures: list[events.WorkerFailed] = []
        self._rank_0_return: events.WorkerReturned | None = None
        self.drain_timed_out = False
        """Whether a preempted run had to be ended before all ranks had stopped at a report."""
        for event in history:
            if isinstance(event, events.WorkerReturned) and event.rank == 0 and run.is_trained:
                self._rank_0_return = event

    def on_event(self, event: events.Event, run: Run) -> None:
        if done := self._aggregator.add_event(event, run):
            self._last_report = done[-1]
        if isinstance(event, events.WorkerFailed):
            if self.failures and self.failures[0].attempt < event.attempt:
                self.failures.clear()
            self.failures.append(event)
        elif isinstance(event, events.WorkerReturned) and event.rank == 0:
            self._rank_0_return = event
        elif isinstance(event, events.DeadlinePassed) and run.preempted:
            self.drain_timed_out = True

    def tick(self, run: Run, now: float) -> None:
        """Do nothing: only events matter here."""

    @property
    def metrics(self) -> dict[str, Any] | None:
        if reports := self._aggregator.flush():
            self._last_report = reports[-1]
        return self._last_report.metrics if self._last_report is not None else None

    @property
    def return_value(self) -> Any:
        if self._rank_0_return is None:
            return None
        if self._rank_0_return.pickled is not None:
            return pickle.loads(self._rank_0_return.pickled)  # noqa: S301
        return decode_plain(self._rank_0_return.value)


class GuardedObserver:
    """Calls one callback of a run. It is not called again once it has raised."""

    def __init__(self, callback: object) -> None:
        self.name = f"the callback {type(callback).__name__}"
        self.is_synchronous = bool(getattr(callback, "is_synchronous", False))
        self._is_dropped = False

    def tick(self, run: Run, now: float) -> None:
        """Do nothing: only events matter here."""

    def on_event(self, event: events.Event, run: Run) -> None:
        with self._drop_on_error():
            self._handle_event(event, run)

    @contextlib.contextmanager
    def _drop_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._is_dropped = True
            raise

    def close(self, failed: bool) -> None:
        """Call this when the run, or this driver's part in it, has ended, whatever the outcome."""
        if self._is_dropped:
            return
        self._is_dropped = True
        try:
            self._finish(failed)
        except (Exception, SystemExit):
            log.exception("%s raised at the end of the run", self.name)

    def _handle_event(self, event: events.Event, run: Run) -> None:
        raise NotImplementedError

    def _finish(self, failed: bool) -> None:
        raise NotImplementedError


class LoggerObserver(GuardedObserver):
    """Passes every report of the run to one logger."""

    def __init__(
        self, logger: LoggerCallback, run_context: TrainRunContext, store: RunStore, *, continues: bool
    ) -> None:
        super().__init__(logger)
        self._logger = logger
        self._run_store = store
        self._aggregator = ReportAggregator()
        self._unstarted_run: LoggedRun | None = LoggedRun(
            run_context,
            store.layout.root,
            store.uri,
            continues,
            self._iter_past() if continues else iter(()),
        )
        self._worker: events.WorkerReady | None = None

    def _iter_past(self) -> Iterator[LoggedReport]:
        for report in iter_reports_so_far(self._run_store.layout, self._note_worker):
            yield to_logged_report(report, self._worker)

    def _note_worker(self, event: events.Event) -> None:
        if isinstance(event, events.WorkerReady) and event.rank == 0:
            self._worker = event

    def _handle_event(self, event: events.Event, run: Run) -> None:
        self._start()
        for report in self._aggregator.add_event(event, run):
            self._logger.log_report(to_logged_report(report, self._worker))
        self._note_worker(event)
        if isinstance(event, events.Committed):
            record, uri = event.record, self._run_store.checkpoint_uri(event.record)
            metrics = decode_plain(record.metrics)
            self._logger.log_checkpoint(LoggedCheckpoint(record.seq, record.name, uri, record.num_bytes, metrics))

    def _start(self) -> None:
        """Start the logger before it sees the first event, with the earlier reports from the journal."""
        if self._unstarted_run is not None:
            run, self._unstarted_run = self._unstarted_run, None
            self._logger.log_start(run)

    def catch_up(self) -> None:
        """Log the reports of a run that has already ended."""
        try:
            with self._drop_on_error():
                self._start()
        except (Exception, SystemExit):
            log.exception("%s raised and is dropped", self.name)
        self.close(failed=False)

    def _finish(self, failed: bool) -> None:
        if self._unstarted_run is None:
            for report in self._aggregator.flush():
                self._logger.log_report(to_logged_report(report, self._worker))
            self._logger.log_end(failed)


def to_logged_report(report: RunReport, worker: events.WorkerReady | None) -> LoggedReport:
    """`worker`: the last process of rank 0, which has made the report if it is of the same attempt."""
    is_its_own = worker is not None and worker.attempt == report.attempt
    return LoggedReport(report.seq, report.attempt, report.at, report.metrics, worker if is_its_own else None)


class TracingObserver(GuardedObserver):
    """Forwards every event to a tracing callback."""

    def __init__(self, callback: TracingCallback, run_context: TrainRunContext, store: RunStore) -> None:
        super().__init__(callback)
        self._tracer = callback.make_tracer(run_context, store.uri)

    def _handle_event(self, event: events.Event, run: Run) -> None:
        self._tracer.on_event(event, run)

    def _finish(self, failed: bool) -> None:
        self._tracer.on_end(failed)


class CallbackObserver(GuardedObserver):
    """Passes reports and failures to one callback, and the start and end of the run to an older one."""

    def __init__(
        self, callback: UserCallback | TrainingCallback, run_context: TrainRunContext, store: RunStore
    ) -> None:
        super().__init__(callback)
        self._user = callback if isinstance(callback, UserCallback) else None
        self._older = callback if isinstance(callback, TrainingCallback) else None
        self._has_started = False
        self._run_context = run_context
        self._run_store = store
        self._size = 0
        self._reports: dict[int, dict[int, events.Reported]] = {}
        self._checkpoints: dict[int, CheckpointRecord | None] = {}
        """By report: the committed checkpoint, or None if it could not be stored."""
        self._attempt = 0
        self._failures: dict[int, BaseException] = {}

    def _handle_event(self, event: events.Event, run: Run) -> None:
        if not self._has_started:
            self._has_started = True
            if self._older is not None:
                config = self._run_context.train_loop_config
                self._older.start_training(logdir=str(self._run_store.layout.root), config=dict(config or {}))
        if run.attempt != self._attempt:
            self._attempt = run.attempt
            self._reports.clear()
            self._checkpoints.clear()
        self._size = run.size
        match event:
            case events.Reported():
                self._reports.setdefault(event.seq, {})[event.rank] = event
            case events.Committed(record=record):
                self._checkpoints.setdefault(record.seq, record)
            case events.CommitFailed() | events.StagingFailed():
                self._checkpoints[event.seq] = None
            case events.WorkerFailed():
                self._failures[event.rank] = to_exception(event.failure, event.pickled)
            case events.HangSuspected(failure=failure, action="restart" | "fail"):
                self._failures[failure.rank] = to_exception(failure, None)
        self._deliver_ready_reports()
        if self._failures and not isinstance(run.phase, Running | Stopping):
            failures, self._failures = self._failures, {}
            if self._user is not None:
                self._user.after_exception(self._run_context, failures)

    def _finish(self, failed: bool) -> None:
        if self._older is not None and self._has_started:
            self._older.finish_training(error=failed)

    def _deliver_ready_reports(self) -> None:
        """Deliver reports in order, each once all ranks have made it and its checkpoint is committed or refused."""
        while self._reports:
            # The first key is the smallest: a rank makes its reports in order.
            seq, by_rank = next(iter(self._reports.items()))
            if len(by_rank) < self._size:
                return
            if seq not in self._checkpoints and any(each.checkpoint is not None for each in by_rank.values()):
                return
            del self._reports[seq]
            record = self._checkpoints.pop(seq, None)
            metrics = [own_metrics(by_rank[rank]) for rank in range(self._size)]
            checkpoint = Checkpoint(*self._run_store.locate_checkpoint(record)) if record is not None else None
            if self._user is not None:
                self._user.after_report(replace(self._run_context, report_number=seq), metrics, checkpoint)
            if self._older is not None and not (by_rank[0].checkpoint or "").startswith(SAVED_PREFIX):
                self._older.handle_result(metrics)


CallbackObservers = list[CallbackObserver | LoggerObserver | TracingObserver]


def make_observers(
    callbacks: Iterable[Callback], run_context: TrainRunContext, store: RunStore, *, continues: bool
) -> CallbackObservers:
    """Make the observers that call the callbacks. One class may be several kinds of callback."""
    observers: CallbackObservers = []
    for callback in callbacks:
        if isinstance(callback, UserCallback | TrainingCallback):
            observers.append(CallbackObserver(callback, run_context, store))
        if isinstance(callback, LoggerCallback):
            observers.append(LoggerObserver(callback, run_context, store, continues=continues))
        if isinstance(callback, TracingCallback):
            observers.append(TracingObserver(callback, run_context, store))
    return observers


def to_exception(failure: events.WorkerFailure, pickled: bytes | None) -> BaseException:
    """Return the worker's own exception if it can be unpickled, else a stand-in with the same text."""
    if pickled is not None:
        try:
            error = pickle.loads(pickled)  # noqa: S301
        except Exception:  # noqa: BLE001
            error = None
        if isinstance(error, BaseException):
            error.add_note(failure.traceback)
            return error
    if failure.kind == "storage" and not failure.traceback:
        return StorageError(failure.message)
    kind, _, text = failure.message.partition(": ")
    stand_in = {"ReportMismatchError": ReportMismatchError, "StorageError": StorageError}.get(kind)
    return stand_in(text) if stand_in is not None else WorkerError(failure.message)


def make_training_error(
    store: RunStore, run: Run, collected: list[events.WorkerFailed], result: Any
) -> WorkerGroupError:
    """Make the error of a failed run: the cause first, then the other ranks, folded."""
    assert isinstance(run.phase, Finished)
    failures = run.phase.failures
    cause = first_failure(failures)
    pickled = {event.rank: event.pickled for event in collected}
    in_order = sorted(failures, key=lambda failure: failure is not cause)
    exceptions = {failure.rank: to_exception(failure, pickled.get(failure.rank)) for failure in in_order}
    error = WorkerGroupError(format_failure(store, run, failures), exceptions, result)
    error.__cause__ = exceptions[cause.rank]
    return error


def format_failure(store: RunStore, run: Run, failures: tuple[events.WorkerFailure, ...]) -> str:
    cause = first_failure(failures)
    others = sorted({failure.rank for failure in failures} - {cause.rank})
    stopped = sorted(set(range(run.size)) - {cause.rank} - set(others))
    attempt = f" on attempt {run.attempt}"
    if run.num_failures:
        attempt = f" on attempt {run.num_failures + 1} of {run.max_failures + 1}" if run.max_failures > 0 else attempt
    reason = run.phase.reason if isinstance(run.phase, Finished) else ""
    limit = reason if "=" in reason else f"max_failures={run.max_failures}{'; ' + reason if reason else ''}"
    lines = [f"{len(others) + 1} of {run.size} workers failed{attempt} ({limit})", ""]
    process = (f", host {cause.host}" if cause.host else "") + (f", pid {cause.pid}" if cause.pid else "")
    message = f"hang: {cause.message}" if cause.kind == "hang" else cause.message
    message, _, hint = message.partition(_HINT)
    hint = hint or _find_hint(cause)
    lines.append(f"  rank {cause.rank}{process}: {message}")
    lines += [f"    {frame}" for frame in cause.frames[-5:]]
    by_rank = {failure.rank: failure for failure in failures}
    lines += [f"  rank {rank}: {by_rank[rank].message}" for rank in others[:3]]
    if len(others) > 3:
        lines.append(f"  {_format_ranks(others[3:])}: failed too")
    if stopped and cause.kind != "mismatch":
        lines.append(f"  {_format_ranks(stopped)}: stopped after rank {cause.rank} failed")
    lines.append("")
    if run.latest is not None:
        path, filesystem = store.locate_checkpoint(run.latest)
        place = path if filesystem is None else store.checkpoint_uri(run.latest)
        lines.append(f"  last checkpoint: {place} (report {run.latest.seq})")
    else:
        lines.append("  no checkpoint was saved")
    lines.append(f"  log: {store.layout.log(run.attempt, cause.rank)}")
    if cause.kind == "hang":
        lines.append(f"  all stacks: {store.layout.stacks(run.attempt)}")
    lines.append("")
    if hint:
        lines.append(f"hint: {hint}")
    elif cause.kind == "mismatch":
        lines.append("hint: all ranks must make the same report() and collective calls, in the same order")
    elif run.latest is not None:
        lines.append(
            "hint: run the script again with the same RunConfig(storage_path=..., name=...) to continue from "
            f"report {run.latest.seq}; FailureConfig(max_failures=...) restarts workers automatically"
        )
    elif cause.kind != "user" or cause.transient:  # Checkpoints are no help against an error in the code.
        lines.append("hint: report(..., checkpoint=...) regularly, so that a restart can continue from there")
    return "\n".join(lines).rstrip()


def _find_hint(failure: events.WorkerFailure) -> str:
    """Return the hint in the exception's text, because the error quotes only its first line."""
    _, separator, hint = failure.traceback.rpartition(_HINT)
    # A hint followed by another traceback belongs to an exception that led to this one.
    return hint.split("\n\n")[0].strip() if separator and "Traceback (most recent call last)" not in hint else ""


def _format_ranks(ranks: list[int]) -> str:
    if len(ranks) > 8:
        return f"{len(ranks)} other ranks"
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def conclude_run(
    store: RunStore,
    run: Run,
    collector: ResultCollector,
    terminal: Terminal,
    interrupts: Interrupts,
    on_stop: str,
    *,
    is_done: bool = False,
) -> Result:
    """Return the result of a run that has been driven, or raise the error that it ends with.

    `is_done`: it was stopped because `RunConfig(stop=...)` was reached.
    """
    assert isinstance(run.phase, Finished)
    layout = store.layout
    result = build_result(store, run, ())
    result.metrics = finalize_metrics(collector.metrics, run)
    result.return_value = collector.return_value
    if result.status == "failed":
        error = make_training_error(store, run, collector.failures, result)
        result.error = error
        raise error
    if result.status == "preempted" and interrupts.count < 2:
        result.error = PreemptionError(
            _format_preemption(layout, run), result, drain_timed_out=collector.drain_timed_out
        )
        terminal.say(str(result.error), error=True)
        raise result.error
    if interrupts.has_ctrl_c or (interrupts.count and result.status != "finished" and on_stop == "raise"):
        interrupt = TrainingInterrupt(format_interrupt(store, run, result.status), result)
        terminal.say(str(interrupt), error=True)
        raise interrupt
    if run.pending_validations and run.is_trained:
        validations = format_count(len(run.pending_validations), "validation")
        terminal.say(f"training has finished; run the script again with the same name for the remaining {validations}")
    elif run.phase.ending == "interrupted":
        then = "run the script again with the same name to continue"
        terminal.say(f"stopped after report {run.num_reports}; {'RunConfig(stop=...) is reached' if is_done else then}")
    else:
        terminal.say(f"run {layout.root.name} finished after {format_count(run.num_reports, 'report')}")
    return result


def format_interrupt(store: RunStore, run: Run, status: str) -> str:
    name, reports = store.layout.root.name, format_count(run.num_reports, "report")
    if status == "finished":
        return f"run {name} finished after {reports}, in {store.uri}"
    then = f"continue from {_format_latest(run)}"
    if run.is_trained:
        then = f"run the remaining {format_count(len(run.pending_validations), 'validation')}"
    return (
        f"run {name} was stopped after {reports}, in {store.uri}\n\n"
        f"hint: run the script again with the same RunConfig(storage_path=..., name=...) to {then}"
    )


def _format_latest(run: Run) -> str:
    return f"{run.latest.name} (report {run.latest.seq})" if run.latest is not None else "the beginning"


def _format_preemption(layout: RunLayout, run: Run) -> str:
    lost = run.num_reports - (run.latest.seq if run.latest is not None else 0)
    behind = f"; {format_count(lost, 'report')} after it will be repeated" if lost else ""
    return (
        f"run {layout.root.name} was preempted after {format_count(run.num_reports, 'report')}\n\n"
        "hint: run the script again with the same RunConfig(storage_path=..., name=...) "
        f"to continue from {_format_latest(run)}{behind}"
    )
