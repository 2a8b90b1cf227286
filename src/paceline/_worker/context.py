"""What a worker knows of its run, and how it reports: the inside of `paceline.train.report` and its siblings.

A report is one line of bytes: appended to this worker's own file, then pushed to the driver. Its number is counted
here, and the name of its checkpoint follows from the number, so ranks need not agree on anything.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import CodeType

import cloudpickle
from msgspec import Raw

from paceline._core import settings
from paceline._core.codec import sealed
from paceline._core.errors import StorageError
from paceline._core.plain import plain
from paceline._engine.messages import (
    Begin,
    CheckpointCommitted,
    CheckpointRecord,
    CheckpointRefused,
    CheckpointStaged,
    Exit,
    Failure,
    Hold,
    Joined,
    Notice,
    PreemptionTold,
    Release,
    Reported,
    Staged,
    StopAt,
    ToWorker,
    WorkerFailed,
    WorkerHeld,
    encode,
)
from paceline._storage.depot import Depot, DiskDepot, StoreDepot
from paceline._storage.files import LocalFiles
from paceline._storage.layout import Layout, checkpoint_name
from paceline._storage.retention import ranked
from paceline._storage.retrying import Patience
from paceline._worker.link import Link
from paceline._worker.signals import NOTICES
from paceline._worker.upload import Source, Uploader

_PACKAGE = str(Path(__file__).parent.parent) + os.sep


class StopTraining(BaseException):
    """Raised out of `report()` to end the user's function where all ranks agreed to stop.

    Not an `Exception`, so that a train function that catches those still ends.
    """


class Context:
    """One worker in one attempt."""

    def __init__(self, begin: Begin, link: Link) -> None:
        self.begin = begin
        self.layout = Layout(Path(begin.run_path))
        self.depot = depot_of(begin)
        self.uploader = Uploader(LocalFiles(), self.depot, begin.attempt, begin.rank)
        self.last_where = ""
        self.error: BaseException | None = None
        """What ended the user's function, if it did not return."""
        self.num_reports = begin.first_seq
        self._link = link
        self._file: int | None = None
        self._num_joined = 0
        # Protects all below, which the listening thread changes and the user's thread waits for.
        self._changed = threading.Condition()
        self._checkpoints = {record.seq: record for record in begin.checkpoints}
        self._latest = begin.resume
        self._refused: dict[int, str] = {}
        self._announced: set[int] = set()
        self._released: dict[int, bytes] = {}
        self._held = False
        self._asks = False
        self._stop: StopAt | None = None
        self._notified = False
        self._may_exit = False

    def take(self, message: ToWorker) -> None:
        """Take in what the driver says. On the listening thread."""
        with self._changed:
            match message:
                case CheckpointCommitted(record=record, removed=removed):
                    for seq in removed:
                        self._checkpoints.pop(seq, None)
                    if record.seq not in removed:
                        self._checkpoints[record.seq] = record
                    self._latest = record
                    self._announced.discard(record.seq)
                case CheckpointRefused(seq=seq, error=error):
                    self._refused[seq] = error
                    self._announced.discard(seq)
                case Hold():
                    self._held = True
                    begin = self.begin
                    self._link.send(WorkerHeld(begin.attempt, begin.rank, self.num_reports, self._asks))
                case StopAt():
                    self._stop = message
                case Release(number=number, data=data):
                    self._released[number] = data
                case Exit():
                    self._may_exit = True
            self._changed.notify_all()

    def signalled(self, signum: int) -> None:
        """A signal has come. On the listening thread, while the user's may be busy."""
        if signum in NOTICES and not self._notified:
            self._notified = True
            begin = self.begin
            grace_s = settings.load().preemption_grace_s
            self._link.send(PreemptionTold(begin.attempt, grace_s, (begin.rank,)))

    def notice(self) -> Notice | None:
        """What is known of a preemption: the same on all ranks, in the step before the last report and from then on."""
        with self._changed:
            self._asks = True
            stop = self._stop
            return stop.preemption if stop is not None and self.num_reports >= stop.seq - 1 else None

    def report(
        self,
        metrics: dict[str, object],
        source: Source | None = None,
        *,
        name: str | None = None,
        wait: bool = True,
        on_stop: Callable[[], Source] | None = None,
    ) -> None:
        """Record metrics, and stage a checkpoint: durable and committed on return if `wait`, else later.

        `on_stop` makes a checkpoint where there is none and the run stops at this report.
        """
        self._raise_refused()
        values = Raw(encode(plain(metrics)))
        where = self.call_site()
        self._count()
        seq = self.num_reports
        stop = self._stop if self._stop is not None and seq >= self._stop.seq else None
        if stop is not None:
            if not stop.save:
                source = None
            elif source is None and on_stop is not None:
                source = on_stop()
        self.last_where = where
        begin = self.begin
        named = (name or checkpoint_name(seq)) if source is not None else None
        self._record(encode(Reported(begin.attempt, begin.rank, seq, values, time.time(), where, named)))
        if source is not None:
            with self._changed:
                self._announced.add(seq)
            assert named is not None
            if wait:
                self._stage_now(seq, named, source)
                self._wait_committed(seq)
            else:
                self.uploader.upload_later(seq, named, source, lambda outcome: self._staged_later(seq, outcome))
        if stop is not None:
            raise StopTraining

    def next_checkpoint_name(self) -> str:
        return checkpoint_name(self.num_reports + 1)

    def latest_checkpoint(self) -> CheckpointRecord | None:
        with self._changed:
            return self._latest

    def checkpoints(self, timeout_s: float | None = None) -> list[CheckpointRecord]:
        """All that are committed and kept, once those that this worker announced are; worst to best."""
        with self._changed:
            self._changed.wait_for(lambda: not self._announced, timeout_s)
            records = list(self._checkpoints.values())
        return ranked(records, self.begin.score_attribute, self.begin.score_order)

    def join(self, data: bytes) -> bytes:
        """Wait for all ranks; returns what rank 0 brought."""
        self._num_joined += 1
        number, where = self._num_joined, self.call_site()
        self._link.send(Joined(self.begin.attempt, self.begin.rank, number, where, data))
        with self._changed:
            self._changed.wait_for(lambda: number in self._released)
            return self._released.pop(number)

    def finish(self) -> None:
        """See all that is still under way to its end: uploads staged, checkpoints committed or refused."""
        self.uploader.wait()
        with self._changed:
            self._changed.wait_for(lambda: not self._announced)
        self._raise_refused()

    def wait_for_exit(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._may_exit)

    def call_site(self) -> str:
        """Where in the user's code we are: the innermost frame that is not ours, as `train.py:41`."""
        frame = sys._getframe(1)
        while frame.f_code.co_filename.startswith(_PACKAGE) and frame.f_back is not None:
            frame = frame.f_back
        return f"{_short(frame.f_code)}:{frame.f_lineno}"

    def _count(self) -> None:
        with self._changed:
            # Between these two lines no `Hold` can come: the count it is told is the count we go on with.
            self._changed.wait_for(lambda: not self._held or self._stop is not None)
            self.num_reports += 1

    def _record(self, payload: bytes) -> None:
        if self._file is None:
            path = self.layout.reports(self.begin.attempt, self.begin.rank)
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        line = sealed(payload)
        if os.write(self._file, line) != len(line):
            raise StorageError(f"{self.layout.reports(self.begin.attempt, self.begin.rank)} took half a line")
        self._link.send_payload(payload)

    def _stage_now(self, seq: int, name: str, source: Source) -> None:
        try:
            staged = self.uploader.upload(seq, name, source)
        except OSError as error:
            with self._changed:
                self._announced.discard(seq)
            raise StorageError(f"report {seq}: the checkpoint could not be staged: {error}") from error
        self._record(encode(CheckpointStaged(self.begin.attempt, seq, staged)))

    def _staged_later(self, seq: int, outcome: Staged | Exception) -> None:
        """On the upload thread. A failure goes to the driver at once: it concerns every rank."""
        begin = self.begin
        if isinstance(outcome, Staged):
            self._record(encode(CheckpointStaged(begin.attempt, seq, outcome)))
            return
        message = f"the checkpoint of report {seq} could not be staged: {outcome}"
        failure = Failure(begin.rank, "storage", message, at=time.time(), pid=os.getpid())
        self._link.send(WorkerFailed(begin.attempt, begin.rank, failure))

    def _wait_committed(self, seq: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: seq not in self._announced)
        self._raise_refused()

    def _raise_refused(self) -> None:
        """Raise what became of a checkpoint that could not be committed; of one reported with ASYNC, now."""
        with self._changed:
            refused, self._refused = self._refused, {}
        for seq, error in refused.items():
            raise StorageError(f"report {seq}: the checkpoint could not be committed: {error}")


def depot_of(begin: Begin) -> Depot:
    """Where the run's checkpoints are kept, as the driver said."""
    layout = Layout(Path(begin.run_path))
    if begin.store is None:
        return DiskDepot(LocalFiles(), layout)
    from paceline._storage.address import store_at

    filesystem = cloudpickle.loads(begin.filesystem) if begin.filesystem is not None else None
    patience = Patience(no_progress_s=settings.load().storage_patience_s)
    return StoreDepot(store_at(begin.store, filesystem, patience), layout)


_shortened: dict[CodeType, str] = {}


def _short(code: CodeType) -> str:
    short = _shortened.get(code)
    if short is None:
        short = _shortened[code] = shown_path(code.co_filename)
    return short


def shown_path(filename: str) -> str:
    """A source file as a person in this directory would name it."""
    path = filename if filename.startswith("<") else os.path.relpath(filename)
    return filename if path.startswith("..") else path


_current: Context | None = None


def current() -> Context | None:
    """The worker that this process is, if it is one."""
    return _current


def enter(context: Context) -> None:
    global _current
    _current = context


def leave() -> None:
    global _current
    _current = None
