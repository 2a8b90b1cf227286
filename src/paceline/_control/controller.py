"""The control loop: receive events, let `step` decide, append them to the journal, execute the commands.

The controller owns what acts (engine, journal, storage thread) and decides nothing. An event is in the journal before
its commands are executed; events that change nothing are not written. Observers are notified afterwards, and an
observer that raises is dropped.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from paceline._control import commands
from paceline._control.commands import Command
from paceline._control.events import (
    CapacityChanged,
    CheckpointBroken,
    CheckpointStaged,
    CheckpointVerified,
    CommitFailed,
    Committed,
    DeadlinePassed,
    Event,
    Note,
    PinsSet,
    PreemptionNoticeReceived,
    Reported,
    ResizeDue,
    Retention,
    RetentionSet,
    RunDescribed,
    StopRequested,
    Timestamp,
    WorkerFailed,
    WorkerReady,
    WorkerReturned,
    WorkersStopped,
)
from paceline._control.hang_detector import HangDetector, HangReport, SampleRequest
from paceline._control.journal import Journal
from paceline._control.request_handler import ControllerHandle, RequestHandler
from paceline._control.run import Finished, Run, Running
from paceline._control.step import next_deadline, next_resize, step
from paceline._control.storage_thread import StorageThread
from paceline._control.usage_collector import UsageCollector
from paceline._control.validation_runner import ValidationRunner
from paceline._control.worker_sync import Barriers, TaskQueue
from paceline._core.errors import RunHeldError
from paceline._core.system import Clock, open_private
from paceline._engine import messages
from paceline._engine.base import Engine, WorkerGroupSpec, WorkerResources
from paceline._engine.messages import CheckpointRecord
from paceline._storage.lease import UNFENCED, Fence
from paceline._storage.run_store import RunStore

log = logging.getLogger("paceline")

TICK_S = 0.1
CAPACITY_POLL_S = 1.0
JOURNAL_SYNC_S = 1.0
TIMESTAMP_RESOLUTION_S = 0.01
DESCRIPTION_TIMEOUT_S = 2.0
"""How long a run that ends at once waits for its description."""


class Observer(Protocol):
    def on_event(self, event: Event, run: Run) -> None:
        """Called after an event took effect, with the run after it."""
        ...

    def tick(self, run: Run, now: float) -> None:
        """Called regularly, at least every few tenths of a second."""
        ...


class Controller:
    def __init__(
        self,
        run: Run,
        *,
        journal: Journal,
        engine: Engine,
        store: RunStore,
        group: Callable[[commands.StartWorkers, Run], WorkerGroupSpec],
        clock: Clock,
        resources: WorkerResources | None = None,
        hang_detector: HangDetector | None = None,
        observers: Sequence[Observer] = (),
        fence: Fence = UNFENCED,
        validations: ValidationRunner | None = None,
        task_queue: TaskQueue | None = None,
        usage_collector: UsageCollector | None = None,
        description: Future[RunDescribed | None] | None = None,
        request_handler: RequestHandler | None = None,
    ) -> None:
        self.run = run
        self._journal = journal
        self._engine = engine
        self._store = store
        self._group = group
        self._clock = clock
        self._resources = resources or WorkerResources()
        self._capacity_checked_at = clock.now()
        self._hang_detector = hang_detector
        """None: hang detection is off, as under a debugger."""
        self._observers = list(observers)
        self._fence = fence
        self._validations = validations
        self._task_queue = task_queue
        self._usage_collector = usage_collector
        """None: usage is not collected."""
        self._description = description
        """Being computed in the background. None once it is in the journal, perhaps from an earlier driver."""
        self._request_handler = request_handler
        """None: user requests are not accepted."""
        self._last_timestamp = 0.0
        self._inbox: deque[Event] = deque()
        self._released_reports: deque[tuple[int, int]] = deque()
        """(attempt, seq) of reports that may return."""
        self._synced_at = clock.now()
        self._barriers = Barriers(run.size)
        self._storage_thread = StorageThread(engine.wake)

    def drive(self, first: Event) -> Run:
        """Run the loop from the first event to the end. Raises `RunHeldError` if another driver took over the run."""
        try:
            self._run_loop(first)
        except BaseException as error:
            if isinstance(error, RunHeldError):
                # The events that this driver has not written no longer belong to the run.
                self._journal.abandon()
            if self._request_handler is not None:
                self._request_handler.close(self.run, error)
            raise
        return self.run

    def _run_loop(self, first: Event) -> None:
        # On the storage thread: runs while workers start, and before the first commit.
        self._storage_thread.submit(self._sync_run_start)
        try:
            self._apply_events([first])
            while not isinstance(self.run.phase, Finished):
                self._dispatch_task()
                self._release_reports()
                self._apply_events(self._next_events())
                self._fence.raise_if_lost()
                if (hang := self._check_for_hangs()) is not None:
                    self._apply_events([hang])
                self._collect_usage()
                self._run_request_handler(RequestHandler.tick)
                self._record_description()
                self._sync_journal_if_due()
                for observer in list(self._observers):
                    self._notify_observer(observer, partial(observer.tick, self.run, self._clock.now()))
            self._run_request_handler(RequestHandler.finish_pending)
        finally:
            self._storage_thread.close()
        # Not reached if the loop raised, as when the journal's disk is full: the first error is the one to report, and
        # the next driver finds the storage thread's work on storage.
        self._fence.raise_if_lost()
        self._apply_events(self._storage_thread.take_events())
        self._record_description(DESCRIPTION_TIMEOUT_S)
        self._run_request_handler(RequestHandler.flush_answers)
        self._journal.sync()
        # Check after the last line is written: a driver that takes over later has read it.
        self._fence.check()
        if self._request_handler is not None:
            self._request_handler.close(self.run)

    def request_stop(self, *, now: bool) -> None:
        """Ask the run to stop, at the next report or at once. Safe in signal handlers and other threads."""
        self._inbox.append(StopRequested(self.run.attempt, now))
        self._engine.wake()

    def request_preemption(self, grace_s: float) -> None:
        """Announce that this machine goes away in `grace_s` seconds. Safe in signal handlers and other threads."""
        self._inbox.append(PreemptionNoticeReceived(self.run.attempt, grace_s))
        self._engine.wake()

    def release_report(self, attempt: int, seq: int) -> None:
        """Let a report return, for workers that block in `report()`. Thread-safe."""
        self._released_reports.append((attempt, seq))
        self._engine.wake()

    def request_pins(self, seqs: Iterable[int]) -> None:
        """Pin exactly these checkpoints, so that retention keeps them. Thread-safe.

        Observers receive `PinsSet`. After it, `run.pinned` holds the pinned checkpoints that exist; they are kept until
        a later call leaves them out. A run that has ended sends no event and keeps its checkpoints.
        """
        self._inbox.append(PinsSet(self.run.attempt, tuple(sorted(set(seqs)))))
        self._engine.wake()

    def submit_task(self, job: bytes, retention: Retention | None = None) -> None:
        """Run a task on persistent workers. Thread-safe, but submit one task at a time."""
        assert self._task_queue is not None
        if retention is not None:
            self._inbox.append(RetentionSet(self.run.attempt, retention))
        self._task_queue.submit(job)
        self._engine.wake()

    def _sync_journal_if_due(self) -> None:
        """Sync the journal in the background, so that a power failure loses at most the metrics of the last second."""
        now = self._clock.now()
        if self._journal.has_unsynced and now - self._synced_at >= JOURNAL_SYNC_S:
            self._synced_at = now
            self._journal.has_unsynced = False
            self._storage_thread.submit(self._sync_and_ship_journal)

    def _next_events(self) -> list[Event]:
        due = next_deadline(self.run)
        wait_s = TICK_S if due is None else max(0.0, min(TICK_S, due - self._clock.now()))
        events: list[Event] = []
        for message in self._engine.wait(0.0 if self._inbox else wait_s):
            if type(message) is Reported:  # Nearly all are.
                events.append(message)
                continue
            if isinstance(message, messages.Joined):
                self._join_barrier(message)
            elif isinstance(message, messages.TaskAnswered):
                self._record_answer(message)
            elif (
                isinstance(message, messages.StacksSampled | messages.ProfileRecorded)
                and self._request_handler is not None
                and self._request_handler.accept_answer(message)
            ):
                pass
            elif isinstance(message, messages.StacksSampled):
                if self._hang_detector is not None and message.attempt == self.run.attempt:
                    self._hang_detector.add_sample(message, self._clock.now())
            elif isinstance(message, messages.UsageReported):
                if self._usage_collector is not None:
                    self._usage_collector.add_usage(message, self.run, self._clock.now())
            elif isinstance(message, messages.ProfileRecorded):
                pass  # Nobody waits for it any more.
            else:
                events.append(message)
            if isinstance(message, WorkerReturned):
                self._barriers.mark_returned(message.rank)
            elif isinstance(message, WorkersStopped):
                self._collect_usage(last=True)
        if isinstance(self.run.phase, Running):
            mismatch = self._barriers.find_mismatch(self._clock.wall())
            if mismatch is None and self._task_queue is not None:
                mismatch = self._task_queue.find_mismatch(self.run, self._clock.wall())
            if mismatch is not None:
                events.append(WorkerFailed(self.run.attempt, mismatch.rank, mismatch))
        events = self._poll_capacity(events) + events + self._storage_thread.take_events()
        if self._validations is not None:
            events += self._validations.take_ended()
        while self._inbox:
            events.append(self._inbox.popleft())
        if due is not None and self._clock.now() >= due:
            events.append(DeadlinePassed(self.run.attempt))
        resize_at = next_resize(self.run)
        if resize_at is not None and self._clock.now() >= resize_at:
            events.append(ResizeDue(self.run.attempt))
        return events

    def _poll_capacity(self, events: list[Event]) -> list[Event]:
        """Poll the engine's capacity regularly, and when workers are gone: it decides how many start next."""
        run, now = self.run, self._clock.now()
        have_stopped = any(isinstance(event, WorkersStopped) for event in events)
        if len(run.sizes) < 2 or not (have_stopped or now - self._capacity_checked_at >= CAPACITY_POLL_S):
            return []
        self._capacity_checked_at = now
        num_places = self._engine.capacity(self._resources, run.sizes[0], run.sizes[-1])
        return [CapacityChanged(run.attempt, num_places)] if num_places != run.num_places else []

    def _check_for_hangs(self) -> Event | None:
        """Request stack samples or report a hang, when due."""
        if self._hang_detector is None:
            return None
        now = self._clock.now()
        if self._engine.waits:
            self._hang_detector.start_attempt(self.run.size, now)
            return None
        match self._hang_detector.tick(self.run, now, self._clock.wall()):
            case SampleRequest(number=number, unanswered=unanswered):
                for rank in unanswered:
                    self._hang_detector.add_missing_sample(rank, self._engine.condition(rank), now)
                self._broadcast(messages.SampleStacks(number))
            case HangReport(event=event, stacks=stacks):
                if stacks:
                    path = self._store.layout.stacks(self.run.attempt)
                    self._storage_thread.submit(lambda: self._write_stacks(path, stacks))
                return event
        return None

    def _apply_events(self, events: list[Event]) -> None:
        pending: list[Command] = []
        effective: list[tuple[Event, Run]] = []
        now = self._clock.now()
        for event in events:
            is_report = type(event) is Reported
            if isinstance(event, StopRequested | PreemptionNoticeReceived):
                # Applies to whichever attempt is active when the event is processed.
                event = replace(event, attempt=self.run.attempt)
                if isinstance(event, StopRequested) and self._engine.waits:
                    event = replace(event, now=True)  # No worker can reach a report.
            after, more = step(self.run, event, now)
            if after is self.run and not more:
                continue
            self.run = after
            if not is_report and not isinstance(event, CheckpointStaged):
                self._append_timestamp()
            self._journal.append(event)
            if self._hang_detector is not None:
                self._hang_detector.on_event(event, now)
                if not is_report and self._task_queue is not None and isinstance(event, WorkerReady):
                    self._hang_detector.mark_idle(event.rank, now)
            effective.append((event, after))
            pending += more
        self._journal.flush()
        for command in pending:
            self._execute_command(command)
        for observer in list(self._observers):
            self._notify_observer(observer, partial(_notify_of_events, observer, effective))

    def _append_timestamp(self) -> None:
        """Record the time for people who read the journal: most events carry none."""
        wall = self._clock.wall()
        if abs(wall - self._last_timestamp) >= TIMESTAMP_RESOLUTION_S:
            self._last_timestamp = wall
            self._journal.append(Timestamp(wall))

    def _record_note(self, note: Note) -> None:
        """Write an event that does not change the run, and notify the observers."""
        self._journal.append(note)
        self._journal.flush()
        for observer in list(self._observers):
            self._notify_observer(observer, partial(observer.on_event, note, self.run))

    def _run_request_handler(self, handle: Callable[[RequestHandler, ControllerHandle], Sequence[Note]]) -> None:
        """Handle user requests. An error there must not affect the run."""
        if self._request_handler is None:
            return
        engine = self._engine
        try:
            notes = handle(
                self._request_handler,
                ControllerHandle(self.run, engine.send, engine.condition, self._storage_thread.submit),
            )
        except Exception:
            log.exception("request handling disabled after an error; training continues")
            self._request_handler = None
            return
        for note in notes:
            self._record_note(note)

    def _collect_usage(self, *, last: bool = False) -> None:
        """`last`: the workers are gone and have sent their last usage."""
        if self._usage_collector is None:
            return
        now = self._clock.now()
        if last or self._usage_collector.should_record(self.run, now):
            measured = self._usage_collector.take_measurement(self.run, self._clock.wall())
            if measured is not None:
                self._record_note(measured)
        if not last and self._usage_collector.should_poll(self.run, now) and not self._engine.waits:
            self._broadcast(messages.MeasureUsage())

    def _record_description(self, wait_s: float = 0.0) -> None:
        if self._description is None or (not wait_s and not self._description.done()):
            return
        future, self._description = self._description, None
        try:
            described = future.result(wait_s)
        except TimeoutError:
            return
        except Exception:
            log.exception("cannot describe the run; training continues")
            return
        if described is not None:
            self._record_note(described)

    def _execute_command(self, command: Command) -> None:
        match command:
            case commands.VerifyCheckpoint(attempt=attempt, record=record):
                self._storage_thread.submit(lambda: self._verify_checkpoint(attempt, record))
            case commands.StartWorkers():
                # Check after the event is in the journal: a driver that takes over has either read it and uses a later
                # attempt number, or is detected here. So no two worker groups share an attempt and its files.
                self._fence.check()
                self._barriers = Barriers(command.size)
                if self._hang_detector is not None:
                    self._hang_detector.start_attempt(command.size, self._clock.now())
                if self._usage_collector is not None:
                    self._usage_collector.start_attempt(self._clock.now())
                self._engine.start(self._group(command, self.run))
            case commands.CommitCheckpoint():
                self._storage_thread.submit(lambda: self._commit_checkpoint(command))
            case commands.DeleteCheckpoint(record=record):
                self._storage_thread.submit(lambda: self._delete_checkpoint(record))
            case commands.AnnounceCommit(record=record, removed=removed):
                self._broadcast(messages.CheckpointCommitted(record, removed))
                self._storage_thread.submit(self._sync_and_ship_journal)
            case commands.AnnounceRefusal(seq=seq, error=error, rank=rank):
                self._broadcast(messages.CheckpointRefused(seq, error, rank))
            case commands.StartValidation():
                assert self._validations is not None
                self._validations.start(command)
            case commands.AnnounceValidation(record=record, removed=removed):
                self._broadcast(messages.CheckpointValidated(record, removed))
            case commands.AnnounceRemoval(removed=removed):
                self._broadcast(messages.CheckpointsRemoved(removed))
            case commands.HoldWorkers():
                self._broadcast(messages.Hold())
            case commands.StopWorkersAt():
                self._broadcast(self._make_stop_message(command))
            case commands.StopWorkers(kill=kill):
                self._engine.stop(kill=kill)

    def _make_stop_message(self, command: commands.StopWorkersAt) -> messages.StopAt:
        preemption = command.preemption
        if preemption is None:
            return messages.StopAt(command.seq, command.save)
        deadline = self._clock.wall() + preemption.deadline - self._clock.now()
        return messages.StopAt(command.seq, command.save, messages.PreemptionNotice(preemption.ranks, deadline))

    def _broadcast(self, message: messages.ToWorker) -> None:
        for rank in range(self.run.size):
            self._engine.send(rank, message)

    def _join_barrier(self, event: messages.Joined) -> None:
        if event.attempt == self.run.attempt:
            if self._hang_detector is not None:
                self._hang_detector.on_barrier_joined(event, self._clock.now())
            release = self._barriers.join(event)
            if release is not None:
                self._broadcast(release)

    def _dispatch_task(self) -> None:
        task = self._task_queue.take_due(self.run) if self._task_queue is not None else None
        if task is not None:
            self._barriers.clear_returned()
            if self._hang_detector is not None:
                self._hang_detector.mark_all_busy(self._clock.now())
            self._broadcast(task)

    def _release_reports(self) -> None:
        while self._released_reports:
            attempt, seq = self._released_reports.popleft()
            if attempt == self.run.attempt:
                self._broadcast(messages.ReleaseReport(seq))

    def _record_answer(self, answer: messages.TaskAnswered) -> None:
        if self._task_queue is not None and self._task_queue.add_answer(answer, self.run):
            self._barriers.mark_returned(answer.rank)
            if self._hang_detector is not None:
                self._hang_detector.mark_idle(answer.rank, self._clock.now())

    def _notify_observer(self, observer: Observer, notify: Callable[[], None]) -> None:
        """Notify an observer; drop it if it raises."""
        try:
            notify()
        except (Exception, SystemExit):  # A callback's `sys.exit()` must not end the driver.
            self._observers.remove(observer)
            name = getattr(observer, "name", type(observer).__name__)
            log.exception("%s raised an exception and is dropped; training continues", name)

    # The methods below run on the storage thread.

    def _sync_run_start(self) -> None:
        self._journal.sync_written()
        self._store.sync()

    def _sync_and_ship_journal(self) -> None:
        self._journal.sync_written()
        self._store.upload_journal()

    def _verify_checkpoint(self, attempt: int, record: CheckpointRecord) -> Event:
        problem = self._store.find_problem(record)
        if problem is None:
            return CheckpointVerified(attempt, record.seq)
        quarantine_path = self._store.quarantine(record, self._fence)
        if quarantine_path is not None:
            problem = f"{problem}; moved to {quarantine_path}"
        return CheckpointBroken(attempt, record.seq, problem)

    def _commit_checkpoint(self, command: commands.CommitCheckpoint) -> Event:
        record = command.record
        try:
            differing = self._store.commit(
                record,
                command.parts,
                world_size=self.run.size,
                created_at=self._clock.wall(),
                fence=self._fence,
            )
            # Check again before announcing it: a driver that takes over later finds the checkpoint.
            self._fence.check()
        except RunHeldError:
            raise
        except OSError as error:
            self._store.discard_staged(record)
            return CommitFailed(record.attempt, record.seq, f"{type(error).__name__}: {error}")
        if differing:
            log.warning(
                "%s: ranks wrote different contents to %s; keeping those of the lowest rank",
                record.name,
                ", ".join(differing),
            )
        return Committed(record)

    def _write_stacks(self, path: Path, text: str) -> None:
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(path, "a", opener=open_private) as file:
                file.write(text)
        except OSError as error:
            log.warning("cannot write the stacks to %s: %s", path, error)

    def _delete_checkpoint(self, record: CheckpointRecord) -> None:
        try:
            self._store.delete(record, self._fence)
        except RunHeldError:
            raise
        except OSError as error:
            log.warning("cannot delete %s: %s", record.name, error)


def _notify_of_events(observer: Observer, effective: list[tuple[Event, Run]]) -> None:
    for event, after in effective:
        observer.on_event(event, after)
