"""What a worker knows about its run, and how it reports: implements `paceline.train.report` and its siblings.

A report is one line of bytes: appended to this worker's own file, then pushed to the driver. It is numbered here, and
the name of its checkpoint follows from the number, so ranks need not agree on anything.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
from msgspec import Raw
from msgspec.structs import replace

from paceline._core import settings, system
from paceline._core.checkpoint_records import CheckpointRecord, StagedFiles, ValidationTask
from paceline._core.codec import seal_line
from paceline._core.cursor import Cursor
from paceline._core.errors import StorageError
from paceline._core.frames import call_site
from paceline._core.plain_values import to_plain, to_printable
from paceline._core.reductions import ReductionMark, split_reductions
from paceline._core.system import make_private_dirs
from paceline._core.time_accounting import CHECKPOINT, REPORT, TimeAccounting
from paceline._engine import messages
from paceline._engine.messages import Reported, WorkerInit, encode_message
from paceline._storage.commit import rank_checkpoints
from paceline._storage.files import LocalFiles, add_disk_details, write_retrying_full_disk
from paceline._storage.run_layout import RunLayout, checkpoint_name
from paceline._storage.run_store import DiskRunStore, RemoteRunStore, RunStore
from paceline._worker.link import DriverLink
from paceline._worker.signals import PREEMPTION_SIGNALS
from paceline._worker.upload import CheckpointSource, SaveSkippedError, Uploader

log = logging.getLogger("paceline")


class StopTraining(BaseException):
    """Raised from `report()` to end the user's function where all ranks agreed to stop.

    Not an `Exception`, so that a train function that catches those still ends.
    """


class WorkerContext:
    """One worker in one attempt."""

    def __init__(self, begin: WorkerInit, link: DriverLink) -> None:
        self.begin = begin
        self.layout = RunLayout(Path(begin.run_path))
        self.store = open_run_store(begin)
        self.uploader = Uploader(LocalFiles(), self.store, begin.attempt, begin.rank, begin.local_world_size)
        self.last_report_site = ""
        self.error: BaseException | None = None
        """The exception that ended the user's function, if any."""
        self.secondary_error: Exception | None = None
        """The last error that another rank caused: its staging failed, or a backend detected its exit."""
        self.num_oom_kills = system.num_oom_kills()
        """Before the user's function began."""
        self.num_reports = begin.first_seq
        self.started_at = time.monotonic()
        """When this worker, or the current task, began."""
        self.time_accounting = TimeAccounting()  # of the thread that creates this context
        self.config: Any = None
        """The argument of the user's function."""
        self.given_checkpoint: Any = None
        """A checkpoint from outside the run, for the current task."""
        self.shards: dict[str, Any] = {}
        """The dataset shards that this worker has requested, by name."""
        self.positions: dict[str, Callable[[], Cursor]] = {}
        """Returns the current cursor of each shard."""
        self.before_return: Callable[[], None] = lambda: None
        self.restart_modules: tuple[str, ...] = ()
        """What is preloaded for a restart once a worker has imported it."""
        """Called when the function has returned, before the driver is notified."""
        self._link = link
        # Protects the two below: both the user's thread and the upload thread write reports.
        self._writing = threading.Lock()
        self._file: int | None = None
        self._unwritten = bytearray()
        self._num_joined = 0
        # Protects all below, which the listening thread changes and the user's thread waits for.
        self._changed = threading.Condition()
        self._checkpoints = {record.seq: record for record in begin.checkpoints}
        self._latest = begin.resume
        self._refused: dict[int, messages.CheckpointRefused] = {}
        self._num_failed_saves = 0  # in a row
        self._announced: set[int] = set()
        self._released: dict[int, messages.Release] = {}
        self._held = False
        self._checks_for_preemption = False
        self._saves_on_stop = True
        """Whether the last report brought a checkpoint, or would have if it had been the last one."""
        self._num_checks = 0
        """How often the user's code has checked for preemption notices since the last report."""
        self._stop: messages.StopAt | None = None
        self._last_released = begin.first_seq
        """The last report that may return, if the worker blocks in `report()`."""
        self._save_requested = 0
        """The report that is to make a checkpoint before it returns."""
        self._has_sent_notice = False
        self._may_exit = False
        self._tasks: deque[messages.RunTask] = deque()
        self._last_task = 0

    def handle_message(self, message: messages.ToWorker) -> None:
        """Handle a message from the driver. Runs on the listening thread."""
        with self._changed:
            for seq in getattr(message, "removed", ()):
                self._checkpoints.pop(seq, None)
            match message:
                case messages.CheckpointCommitted(record=record, removed=removed):
                    if record.seq not in removed:
                        self._checkpoints[record.seq] = record
                    self._latest = record
                    self._num_failed_saves = 0
                    self._announced.discard(record.seq)
                case messages.CheckpointValidated(record=record) if record.seq in self._checkpoints:
                    self._checkpoints[record.seq] = record
                case messages.CheckpointRefused(seq=seq):
                    # If the report was made and nothing waits for it, this rank knows already or brought no files.
                    if seq in self._announced or seq > self.num_reports:
                        self._refused[seq] = message
                    self._announced.discard(seq)
                    self.uploader.cancel(seq)
                case messages.Hold():
                    self._held = True
                    ids = self.begin.attempt, self.begin.rank
                    held = messages.WorkerHeld(
                        *ids,
                        self.num_reports,
                        asks=self._checks_for_preemption,
                        num_checks=self._num_checks,
                        saves=self._saves_on_stop,
                    )
                    self._link.send(held)
                case messages.StopAt():
                    self._stop = message
                case messages.ReleaseReport(seq=seq, save=save) if self._stop is None:
                    self._save_requested = seq if save else 0
                    # Ignored after a stop: all ranks receive both in the same order, so they all stop at one report.
                    self._last_released = max(self._last_released, seq)
                case messages.Release(number=number):
                    self._released[number] = message
                case messages.RunTask(number=number) if number > self._last_task:
                    self._last_task = number
                    self._tasks.append(message)
                case messages.ExitWorker():
                    self._may_exit = True
            self._changed.notify_all()

    def handle_signal(self, signum: int) -> None:
        """Handle a signal. Runs on the listening thread, while the user's thread may be busy."""
        if signum in PREEMPTION_SIGNALS and not self._has_sent_notice:
            self._has_sent_notice = True
            grace_s = self.begin.preemption_grace_s
            grace_s = settings.load().preemption_grace_s if grace_s is None else grace_s
            self._link.send(messages.PreemptionNoticeReceived(self.begin.attempt, grace_s, (self.begin.rank,)))

    def preemption_notice(self) -> messages.PreemptionNotice | None:
        """The preemption notice, if any. All ranks see it from the same call on, in one of the last two steps."""
        with self._changed:
            self._checks_for_preemption = True
            # As for a report: the count that `Hold` got is the one we continue with.
            self._changed.wait_for(lambda: not self._held or self._stop is not None)
            self._num_checks += 1
            stop = self._stop
            if stop is None or (self.num_reports, self._num_checks) <= (stop.seq - 2, stop.num_checks):
                return None
            return stop.preemption

    def report(
        self,
        metrics: dict[str, object],
        source: CheckpointSource | None = None,
        *,
        name: str | None = None,
        wait: bool = True,
        on_stop: Callable[[], CheckpointSource] | None = None,
        validation: ValidationTask | None = None,
    ) -> None:
        """Record metrics, and stage a checkpoint: durable and committed on return if `wait`, else later.

        `on_stop` makes a checkpoint if there is none and the run stops at this report. A failed checkpoint, also one of
        an earlier report, raises after the report is made, so all ranks still have the same report number.
        """
        previous = self.time_accounting.switch_to(REPORT)
        try:
            reduce: tuple[ReductionMark, ...] = ()
            try:
                values = Raw(encode_message(to_plain(metrics, keep_types=True)))
            except TypeError:
                # Only now look for reductions: metrics without any pay nothing for it.
                metrics, reduce = split_reductions(metrics)
                if not reduce:
                    raise
                values = Raw(encode_message(to_plain(metrics, keep_types=True)))
            where = call_site()
            make_source = (lambda: source) if source is not None else on_stop
            seq, stop, saves = self._begin_report(source is not None, on_stop is not None)
            self.last_report_site = where
            ids = self.begin.attempt, self.begin.rank, seq
            checkpoint = (name or checkpoint_name(seq)) if saves else None
            task = validation if saves else None
            positions = self.positions
            data = tuple((name, position()) for name, position in positions.items()) if positions else ()
            payload = encode_message(Reported(*ids, values, time.time(), where, checkpoint, task, data, reduce))
            if checkpoint is not None:
                assert make_source is not None
                with self.time_accounting.at(CHECKPOINT):
                    self._save(seq, checkpoint, payload, make_source, wait, can_skip=not stop)
            else:
                self._record(payload)
            if stop:
                raise StopTraining
            is_asked = self.begin.waits_in_reports and self._wait_to_proceed(seq)
            if is_asked and checkpoint is None and on_stop is not None:
                with self.time_accounting.at(CHECKPOINT):
                    self._save(seq, checkpoint_name(seq), None, on_stop, wait)
            self._raise_refused()
        finally:
            self.time_accounting.switch_to(previous)

    def next_checkpoint_name(self) -> str:
        return checkpoint_name(self.num_reports + 1)

    def latest_checkpoint(self) -> CheckpointRecord | None:
        with self._changed:
            return self._latest

    def checkpoints(self, timeout_s: float | None = None, *, validated: bool = False) -> list[CheckpointRecord]:
        """Wait for the checkpoints that this worker announced, then return all committed and kept ones, worst to best.

        `validated`: also wait until no validation is pending.
        """
        with self.time_accounting.at(CHECKPOINT), self._changed:
            self._changed.wait_for(
                lambda: not self._announced and not (validated and self._validation_is_pending()), timeout_s
            )
            records = list(self._checkpoints.values())
        return rank_checkpoints(records, self.begin.score_attribute, self.begin.score_order)

    def _validation_is_pending(self) -> bool:
        # A driver without a validation function leaves the pending validations of an earlier one as they are.
        pending = (record.status == "PENDING_VALIDATION" for record in self._checkpoints.values())
        return self.begin.validates and any(pending)

    def join(self, data: bytes, call: str = "") -> bytes:
        """Wait for all ranks; return the data of rank 0. `call` is the function that the user called."""
        return self._wait_at_barrier(data, False, call).data

    def gather(self, data: bytes, call: str = "") -> tuple[bytes, ...]:
        """Wait for all ranks; return the data of each, by rank. For small data, such as addresses."""
        return self._wait_at_barrier(data, True, call).gathered

    def _wait_at_barrier(self, data: bytes, gathers: bool, call: str) -> messages.Release:
        self._num_joined += 1
        number, where = self._num_joined, call_site()
        self._link.send(messages.Joined(self.begin.attempt, self.begin.rank, number, where, data, gathers, call))
        with self._changed:
            self._changed.wait_for(lambda: number in self._released)
            return self._released.pop(number)

    def finish(self) -> None:
        """Wait until all uploads are staged and all checkpoints are committed or refused."""
        with self.time_accounting.at(CHECKPOINT):
            self.uploader.wait()
            with self._changed:
                self._changed.wait_for(lambda: not self._announced)
            self._raise_refused()

    def wait_for_task(self) -> messages.RunTask:
        """Wait for the next task; raise `StopTraining` if the run stops first."""
        with self._changed:
            self._changed.wait_for(lambda: self._tasks or self._stop is not None)
            if not self._tasks:
                raise StopTraining
            return self._tasks.popleft()

    def begin_task(
        self, *, since: int, first: int, checkpoint: Any, shards: tuple[messages.ShardSpec, ...], data_address: str
    ) -> None:
        """Begin a task: from `checkpoint`, or from the run's checkpoints after `since`.

        `first` is the highest report count of all ranks: this rank continues counting from there.
        """
        with self._changed:
            if self._latest is not None and self._latest.seq <= since:
                self._latest = None
            latest = self._latest
            self.num_reports = max(self.num_reports, first)
        initial = self.begin.initial if since < 0 else None
        self.begin = replace(self.begin, initial=initial, resume=latest, shards=shards, data_address=data_address)
        self.given_checkpoint = checkpoint
        self.started_at = time.monotonic()

    def end_task(self) -> None:
        """End a task and drop its state."""
        self.given_checkpoint = None
        self.shards.clear()
        self.positions.clear()

    def send_answer(self, task: messages.RunTask, value: bytes) -> None:
        """Send the result of a task: the user function's return value, pickled."""
        ids, where = (self.begin.attempt, self.begin.rank, task.number), self.last_report_site
        self._link.send(messages.TaskAnswered(*ids, self.num_reports, where, value))

    def wait_for_exit(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._may_exit)

    def _begin_report(self, saves: bool, saves_on_stop: bool) -> tuple[int, bool, bool]:
        """Return the number of this report, whether it is the last, and whether it makes a checkpoint."""
        with self._changed:
            # No `Hold` can arrive between these lines, so the count it gets is the one we continue with. Nor can a
            # refusal: it either finds the checkpoint announced, or came before.
            if self._held:
                self._changed.wait_for(lambda: not self._held or self._stop is not None)
            self.num_reports += 1
            self._saves_on_stop = saves or saves_on_stop
            self._num_checks = 0
            seq = self.num_reports
            stops = self._stop is not None and seq >= self._stop.seq
            if self._stop is not None and stops:
                saves = self._stop.save and (saves or saves_on_stop)
            if not saves:
                if self._refused:
                    self._refused.pop(seq, None)
            elif seq not in self._refused:
                self._announced.add(seq)
            return seq, stops, saves

    def _wait_to_proceed(self, seq: int) -> bool:
        """Wait until this report may return; whether it is to make a checkpoint first."""
        with self._changed:
            self._changed.wait_for(lambda: self._last_released >= seq or self._stop is not None)
            if self._last_released < seq and self._stop is not None and self._stop.seq <= seq + 1:
                raise StopTraining
            return self._save_requested == seq

    def _save(
        self,
        seq: int,
        name: str,
        payload: bytes | None,
        make: Callable[[], CheckpointSource],
        wait: bool,
        *,
        can_skip: bool = False,
    ) -> None:
        """Make a report with a checkpoint. Send any failure to the driver, because other ranks wait.

        `payload` is None if the report was made before without a checkpoint.
        """
        late = name if payload is None else None
        try:
            if payload is not None:
                self._record(payload)
            else:
                with self._changed:
                    self._announced.add(seq)
            if seq not in self._announced:
                return  # Already refused: staging the files would be pointless.
            if wait:
                self._report_staged(seq, self.uploader.upload(seq, name, make()), late)
            else:
                self.uploader.upload_later(
                    seq,
                    name,
                    make(),
                    lambda outcome: self._on_upload_done(seq, outcome, late),
                    can_skip=can_skip and self.begin.skips_saves,
                )
        except Exception as error:
            with self._changed:
                self._announced.discard(seq)
                self._refused.pop(seq, None)
            self._report_staging_failure(seq, error)
            if isinstance(error, SaveSkippedError):
                return
            if not isinstance(error, OSError):
                raise
            failed = self._count_failed_saves(f"report {seq}: cannot stage the checkpoint: {error}", 1)
            if failed is not None:
                raise failed from error
            return
        if wait:
            with self._changed:
                self._changed.wait_for(lambda: seq not in self._announced)

    def _record(self, payload: bytes) -> None:
        """Write a line to this worker's own file and send it to the driver, which gets it even if the disk is full."""
        try:
            with self._writing:
                self._unwritten += seal_line(payload)
                if self._file is None:
                    self._file = self._open_reports()
                # Drop only what was written: a line cut short by a full disk is continued, not followed by another.
                while self._unwritten:
                    del self._unwritten[: write_retrying_full_disk(self._file, self._unwritten)]
        except OSError as error:
            path = self.layout.reports(self.begin.attempt, self.begin.rank)
            details = add_disk_details(error, path, len(self._unwritten))
            raise StorageError(f"cannot write a report: {details}") from error
        finally:
            self._link.send_payload(payload)

    def _open_reports(self) -> int:
        path = self.layout.reports(self.begin.attempt, self.begin.rank)
        make_private_dirs(path.parent)
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def _report_staged(self, seq: int, staged: StagedFiles, late: str | None) -> None:
        try:
            self._record(encode_message(messages.CheckpointStaged(self.begin.attempt, seq, staged, late)))
        except StorageError as error:
            # The files are durable and the driver knows: only a later driver would need the line.
            log.warning("report %d: %s", seq, error)

    def _on_upload_done(self, seq: int, outcome: StagedFiles | Exception, late: str | None) -> None:
        """Runs on the upload thread. Sends a failure to the driver at once, because it affects every rank."""
        if isinstance(outcome, StagedFiles):
            self._report_staged(seq, outcome, late)
        else:
            self._report_staging_failure(seq, outcome)

    def _report_staging_failure(self, seq: int, error: Exception) -> None:
        text = to_printable(str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}")
        is_skipped = isinstance(error, SaveSkippedError)
        if is_skipped:
            text = "earlier ones were still being written"
        self._link.send(messages.StagingFailed(self.begin.attempt, self.begin.rank, seq, text, is_skipped))

    def _raise_refused(self) -> None:
        """Raise an error for checkpoints that could not be committed, including those of earlier ASYNC reports."""
        if not self._refused:
            return
        with self._changed:
            refused = [self._refused.pop(seq) for seq in sorted(self._refused) if seq <= self.num_reports]
        if not refused:
            return
        for message in refused:
            self.uploader.discard(message.seq)
        refused = [message for message in refused if not message.is_skipped]
        if not refused:
            return
        error = self._count_failed_saves("; ".join(map(self._format_refusal, refused)), len(refused))
        if error is None:
            return
        if all(message.rank not in (None, self.begin.rank) for message in refused):
            self.secondary_error = error
        raise error

    def _count_failed_saves(self, text: str, number: int) -> StorageError | None:
        """Return the error to raise for failed saves. Up to `max_failed_saves` in a row, log it and return None."""
        with self._changed:
            self._num_failed_saves += number
            num_failed, latest = self._num_failed_saves, self._latest
        limit = self.begin.max_failed_saves
        if limit is None or num_failed <= limit:
            last = f"training continues with {latest.name}" if latest is not None else "there is no checkpoint yet"
            log.error("%s\n  %d in a row (max_failed_saves=%s); %s", text, num_failed, limit, last)
            return None
        return StorageError(text if limit == 0 else f"{num_failed} saves in a row, max_failed_saves={limit}: {text}")

    def _format_refusal(self, message: messages.CheckpointRefused) -> str:
        if message.rank is None:
            return f"report {message.seq}: cannot commit the checkpoint: {message.error}"
        rank = "this rank" if message.rank == self.begin.rank else f"rank {message.rank}"
        return f"report {message.seq}: {rank} cannot stage the checkpoint: {message.error}"


def open_run_store(begin: WorkerInit) -> RunStore:
    """Open the store that the driver named."""
    layout = RunLayout(Path(begin.run_path))
    if begin.store is None:
        return DiskRunStore(LocalFiles(), layout)
    from paceline._storage.address import open_store_at

    filesystem = cloudpickle.loads(begin.filesystem) if begin.filesystem is not None else None
    return RemoteRunStore(open_store_at(begin.store, filesystem), layout)


_current: WorkerContext | None = None
_outer_contexts: list[WorkerContext | None] = []
"""A worker may itself have a run in its own process, with `num_workers=0`."""


def current() -> WorkerContext | None:
    """The worker context of this process, if it is a worker."""
    return _current


def push_context(context: WorkerContext) -> None:
    global _current
    _outer_contexts.append(_current)
    _current = context


def pop_context() -> None:
    global _current
    # A validation leaves its context before its worker does.
    _current = _outer_contexts.pop() if _outer_contexts else None
