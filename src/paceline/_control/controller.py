"""The loop: take events, let `step` decide, write them down, carry the commands out.

It holds the things that act (engine, journal, storage thread) and decides nothing. An event is in the journal before
what follows from it is done; one that changes nothing is not written. Observers are told afterwards, and one that
raises is dropped.
"""

import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from paceline._control.background import Background
from paceline._control.barriers import Barriers
from paceline._control.clerk import Clerk, Hands
from paceline._control.commands import (
    AnnounceCommit,
    AnnounceRefusal,
    AnnounceRemoval,
    AnnounceValidation,
    Command,
    CommitCheckpoint,
    DeleteCheckpoint,
    HoldWorkers,
    StartValidation,
    StartWorkers,
    StopWorkers,
    StopWorkersAt,
    VerifyCheckpoint,
)
from paceline._control.events import (
    CapacityChanged,
    CheckpointBroken,
    CheckpointStaged,
    CheckpointVerified,
    CommitFailed,
    Committed,
    DeadlinePassed,
    Described,
    Event,
    Note,
    PinsSet,
    PreemptionTold,
    Reported,
    ResizeDue,
    Retention,
    RetentionSet,
    StopRequested,
    TimeTold,
    WorkerFailed,
    WorkerReady,
    WorkerReturned,
    WorkersStopped,
)
from paceline._control.hangs import Ask, Told, Watch
from paceline._control.journal import Journal
from paceline._control.orders import Orders
from paceline._control.run import Finished, Run, Running
from paceline._control.step import deadline, resize_due, step
from paceline._control.validations import Validations
from paceline._control.vitals import Vitals
from paceline._core.clock import Clock
from paceline._core.errors import RunHeldError
from paceline._engine.base import Engine, Group, Needs
from paceline._engine.messages import (
    Answered,
    CheckpointCommitted,
    CheckpointRecord,
    CheckpointRefused,
    CheckpointsRemoved,
    CheckpointValidated,
    Hold,
    Joined,
    Measure,
    Notice,
    Proceed,
    Profiled,
    Sample,
    Sampled,
    StopAt,
    ToWorker,
    Used,
)
from paceline._storage.depot import Depot
from paceline._storage.lease import UNFENCED, Fence

log = logging.getLogger("paceline")

TICK_S = 0.1
LOOK_FOR_ROOM_EVERY_S = 1.0
SYNC_EVERY_S = 1.0
TOLD_EVERY_S = 0.01
DESCRIBED_WITHIN_S = 2.0
"""How long the end of a run that is over at once waits for its description."""


class Observer(Protocol):
    def saw(self, event: Event, run: Run) -> None:
        """An event took effect, and this is the run after it."""
        ...

    def tick(self, run: Run, now: float) -> None:
        """Some time has passed, at most a few tenths of a second."""
        ...


