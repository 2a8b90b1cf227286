"""What a worker knows of its run, and how it reports: the inside of `paceline.train.report` and its siblings.

A report is one line of bytes: appended to this worker's own file, then pushed to the driver. Its number is counted
here, and the name of its checkpoint follows from the number, so ranks need not agree on anything.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

import cloudpickle
from msgspec import Raw
from msgspec.structs import replace

from paceline._core import settings
from paceline._core.codec import sealed
from paceline._core.cursor import Cursor
from paceline._core.errors import StorageError
from paceline._core.frames import shown_path
from paceline._core.plain import plain, printable
from paceline._core.reductions import Mark, apart
from paceline._core.spending import CHECKPOINT, REPORT, Spending
from paceline._core.system import make_private_dirs
from paceline._engine.messages import (
    Answered,
    Begin,
    CheckpointCommitted,
    CheckpointRecord,
    CheckpointRefused,
    CheckpointsRemoved,
    CheckpointStaged,
    CheckpointValidated,
    Exit,
    Hold,
    Joined,
    Notice,
    Order,
    PreemptionTold,
    Proceed,
    Release,
    Reported,
    Shard,
    Staged,
    StagingFailed,
    StopAt,
    ToWorker,
    ValidationTask,
    WorkerHeld,
    encode,
)
from paceline._storage.depot import Depot, DiskDepot, StoreDepot
from paceline._storage.files import LocalFiles, with_room, write_some
from paceline._storage.layout import Layout, checkpoint_name
from paceline._storage.retention import ranked
from paceline._storage.retrying import Patience
from paceline._worker.link import Link
from paceline._worker.signals import NOTICES
from paceline._worker.upload import Source, Uploader

_PACKAGE = str(Path(__file__).parent.parent) + os.sep

log = logging.getLogger("paceline")


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
        self.echo: Exception | None = None
        """The last error that another rank was the reason for: its files, or, as a backend found, its end."""
        self.num_reports = begin.first_seq
        self.began = time.monotonic()
        """When this worker, or the order at hand, began."""
        self.spending = Spending()
        """Where the time of the thread that makes this goes."""
        self.config: Any = None
        """What the user's function is called with."""
        self.given: Any = None
        """A checkpoint from outside the run, for the order at hand."""
        self.shards: dict[str, Any] = {}
        """Of the datasets of the run, the parts that this worker has taken."""
        self.positions: dict[str, Callable[[], Cursor]] = {}
        """Where each of them stands."""
        self.at_the_end: Callable[[], None] = lambda: None
        """To be called when the function has returned, before that is said."""
        self._link = link
        # Protects the two below: reports are written by the user's thread and by the one that uploads.
        self._writing = threading.Lock()
        self._file: int | None = None
        self._unwritten = bytearray()
        self._num_joined = 0
        # Protects all below, which the listening thread changes and the user's thread waits for.
        self._changed = threading.Condition()
        self._checkpoints = {record.seq: record for record in begin.checkpoints}
        self._latest = begin.resume
        self._refused: dict[int, CheckpointRefused] = {}
        self._num_failed_saves = 0
        """In a row."""
        self._announced: set[int] = set()
        self._released: dict[int, Release] = {}
        self._held = False
        self._asks = False
        self._stop: StopAt | None = None
        self._passed = begin.first_seq
        """The last report that may return, of a worker that waits in them."""
        self._notified = False
        self._may_exit = False
        self._orders: deque[Order] = deque()
        self._num_ordered = 0

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
                    self._num_failed_saves = 0
                    self._announced.discard(record.seq)
                case CheckpointValidated(record=record, removed=removed):
                    if record.seq in self._checkpoints:
                        self._checkpoints[record.seq] = record
                    for seq in removed:
                        self._checkpoints.pop(seq, None)
                case CheckpointsRemoved(removed=removed):
                    for seq in removed:
                        self._checkpoints.pop(seq, None)
                case CheckpointRefused(seq=seq):
                    # Of one that was made and is not waited for, this rank knows already or brought no files.
                    if seq in self._announced or seq > self.num_reports:
                        self._refused[seq] = message
                    self._announced.discard(seq)
                case Hold():
                    self._held = True
                    begin = self.begin
                    self._link.send(WorkerHeld(begin.attempt, begin.rank, self.num_reports, self._asks))
                case StopAt():
                    self._stop = message
                case Proceed(seq=seq) if self._stop is None:
                    # None counts after a stop: so all ranks, which hear both in the same order, leave at one report.
                    self._passed = max(self._passed, seq)
                case Release(number=number):
                    self._released[number] = message
                case Order(number=number) if number > self._num_ordered:
                    self._num_ordered = number
                    self._orders.append(message)
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
        validation: ValidationTask | None = None,
    ) -> None:
        """Record metrics, and stage a checkpoint: durable and committed on return if `wait`, else later.

        `on_stop` makes a checkpoint where there is none and the run stops at this report. A checkpoint that fails is
        raised here, of an earlier report too. The report itself is made in any case: ranks that go on after such an
        error are still at the same number.
        """
        was = self.spending.turn(REPORT)
        try:
            reduce: tuple[Mark, ...] = ()
            try:
                values = Raw(encode(plain(metrics)))
            except TypeError:
                # Only now is it looked for what is reduced: those who reduce nothing pay nothing for it.
                metrics, reduce = apart(metrics)
                if not reduce:
                    raise
                values = Raw(encode(plain(metrics)))
            where = self.call_site()
            made = (lambda: source) if source is not None else on_stop
            seq, stop, saves = self._count(source is not None, on_stop is not None)
            self.last_where = where
            begin = self.begin
            named = (name or checkpoint_name(seq)) if saves else None
            task = validation if saves else None
            data = tuple((name, position()) for name, position in self.positions.items())
            payload = encode(
                Reported(begin.attempt, begin.rank, seq, values, time.time(), where, named, task, data, reduce)
            )
            if saves:
                assert made is not None
                assert named is not None
                with self.spending.at(CHECKPOINT):
                    self._save(seq, named, payload, made, wait)
            else:
                self._record(payload)
            if stop:
                raise StopTraining
            if begin.waits_in_reports:
                self._wait_to_proceed(seq)
            self._raise_refused()
        finally:
            self.spending.turn(was)

    def made_scratch(self) -> str:
        """A new directory for what is made on the way to something else; it goes with the attempt."""
        directory = self.layout.scratch(self.begin.attempt, self.begin.rank)
        make_private_dirs(directory)
        return tempfile.mkdtemp(dir=directory)

    def next_checkpoint_name(self) -> str:
        return checkpoint_name(self.num_reports + 1)

    def latest_checkpoint(self) -> CheckpointRecord | None:
        with self._changed:
            return self._latest

    def checkpoints(self, timeout_s: float | None = None, *, validated: bool = False) -> list[CheckpointRecord]:
        """All that are committed and kept, once those that this worker announced are; worst to best.

        `validated`: also once no validation is pending. (Only what all ranks have reported is committed, so there is
        none but of this worker's own reports.)
        """
        with self.spending.at(CHECKPOINT), self._changed:
            self._changed.wait_for(
                lambda: not self._announced and not (validated and self._validation_is_pending()), timeout_s
            )
            records = list(self._checkpoints.values())
        return ranked(records, self.begin.score_attribute, self.begin.score_order)

    def _validation_is_pending(self) -> bool:
        # A driver that was not told how to validate leaves those of an earlier one as they are.
        pending = (record.status == "PENDING_VALIDATION" for record in self._checkpoints.values())
        return self.begin.validates and any(pending)

    def join(self, data: bytes) -> bytes:
        """Wait for all ranks; returns what rank 0 brought."""
        return self._meet(data, gathers=False).data

    def gather(self, data: bytes) -> tuple[bytes, ...]:
        """Wait for all ranks; returns what each of them brought, by rank. For addresses and the like: it is little."""
        return self._meet(data, gathers=True).gathered

    def _meet(self, data: bytes, gathers: bool) -> Release:
        self._num_joined += 1
        number, where = self._num_joined, self.call_site()
        self._link.send(Joined(self.begin.attempt, self.begin.rank, number, where, data, gathers))
        with self._changed:
            self._changed.wait_for(lambda: number in self._released)
            return self._released.pop(number)

    def finish(self) -> None:
        """See all that is still under way to its end: uploads staged, checkpoints committed or refused."""
        with self.spending.at(CHECKPOINT):
            self.uploader.wait()
            with self._changed:
                self._changed.wait_for(lambda: not self._announced)
            self._raise_refused()

    def next_order(self) -> Order:
        """What to do next, waited for; `StopTraining` where the run is to stop before that comes."""
        with self._changed:
            self._changed.wait_for(lambda: self._orders or self._stop is not None)
            if not self._orders:
                raise StopTraining
            return self._orders.popleft()

    def take_up(self, *, since: int, first: int, given: Any, shards: tuple[Shard, ...], data_address: str) -> None:
        """Begin an order: from `given`, or from what the run's checkpoints later than `since` hold.

        `first` is how many reports the rank had made that had made most: here they are counted from there on.
        """
        with self._changed:
            if self._latest is not None and self._latest.seq <= since:
                self._latest = None
            latest = self._latest
            self.num_reports = max(self.num_reports, first)
        initial = self.begin.initial if since < 0 else None
        self.begin = replace(self.begin, initial=initial, resume=latest, shards=shards, data_address=data_address)
        self.given = given
        self.began = time.monotonic()

    def put_down(self) -> None:
        """An order is done: what was made for it goes."""
        self.given = None
        self.shards.clear()
        self.positions.clear()

    def answer(self, order: Order, value: bytes) -> None:
        """Say that an order is done, with what the user's function returned, as a pickle."""
        begin = self.begin
        where, made = self.last_where, self.num_reports
        self._link.send(Answered(begin.attempt, begin.rank, order.number, made, where, value))

    def wait_for_exit(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._may_exit)

    def call_site(self) -> str:
        """Where in the user's code we are: the innermost frame that is not ours, as `train.py:41`."""
        frame = sys._getframe(1)
        while frame.f_code.co_filename.startswith(_PACKAGE) and frame.f_back is not None:
            frame = frame.f_back
        return f"{_short(frame.f_code)}:{frame.f_lineno}"

    def _count(self, saves: bool, saves_on_stop: bool) -> tuple[int, bool, bool]:
        """The number of this report, whether it is the last, and whether a checkpoint is to be made of it."""
        with self._changed:
            # Between these lines no `Hold` can come: the count it is told is the count we go on with. Nor a refusal:
            # it either finds the checkpoint announced, or was here before.
            self._changed.wait_for(lambda: not self._held or self._stop is not None)
            self.num_reports += 1
            seq = self.num_reports
            stops = self._stop is not None and seq >= self._stop.seq
            if self._stop is not None and stops:
                saves = self._stop.save and (saves or saves_on_stop)
            if not saves:
                self._refused.pop(seq, None)
            elif seq not in self._refused:
                self._announced.add(seq)
            return seq, stops, saves

    def _wait_to_proceed(self, seq: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._passed >= seq or self._stop is not None)
            if self._passed < seq and self._stop is not None and self._stop.seq <= seq + 1:
                raise StopTraining

    def _save(self, seq: int, name: str, payload: bytes, made: Callable[[], Source], wait: bool) -> None:
        """Make a report with a checkpoint. Whatever goes wrong here is told to the driver: other ranks wait for it."""
        try:
            self._record(payload)
            if seq not in self._announced:
                return  # Refused before we came to it: the files would be in vain.
            if wait:
                self._told_staged(seq, self.uploader.upload(seq, name, made()))
            else:
                self.uploader.upload_later(seq, name, made(), lambda outcome: self._staged_later(seq, outcome))
        except Exception as error:
            with self._changed:
                self._announced.discard(seq)
                self._refused.pop(seq, None)
            self._told_unstaged(seq, error)
            if not isinstance(error, OSError):
                raise
            failed = self._too_many_failed(f"report {seq}: the checkpoint could not be staged: {error}", 1)
            if failed is not None:
                raise failed from error
            return
        if wait:
            with self._changed:
                self._changed.wait_for(lambda: seq not in self._announced)

    def _record(self, payload: bytes) -> None:
        """Write a line to this worker's own file and tell the driver, who hears of it also when the disk is full."""
        path = self.layout.reports(self.begin.attempt, self.begin.rank)
        try:
            with self._writing:
                self._unwritten += sealed(payload)
                if self._file is None:
                    make_private_dirs(path.parent)
                    self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
                # Only what was written is let go: a line cut by a full disk is continued, not followed by another.
                while self._unwritten:
                    del self._unwritten[: write_some(self._file, self._unwritten)]
        except OSError as error:
            told = with_room(error, path, len(self._unwritten))
            raise StorageError(f"a report could not be written down: {told}") from error
        finally:
            self._link.send_payload(payload)

    def _told_staged(self, seq: int, staged: Staged) -> None:
        try:
            self._record(encode(CheckpointStaged(self.begin.attempt, seq, staged)))
        except StorageError as error:
            # The files are durable and the driver knows: the line is for a driver that comes after this one only.
            log.warning("report %d: %s", seq, error)

    def _staged_later(self, seq: int, outcome: Staged | Exception) -> None:
        """On the upload thread. A failure goes to the driver at once: it concerns every rank."""
        if isinstance(outcome, Staged):
            self._told_staged(seq, outcome)
        else:
            self._told_unstaged(seq, outcome)

    def _told_unstaged(self, seq: int, error: Exception) -> None:
        text = printable(str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}")
        self._link.send(StagingFailed(self.begin.attempt, self.begin.rank, seq, text))

    def _raise_refused(self) -> None:
        """Raise what became of checkpoints that could not be committed; of those reported with ASYNC, now."""
        with self._changed:
            refused = [self._refused.pop(seq) for seq in sorted(self._refused) if seq <= self.num_reports]
        if not refused:
            return
        for message in refused:
            self.uploader.discard(message.seq)
        error = self._too_many_failed("; ".join(map(self._told_refusal, refused)), len(refused))
        if error is None:
            return
        if all(message.rank not in (None, self.begin.rank) for message in refused):
            self.echo = error
        raise error

    def _too_many_failed(self, text: str, number: int) -> StorageError | None:
        """What to raise for saves that failed; None, and it is only said, while so many in a row may."""
        with self._changed:
            self._num_failed_saves += number
            num_failed, latest = self._num_failed_saves, self._latest
        limit = self.begin.max_failed_saves
        if limit is None or num_failed <= limit:
            kept = f"training goes on with {latest.name}" if latest is not None else "there is no checkpoint yet"
            log.error("%s\n  %d in a row (max_failed_saves=%s); %s", text, num_failed, limit, kept)
            return None
        return StorageError(text if limit == 0 else f"{num_failed} saves in a row, max_failed_saves={limit}: {text}")

    def _told_refusal(self, message: CheckpointRefused) -> str:
        if message.rank is None:
            return f"report {message.seq}: the checkpoint could not be committed: {message.error}"
        who = "this rank" if message.rank == self.begin.rank else f"rank {message.rank}"
        return f"report {message.seq}: the checkpoint could not be staged by {who}: {message.error}"


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


_current: Context | None = None
_around: list[Context | None] = []
"""A worker may itself have a run in its own process, with `num_workers=0`."""


def current() -> Context | None:
    """The worker that this process is, if it is one."""
    return _current


def enter(context: Context) -> None:
    global _current
    _around.append(_current)
    _current = context


def leave() -> None:
    global _current
    # A validation has left before its worker does.
    _current = _around.pop() if _around else None
