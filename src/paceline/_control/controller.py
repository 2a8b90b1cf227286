"""The control loop: receive events, let `step` decide, append them to the journal, execute the commands.

The controller owns what acts (engine, journal, storage thread) and decides nothing. An event is in the journal before
its commands are executed; events that change nothing are not written. Observers are notified afterwards, and an
observer that raises is dropped.
"""

import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from paceline._control import commands, events
from paceline._control.commands import Command
from paceline._control.events import Event, Reported
from paceline._control.extensions import Extension
from paceline._control.journal_snapshot import EventHistory, MakeOutline, SnapshotFile, take_snapshot
from paceline._control.recovery import RecoveredRun
from paceline._control.run import Finished, Run, Running
from paceline._control.step import next_deadline, next_resize, step, step_reports
from paceline._control.storage_thread import CheckpointWork, DeletionThread, StorageThread
from paceline._control.worker_sync import Barriers
from paceline._core.checkpoint_records import CheckpointRecord
from paceline._core.errors import RunHeldError
from paceline._core.system import Clock
from paceline._engine import messages
from paceline._engine.base import Engine, WorkerGroupSpec
from paceline._storage.run_store import RunStore

T = TypeVar("T")

log = logging.getLogger("paceline")

TICK_S = 0.1
JOURNAL_SYNC_S = 1.0
TIMESTAMP_RESOLUTION_S = 0.01


_ForExtensions = messages.TaskAnswered | messages.StacksSampled | messages.ProfileRecorded | messages.UsageReported
"""Messages that are no events."""


class Observer(Protocol):
    def on_event(self, event: Event, run: Run) -> None:
        """Called after an event took effect, with the run after it, or after all reports that arrived with it."""
        ...

    def tick(self, run: Run, now: float) -> None:
        """Called regularly, at least every few tenths of a second."""
        ...