class Controller:
    def __init__(
        self,
        run: Run,
        *,
        journal: Journal,
        engine: Engine,
        depot: Depot,
        group: Callable[[StartWorkers, Run], Group],
        clock: Clock,
        needs: Needs | None = None,
        watch: Watch | None = None,
        observers: Sequence[Observer] = (),
        fence: Fence = UNFENCED,
        validations: Validations | None = None,
        orders: Orders | None = None,
        vitals: Vitals | None = None,
        described: Future[Described | None] | None = None,
        clerk: Clerk | None = None,
    ) -> None:
        self.run = run
        self._journal = journal
        self._engine = engine
        self._depot = depot
        self._group = group
        self._clock = clock
        self._needs = needs if needs is not None else Needs()
        self._looked_at = clock.now()
        self._watch = watch
        """None: nobody minds how long a rank says nothing, as where a person debugs it."""
        self._observers = list(observers)
        self._fence = fence
        self._validations = validations
        self._orders = orders
        self._vitals = vitals
        """None: nobody asks what the ranks use."""
        self._described = described
        """Being made, beside; None where it is written, or the journal has it from an earlier driver."""
        self._clerk = clerk
        """None: nobody can ask for anything."""
        self._time_told = 0.0
        self._inbox: deque[Event] = deque()
        self._passes: deque[tuple[int, int]] = deque()
        """Attempts and reports that may return."""
        self._synced_at = clock.now()
        self._barriers = Barriers(run.size)
        self._background = Background(engine.wake)

    def drive(self, first: Event) -> Run:
        """Play the run from its first event to its end; `RunHeldError` where another driver took it over."""
        try:
            self._play(first)
        except BaseException as error:
            if isinstance(error, RunHeldError):
                # What this driver still has to tell is no part of the run any more.
                self._journal.abandon()
            if self._clerk is not None:
                self._clerk.close(self.run, error)
            raise
        return self.run

    def _play(self, first: Event) -> None:
        # On the storage thread, so before the first commit, while workers are starting.
        self._background.submit(self._opening_kept)
        try:
            self._take([first])
            while not isinstance(self.run.phase, Finished):
                self._pass_order_on()
                self._pass_reports_on()
                self._take(self._next_events())
                self._fence.raise_if_lost()
                if (told := self._watched()) is not None:
                    self._take([told])
                self._measured()
                self._attend(Clerk.tick)
                self._tell_description()
                self._sync_journal_now_and_then()
                for observer in list(self._observers):
                    self._told(observer, partial(observer.tick, self.run, self._clock.now()))
            self._attend(Clerk.wind_up)
        finally:
            self._background.close()
        # Not where the loop broke, as when the journal's disk is full: the first error is the one to tell, and what
        # the storage thread still did the next driver sees on storage.
        self._fence.raise_if_lost()
        self._take(self._background.taken())
        self._tell_description(DESCRIBED_WITHIN_S)
        self._attend(Clerk.settle)
        self._journal.sync()
        # Asked after the last line is written: whoever takes over from here on has read it.
        self._fence.check()
        if self._clerk is not None:
            self._clerk.close(self.run)

    def request_stop(self, *, now: bool) -> None:
        """Ask the run to end, at the next report or at once. For signal handlers and other threads."""
        self._inbox.append(StopRequested(self.run.attempt, now))
        self._engine.wake()

    def request_preemption(self, grace_s: float) -> None:
        """This machine will be gone in so many seconds. For signal handlers and other threads."""
        self._inbox.append(PreemptionTold(self.run.attempt, grace_s))
        self._engine.wake()

    def let_proceed(self, attempt: int, seq: int) -> None:
        """Let a report return, of workers that wait in them. For other threads."""
        self._passes.append((attempt, seq))
        self._engine.wake()

    def request_pins(self, seqs: Iterable[int]) -> None:
        """Keep these checkpoints, and no others, beyond what retention keeps. For other threads.

        Observers are told by `PinsSet`; after it `run.pinned` has those of them that are there, which then stay until
        they are not asked for any more. A run that has ended meanwhile tells nothing, and keeps what it has.
        """
        self._inbox.append(PinsSet(self.run.attempt, tuple(sorted(set(seqs)))))
        self._engine.wake()

    def give(self, job: bytes, retention: Retention | None = None) -> None:
        """Have a group that takes orders do this. For other threads, one order after the other."""
        assert self._orders is not None
        if retention is not None:
            self._inbox.append(RetentionSet(self.run.attempt, retention))
        self._orders.give(job)
        self._engine.wake()

    def _sync_journal_now_and_then(self) -> None:
        """A power cut costs no more than the metrics of the last second; nobody waits for the disk."""
        now = self._clock.now()
        if self._journal.unsynced and now - self._synced_at >= SYNC_EVERY_S:
            self._synced_at = now
            self._journal.unsynced = False
            self._background.submit(self._journal_kept)

    def _next_events(self) -> list[Event]:
        due = deadline(self.run)
        wait_s = TICK_S if due is None else max(0.0, min(TICK_S, due - self._clock.now()))
        said = self._engine.wait(0.0 if self._inbox else wait_s)
        events: list[Event] = []
        for message in said:
            if type(message) is Reported:  # Nearly all are.
                events.append(message)
                continue
            if isinstance(message, Joined):
                self._joined(message)
            elif isinstance(message, Answered):
                self._answered(message)
            elif isinstance(message, Sampled | Profiled) and self._clerk is not None and self._clerk.heard(message):
                pass
            elif isinstance(message, Sampled):
                if self._watch is not None and message.attempt == self.run.attempt:
                    self._watch.sampled(message, self._clock.now())
            elif isinstance(message, Used):
                if self._vitals is not None:
                    self._vitals.heard(message, self.run, self._clock.now())
            elif isinstance(message, Profiled):
                pass  # Nobody waits for it any more.
            else:
                events.append(message)
            if isinstance(message, WorkerReturned):
                self._barriers.returned(message.rank)
            elif isinstance(message, WorkersStopped):
                self._measured(last=True)
        if isinstance(self.run.phase, Running):
            mismatch = self._barriers.mismatch(self._clock.wall())
            if mismatch is None and self._orders is not None:
                mismatch = self._orders.mismatch(self.run, self._clock.wall())
            if mismatch is not None:
                events.append(WorkerFailed(self.run.attempt, mismatch.rank, mismatch))
        events = self._changes_of_capacity(events) + events + self._background.taken()
        if self._validations is not None:
            events += self._validations.news()
        while self._inbox:
            events.append(self._inbox.popleft())
        if due is not None and self._clock.now() >= due:
            events.append(DeadlinePassed(self.run.attempt))
        resize_at = resize_due(self.run)
        if resize_at is not None and self._clock.now() >= resize_at:
            events.append(ResizeDue(self.run.attempt))
        return events

    def _changes_of_capacity(self, news: list[Event]) -> list[Event]:
        """Looked for now and then, and when workers are gone, since that decides how many are started next."""
        run, now = self.run, self._clock.now()
        gone = any(isinstance(event, WorkersStopped) for event in news)
        if len(run.sizes) < 2 or not (gone or now - self._looked_at >= LOOK_FOR_ROOM_EVERY_S):
            return []
        self._looked_at = now
        num_places = self._engine.capacity(self._needs, run.sizes[0], run.sizes[-1])
        return [CapacityChanged(run.attempt, num_places)] if num_places != run.num_places else []

    def _watched(self) -> Event | None:
        """Ask the ranks what they do, or say that they hang, when it is time for that."""
        if self._watch is None:
            return None
        now = self._clock.now()
        if self._engine.waits:
            self._watch.began(self.run.size, now)
            return None
        match self._watch.tick(self.run, now, self._clock.wall()):
            case Ask(number=number, unanswered=unanswered):
                for rank in unanswered:
                    self._watch.found(rank, self._engine.condition(rank), now)
                self._tell_all(Sample(number))
            case Told(event=event, stacks=stacks):
                if stacks:
                    path = self._depot.layout.stacks(self.run.attempt)
                    self._background.submit(lambda: self._stacks_written(path, stacks))
                return event
        return None

    def _take(self, events: list[Event]) -> None:
        commands: list[Command] = []
        effective: list[tuple[Event, Run]] = []
        now = self._clock.now()
        for event in events:
            is_report = type(event) is Reported
            if isinstance(event, StopRequested | PreemptionTold):
                # Meant for whichever attempt is under way when its turn comes.
                event = replace(event, attempt=self.run.attempt)
                if isinstance(event, StopRequested) and self._engine.waits:
                    event = replace(event, now=True)  # There is nobody who could get to a report.
            after, more = step(self.run, event, now)
            if after is self.run and not more:
                continue
            self.run = after
            if not is_report and not isinstance(event, CheckpointStaged):
                self._tell_time()
            self._journal.append(event)
            if self._watch is not None:
                self._watch.saw(event, now)
                if not is_report and self._orders is not None and isinstance(event, WorkerReady):
                    self._watch.rests(event.rank, now)
            effective.append((event, after))
            commands += more
        self._journal.flush()
        for command in commands:
            self._carry_out(command)
        for observer in list(self._observers):
            self._told(observer, partial(_show, observer, effective))

    def _tell_time(self) -> None:
        """For those who look at the run: most events do not say when they took place."""
        wall = self._clock.wall()
        if abs(wall - self._time_told) >= TOLD_EVERY_S:
            self._time_told = wall
            self._journal.append(TimeTold(wall))

    def _note(self, note: Note) -> None:
        """Write down what changes nothing about the run, and show it."""
        self._journal.append(note)
        self._journal.flush()
        for observer in list(self._observers):
            self._told(observer, partial(observer.saw, note, self.run))

    def _attend(self, see_to: Callable[[Clerk, Hands], Sequence[Note]]) -> None:
        """See to what people ask of the run. What breaks there is none of the run's business."""
        if self._clerk is None:
            return
        engine = self._engine
        try:
            notes = see_to(self._clerk, Hands(self.run, engine.send, engine.condition, self._background.submit))
        except Exception:
            log.exception("requests to this run are not answered any more; training goes on")
            self._clerk = None
            return
        for note in notes:
            self._note(note)

    def _measured(self, *, last: bool = False) -> None:
        """`last`: the workers are gone, and have said all that they will."""
        if self._vitals is None:
            return
        now = self._clock.now()
        if last or self._vitals.is_told(self.run, now):
            measured = self._vitals.taken(self.run, self._clock.wall())
            if measured is not None:
                self._note(measured)
        if not last and self._vitals.is_due(self.run, now) and not self._engine.waits:
            self._tell_all(Measure())

    def _tell_description(self, wait_s: float = 0.0) -> None:
        if self._described is None or (not wait_s and not self._described.done()):
            return
        making, self._described = self._described, None
        try:
            described = making.result(wait_s)
        except TimeoutError:
            return
        except Exception:
            log.exception("the run could not be described; it goes on")
            return
        if described is not None:
            self._note(described)

    def _carry_out(self, command: Command) -> None:
        match command:
            case VerifyCheckpoint(attempt=attempt, record=record):
                self._background.submit(lambda: self._verified(attempt, record))
            case StartWorkers():
                # After its line in the journal: a driver that takes over has either read it, and gives its workers
                # a later attempt, or is noticed here. So no two groups share an attempt, and its files.
                self._fence.check()
                self._barriers = Barriers(command.size)
                if self._watch is not None:
                    self._watch.began(command.size, self._clock.now())
                if self._vitals is not None:
                    self._vitals.began(self._clock.now())
                self._engine.start(self._group(command, self.run))
            case CommitCheckpoint():
                self._background.submit(lambda: self._committed(command))
            case DeleteCheckpoint(record=record):
                self._background.submit(lambda: self._deleted(record))
            case AnnounceCommit(record=record, removed=removed):
                self._tell_all(CheckpointCommitted(record, removed))
                self._background.submit(self._journal_kept)
            case AnnounceRefusal(seq=seq, error=error, rank=rank):
                self._tell_all(CheckpointRefused(seq, error, rank))
            case StartValidation():
                assert self._validations is not None
                self._validations.start(command)
            case AnnounceValidation(record=record, removed=removed):
                self._tell_all(CheckpointValidated(record, removed))
            case AnnounceRemoval(removed=removed):
                self._tell_all(CheckpointsRemoved(removed))
            case HoldWorkers():
                self._tell_all(Hold())
            case StopWorkersAt():
                self._tell_all(self._stop_at(command))
            case StopWorkers(kill=kill):
                self._engine.stop(kill=kill)

    def _stop_at(self, command: StopWorkersAt) -> StopAt:
        told = command.preemption
        if told is None:
            return StopAt(command.seq, command.save)
        deadline = self._clock.wall() + told.deadline - self._clock.now()
        return StopAt(command.seq, command.save, Notice(told.ranks, deadline))

    def _tell_all(self, message: ToWorker) -> None:
        for rank in range(self.run.size):
            self._engine.send(rank, message)

    def _joined(self, event: Joined) -> None:
        if event.attempt == self.run.attempt:
            if self._watch is not None:
                self._watch.joined(event, self._clock.now())
            release = self._barriers.joined(event)
            if release is not None:
                self._tell_all(release)

    def _pass_order_on(self) -> None:
        order = self._orders.due(self.run) if self._orders is not None else None
        if order is not None:
            self._barriers.ordered()
            if self._watch is not None:
                self._watch.ordered(self._clock.now())
            self._tell_all(order)

    def _pass_reports_on(self) -> None:
        while self._passes:
            attempt, seq = self._passes.popleft()
            if attempt == self.run.attempt:
                self._tell_all(Proceed(seq))

    def _answered(self, said: Answered) -> None:
        if self._orders is not None and self._orders.answered(said, self.run):
            self._barriers.returned(said.rank)
            if self._watch is not None:
                self._watch.rests(said.rank, self._clock.now())

    def _told(self, observer: Observer, tell: Callable[[], None]) -> None:
        """One that raises is not told anything more."""
        try:
            tell()
        except (Exception, SystemExit):  # The latter from a `sys.exit()`, which is not a callback's to say.
            self._observers.remove(observer)
            who = getattr(observer, "name", type(observer).__name__)
            log.exception("%s raised and is dropped; training goes on", who)

    # These run on the storage thread.

    def _opening_kept(self) -> None:
        self._journal.sync_written()
        self._depot.sync()

    def _journal_kept(self) -> None:
        self._journal.sync_written()
        self._depot.ship_journal()

    def _verified(self, attempt: int, record: CheckpointRecord) -> Event:
        problem = self._depot.problem_with(record)
        if problem is None:
            return CheckpointVerified(attempt, record.seq)
        aside = self._depot.set_aside(record, self._fence)
        if aside is not None:
            problem = f"{problem}; set aside as {aside}"
        return CheckpointBroken(attempt, record.seq, problem)

    def _committed(self, command: CommitCheckpoint) -> Event:
        record = command.record
        try:
            differing = self._depot.commit(
                record,
                command.parts,
                world_size=self.run.size,
                created_at=self._clock.wall(),
                fence=self._fence,
            )
            # Asked again before anybody is told: a driver that takes over from here on finds the checkpoint.
            self._fence.check()
        except RunHeldError:
            raise
        except OSError as error:
            self._depot.discard(record)
            return CommitFailed(record.attempt, record.seq, f"{type(error).__name__}: {error}")
        if differing:
            log.warning(
                "%s: ranks wrote different contents to %s; the lowest rank's is kept",
                record.name,
                ", ".join(differing),
            )
        return Committed(record)

    def _stacks_written(self, path: Path, text: str) -> None:
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(path, "a", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
                file.write(text)
        except OSError as error:
            log.warning("the stacks of the workers could not be written to %s: %s", path, error)

    def _deleted(self, record: CheckpointRecord) -> None:
        try:
            self._depot.delete(record, self._fence)
        except RunHeldError:
            raise
        except OSError as error:
            log.warning("%s could not be deleted: %s", record.name, error)


def _show(observer: Observer, effective: list[tuple[Event, Run]]) -> None:
    for event, after in effective:
        observer.saw(event, after)