class Controller:
    """Drives one run. Extensions reach it through the public attributes and the methods marked as theirs."""

    def __init__(
        self,
        recovered: RecoveredRun,
        *,
        engine: Engine,
        store: RunStore,
        group: Callable[[commands.StartWorkers, Run], WorkerGroupSpec],
        clock: Clock,
        observers: Sequence[Observer] = (),
        extensions: Sequence[Extension] = (),
        make_outline: MakeOutline | None = None,
    ) -> None:
        self.run = recovered.run
        self.engine = engine
        self.store = store
        self.clock = clock
        self.barriers = Barriers(self.run.size)
        self._journal = recovered.journal
        self._fence = recovered.fence
        self._group = group
        self._observers = list(observers)
        self._extensions = list(extensions)
        self._last_timestamp = 0.0
        self._inbox: deque[Event] = deque()
        self._batch: list[Event] = []
        self._released_reports: deque[tuple[int, int, bool]] = deque()
        """(attempt, seq, save) of reports that may return."""
        self._synced_at = clock.now()
        self._history = EventHistory(recovered.history, recovered.last_rank_0_report)
        self._snapshot_file = SnapshotFile(store.layout, recovered.journal.length, make_outline)
        self._storage_thread = StorageThread(engine.wake)
        self._deletion_thread = DeletionThread(self._storage_thread.add_error)
        self._checkpoints = CheckpointWork(store, recovered.journal, recovered.fence, clock, self._deletion_thread)
        for extension in self._extensions:
            extension.attach(self)
        self._event_listeners = tuple(each for each in extensions if type(each).on_event is not Extension.on_event)
        self._journal_error: Exception | None = None

    def drive(self, first: Event) -> Run:
        """Run the loop from the first event to the end. Raises `RunHeldError` if another driver took over the run."""
        try:
            self._run_loop(first)
        except BaseException as error:
            if isinstance(error, RunHeldError):
                # The events that this driver has not written no longer belong to the run.
                self._journal.abandon()
            for extension in self._extensions:
                extension.close(error)
            raise
        return self.run

    def _run_loop(self, first: Event) -> None:
        try:
            self._apply_events([first])
            while not isinstance(self.run.phase, Finished):
                while self._released_reports:
                    attempt, seq, save = self._released_reports.popleft()
                    if attempt == self.run.attempt:
                        self.broadcast(messages.ReleaseReport(seq, save))
                self._apply_events(self._next_events())
                # Look only now: what has just arrived may have moved the deadline.
                self._apply_events(self._due_events())
                self._fence.raise_if_lost()
                for extension in list(self._extensions):
                    if polled := self._call(extension, extension.poll):
                        self._apply_events(polled)
                self._sync_journal_if_due()
                self._write_snapshot_if_due()
                for observer in list(self._observers):
                    self._notify_observer(observer, partial(observer.tick, self.run, self.clock.now()))
            for extension in list(self._extensions):
                self._call(extension, extension.on_run_ended)
        finally:
            self._storage_thread.close()
            self._deletion_thread.close()
        # Not reached if the loop raised, as when the journal's disk is full: the first error is the one to report, and
        # the next driver finds the storage thread's work on storage.
        self._fence.raise_if_lost()
        self._apply_events(self._storage_thread.take_events())
        for extension in list(self._extensions):
            self._call(extension, extension.on_storage_closed)
        self._journal.flush()
        self._checkpoints.sync_run()
        # Check after the last line is written: a driver that takes over later has read it.
        try:
            self._fence.check()
        except RunHeldError:
            raise
        except OSError as error:
            if not (isinstance(self.run.phase, Finished) and self.run.phase.ending == "failed"):
                raise
            log.warning("cannot check the lease: %s", error)  # The failure of the run is the first error.
        for extension in self._extensions:
            extension.close()

    def _call(self, extension: Extension, call: Callable[[], T]) -> T | None:
        """Call an extension; drop it if it raises and is not essential."""
        try:
            return call()
        except Exception as error:  # noqa: BLE001
            self._drop_extension(extension, error)
            return None

    def _drop_extension(self, extension: Extension, error: Exception) -> None:
        # What cannot be written to the journal is not the extension's failure: the run must not go on.
        if extension.is_essential or error is self._journal_error:
            raise error
        self._extensions.remove(extension)
        self._event_listeners = tuple(each for each in self._event_listeners if each is not extension)
        log.error("%s failed and is disabled; training continues", type(extension).__name__, exc_info=error)

    def request_stop(self, *, now: bool) -> None:
        """Ask the run to stop, at the next report or at once. Safe in signal handlers and other threads."""
        self._inbox.append(events.StopRequested(self.run.attempt, now))
        self.engine.wake()

    def request_preemption(self, grace_s: float) -> None:
        """Announce that this machine goes away in `grace_s` seconds. Safe in signal handlers and other threads."""
        self._inbox.append(events.PreemptionNoticeReceived(self.run.attempt, grace_s))
        self.engine.wake()

    def release_report(self, attempt: int, seq: int, *, save: bool = False) -> None:
        """Let a report return, for workers that block in `report()`, after a checkpoint if `save`. Thread-safe."""
        self._released_reports.append((attempt, seq, save))
        self.engine.wake()

    def request_pins(self, seqs: Iterable[int]) -> None:
        """Pin exactly these checkpoints, so that retention keeps them. Thread-safe.

        Observers receive `PinsSet`. After it, `run.pinned` holds the pinned checkpoints that exist; they are kept until
        a later call leaves them out. A run that has ended sends no event and keeps its checkpoints.
        """
        self._inbox.append(events.PinsSet(self.run.attempt, tuple(sorted(set(seqs)))))
        self.engine.wake()

    def set_retention(self, retention: events.Retention) -> None:
        """Keep checkpoints by other rules from now on. Thread-safe."""
        self._inbox.append(events.RetentionSet(self.run.attempt, retention))
        self.engine.wake()

    def write_last_snapshot(self, summary: bytes) -> None:
        """Write a snapshot of a run that has ended, with what is shown of it in a list of runs."""
        assert isinstance(self.run.phase, Finished)
        if (snapshot := take_snapshot(self.run, self._history)) is not None:
            snapshot = replace(snapshot, summary=msgspec.Raw(summary))
            with self.store.layout.journal.open("rb") as file:
                self._fence.check()  # After opening it: a driver that takes over later writes to another file.
                length = file.seek(0, os.SEEK_END)
                self._snapshot_file.write(snapshot, file.fileno(), length, self._journal.num_lines)

    def hold_checkpoints(self, is_held: Callable[[CheckpointRecord], bool]) -> None:
        """Let deletions wait while `is_held`; after the run, `delete_deferred` makes up for them."""
        self._checkpoints.is_held = is_held

    def delete_deferred(self) -> None:
        """Delete what was held, once the run has been driven."""
        self._checkpoints.delete_deferred()

    def add_observer(self, observer: Observer) -> None:
        """Add an observer before the run is driven."""
        self._observers.append(observer)

    # For extensions, in the controller's thread.

    def add_event(self, event: Event) -> None:
        """Apply an event before the message that is being handled."""
        self._batch.append(event)

    def broadcast(self, message: messages.ToWorker) -> None:
        for rank in range(self.run.size):
            self.engine.send(rank, message)

    def record_note(self, note: events.Note) -> None:
        """Write an event that does not change the run, and notify the observers."""
        try:
            self._journal.append(note)
            self._journal.flush()
        except Exception as error:
            self._journal_error = error
            raise
        self._history.add(note)
        for observer in list(self._observers):
            self._notify_observer(observer, partial(observer.on_event, note, self.run))

    def run_in_background(self, work: Callable[[], None]) -> None:
        """Do something that may block, on the storage thread."""
        self._storage_thread.submit(work)

    def write_stacks(self, text: str) -> None:
        path = self.store.layout.stacks(self.run.attempt)
        self._storage_thread.submit(lambda: self._checkpoints.write_stacks(path, text))

    def _sync_journal_if_due(self) -> None:
        """Sync the journal in the background, so that a power failure loses at most the metrics of the last second."""
        now = self.clock.now()
        if self._journal.has_unsynced and now - self._synced_at >= JOURNAL_SYNC_S:
            self._synced_at = now
            self._journal.has_unsynced = False
            self._storage_thread.submit(self._checkpoints.sync_journal)

    def _write_snapshot_if_due(self) -> None:
        journal = self._journal
        if self._snapshot_file.is_due(journal.length) and (snapshot := take_snapshot(self.run, self._history)):
            covered = journal.fileno(), journal.length, journal.num_lines
            self._snapshot_file.mark_written(journal.length)
            # After the lines that it covers: after a power cut, it must not stand for lines that are lost.
            self._storage_thread.submit(self._journal.sync_written)
            self._storage_thread.submit(partial(self._snapshot_file.write, snapshot, *covered))

    def _next_events(self) -> list[Event]:
        due = next_deadline(self.run)
        wait_s = TICK_S if due is None else max(0.0, min(TICK_S, due - self.clock.now()))
        batch = self._batch = []
        for message in self.engine.wait(0.0 if self._inbox else wait_s):
            if type(message) is Reported:  # Nearly all are.
                batch.append(message)
                continue
            # Show it to the extensions, until one takes it.
            any(self._call(each, partial(each.on_message, message)) for each in list(self._extensions))
            if isinstance(message, messages.Joined):
                release = self.barriers.join(message) if message.attempt == self.run.attempt else None
                if release is not None:
                    self.broadcast(release)
            elif not isinstance(message, _ForExtensions):
                if isinstance(message, events.WorkerReturned):
                    self.barriers.mark_returned(message.rank)
                batch.append(message)
        if isinstance(self.run.phase, Running):
            mismatch = self.barriers.find_mismatch(self.clock.wall())
            if mismatch is not None:
                batch.append(events.WorkerFailed(self.run.attempt, mismatch.rank, mismatch))
        batch += self._storage_thread.take_events()
        while self._inbox:
            batch.append(self._inbox.popleft())
        return batch

    def _due_events(self) -> list[Event]:
        now, attempt = self.clock.now(), self.run.attempt
        deadline, resize_at = next_deadline(self.run), next_resize(self.run)
        due: list[Event] = []
        if deadline is not None and now >= deadline:
            due.append(events.DeadlinePassed(attempt))
        if resize_at is not None and now >= resize_at:
            due.append(events.ResizeDue(attempt))
        return due

    def _apply_events(self, batch: Sequence[Event]) -> None:
        if not batch:
            return
        pending: list[Command] = []
        effective: list[tuple[Event, Run]] = []
        now = self.clock.now()
        at = 0
        while at < len(batch):
            self.run, reports, at = step_reports(self.run, batch, at)
            for report in reports:
                self._record_event(report, now)
            effective += [(report, self.run) for report in reports]
            if at == len(batch):
                break
            event = batch[at]
            at += 1
            if isinstance(event, events.StopRequested | events.PreemptionNoticeReceived):
                # Applies to whichever attempt is active when the event is processed.
                event = replace(event, attempt=self.run.attempt)
                if isinstance(event, events.StopRequested) and self.engine.waits:
                    event = replace(event, now=True)  # No worker can reach a report.
            after, more = step(self.run, event, now)
            if after is self.run and not more:
                continue
            self.run = after
            if not isinstance(event, Reported):
                self._history.add(event)
                if not isinstance(event, events.CheckpointStaged):
                    self._append_timestamp()
            self._record_event(event, now)
            effective.append((event, after))
            pending += more
        self._journal.flush()
        self._deletion_thread.set_saving(self.run.is_saving)
        for event, _ in reversed(effective):
            if type(event) is Reported and event.rank == 0:
                self._history.last_rank_0_report = event
                break
        deletions = [command for command in pending if isinstance(command, commands.DeleteCheckpoint)]
        for command in pending:
            if not isinstance(command, commands.DeleteCheckpoint):
                self._execute_command(command)
        for observer in list(self._observers):
            self._notify_observer(observer, partial(_notify_of_events, observer, effective))
        # Last: an observer that is notified of a checkpoint holds it until it has seen it.
        for deletion in deletions:
            self._execute_command(deletion)

    def _record_event(self, event: Event, now: float) -> None:
        self._journal.append(event)
        for listener in self._event_listeners:
            try:
                listener.on_event(event, now)
            except Exception as error:  # noqa: BLE001
                self._drop_extension(listener, error)

    def _append_timestamp(self) -> None:
        """Record the time for people who read the journal: most events carry none."""
        wall = self.clock.wall()
        if abs(wall - self._last_timestamp) >= TIMESTAMP_RESOLUTION_S:
            self._last_timestamp = wall
            self._journal.append(events.Timestamp(wall))

    def _execute_command(self, command: Command) -> None:
        match command:
            case commands.VerifyCheckpoint(attempt=attempt, record=record):
                self._storage_thread.submit(lambda: self._checkpoints.verify(attempt, record))
            case commands.StartWorkers():
                # Check after the event is in the journal: a driver that takes over has either read it and uses a later
                # attempt number, or is detected here. So no two worker groups share an attempt and its files.
                self._fence.check()
                self.barriers = Barriers(command.size)
                for extension in list(self._extensions):
                    self._call(extension, partial(extension.on_attempt_started, command.size))
                self.engine.start(self._group(command, self.run))
            case commands.CommitCheckpoint():
                size = self.run.size
                self._storage_thread.submit(lambda: self._checkpoints.commit(command, size))
            case commands.DeleteCheckpoint(record=record):
                self._checkpoints.delete(record)
            case commands.Broadcast(message=message):
                self.broadcast(message)
                if isinstance(message, messages.CheckpointCommitted):
                    self._storage_thread.submit(self._checkpoints.sync_journal)
            case commands.StopWorkersAt():
                self.broadcast(self._make_stop_message(command))
            case commands.StopWorkers(kill=kill):
                self.engine.stop(kill=kill)
            case _:
                executed = [extension for extension in self._extensions if extension.execute(command)]
                assert executed, f"no extension executes {command}"

    def _make_stop_message(self, command: commands.StopWorkersAt) -> messages.StopAt:
        preemption = command.preemption
        if preemption is None:
            return messages.StopAt(command.seq, command.save)
        deadline = self.clock.wall() + preemption.deadline - self.clock.now()
        notice = messages.PreemptionNotice(preemption.ranks, deadline)
        return messages.StopAt(command.seq, command.save, notice, command.num_checks)

    def _notify_observer(self, observer: Observer, notify: Callable[[], None]) -> None:
        """Notify an observer; drop it if it raises."""
        try:
            notify()
        except (Exception, SystemExit):  # A callback's `sys.exit()` must not end the driver.
            self._observers.remove(observer)
            name = getattr(observer, "name", type(observer).__name__)
            log.exception("%s raised an exception and is dropped; training continues", name)


def _notify_of_events(observer: Observer, effective: list[tuple[Event, Run]]) -> None:
    for event, after in effective:
        observer.on_event(event, after)
