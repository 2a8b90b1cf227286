"""The loop: take events, let `step` decide, write them down, carry the commands out.

It holds the things that act (engine, journal, storage thread) and decides nothing. An event is in the journal before
what follows from it is done; one that changes nothing is not written. Observers are told afterwards, and one that
raises is dropped.
"""

import logging
import os
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from paceline._control.background import Background
from paceline._control.barriers import Barriers
from paceline._control.commands import (
    AnnounceCommit,
    AnnounceRefusal,
    Command,
    CommitCheckpoint,
    DeleteCheckpoint,
    HoldWorkers,
    StartWorkers,
    StopWorkers,
    StopWorkersAt,
    VerifyCheckpoint,
)
from paceline._control.events import (
    CheckpointBroken,
    CheckpointVerified,
    CommitFailed,
    Committed,
    DeadlinePassed,
    Event,
    StopRequested,
    WorkerFailed,
    WorkerReturned,
)
from paceline._control.hangs import Ask, Told, Watch
from paceline._control.journal import Journal
from paceline._control.run import Finished, Run, Running
from paceline._control.step import deadline, step
from paceline._core.clock import Clock
from paceline._engine.base import Engine, Group
from paceline._engine.messages import (
    CheckpointCommitted,
    CheckpointRecord,
    CheckpointRefused,
    Hold,
    Joined,
    Sample,
    Sampled,
    StopAt,
    ToWorker,
)
from paceline._storage import commit
from paceline._storage.files import Files
from paceline._storage.layout import Layout

log = logging.getLogger("paceline")

TICK_S = 0.1
SYNC_EVERY_S = 1.0


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
        files: Files,
        layout: Layout,
        group: Callable[[StartWorkers, Run], Group],
        clock: Clock,
        watch: Watch | None = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        self.run = run
        self._journal = journal
        self._engine = engine
        self._files = files
        self._layout = layout
        self._group = group
        self._clock = clock
        self._watch = watch
        """None: nobody minds how long a rank says nothing, as where a person debugs it."""
        self._observers = list(observers)
        self._inbox: deque[Event] = deque()
        self._synced_at = clock.now()
        self._barriers = Barriers(run.size)
        self._background = Background(engine.wake)

    def drive(self, first: Event) -> Run:
        """Play the run from its first event to its end."""
        try:
            self._take([first])
            while not isinstance(self.run.phase, Finished):
                self._take(self._next_events())
                if (told := self._watched()) is not None:
                    self._take([told])
                self._sync_journal_now_and_then()
                for observer in list(self._observers):
                    self._told(observer, partial(observer.tick, self.run, self._clock.now()))
        finally:
            self._background.close()
            self._take(self._background.taken())
            self._journal.sync()
        return self.run

    def request_stop(self, *, now: bool) -> None:
        """Ask the run to end, at the next report or at once. For signal handlers and other threads."""
        self._inbox.append(StopRequested(self.run.attempt, now))
        self._engine.wake()

    def _sync_journal_now_and_then(self) -> None:
        """A power cut costs no more than the metrics of the last second; nobody waits for the disk."""
        now = self._clock.now()
        if self._journal.unsynced and now - self._synced_at >= SYNC_EVERY_S:
            self._synced_at = now
            self._journal.unsynced = False
            self._background.submit(self._journal.sync_written)

    def _next_events(self) -> list[Event]:
        due = deadline(self.run)
        wait_s = TICK_S if due is None else max(0.0, min(TICK_S, due - self._clock.now()))
        said = self._engine.wait(0.0 if self._inbox else wait_s)
        events: list[Event] = []
        for message in said:
            if isinstance(message, Joined):
                self._joined(message)
            elif isinstance(message, Sampled):
                if self._watch is not None and message.attempt == self.run.attempt:
                    self._watch.sampled(message, self._clock.now())
            else:
                events.append(message)
            if isinstance(message, WorkerReturned):
                self._barriers.returned(message.rank)
        if isinstance(self.run.phase, Running):
            mismatch = self._barriers.mismatch(self._clock.wall())
            if mismatch is not None:
                events.append(WorkerFailed(self.run.attempt, mismatch.rank, mismatch))
        events += self._background.taken()
        while self._inbox:
            events.append(self._inbox.popleft())
        if due is not None and self._clock.now() >= due:
            events.append(DeadlinePassed(self.run.attempt))
        return events

    def _watched(self) -> Event | None:
        """Ask the ranks what they do, or say that they hang, when it is time for that."""
        if self._watch is None:
            return None
        now = self._clock.now()
        match self._watch.tick(self.run, now, self._clock.wall()):
            case Ask(number=number, unanswered=unanswered):
                for rank in unanswered:
                    self._watch.found(rank, self._engine.condition(rank), now)
                self._tell_all(Sample(number))
            case Told(event=event, stacks=stacks):
                if stacks:
                    path = self._layout.stacks(self.run.attempt)
                    self._background.submit(lambda: self._stacks_written(path, stacks))
                return event
        return None

    def _take(self, events: list[Event]) -> None:
        commands: list[Command] = []
        effective: list[tuple[Event, Run]] = []
        now = self._clock.now()
        for event in events:
            if isinstance(event, StopRequested):
                # Meant for whichever attempt is under way when its turn comes.
                event = StopRequested(self.run.attempt, event.now)
            after, more = step(self.run, event, now)
            if after is self.run and not more:
                continue
            self.run = after
            self._journal.append(event)
            if self._watch is not None:
                self._watch.saw(event, now)
            effective.append((event, after))
            commands += more
        self._journal.flush()
        for command in commands:
            self._carry_out(command)
        for observer in list(self._observers):
            for event, after in effective:
                self._told(observer, partial(observer.saw, event, after))

    def _carry_out(self, command: Command) -> None:
        match command:
            case VerifyCheckpoint(attempt=attempt, record=record):
                self._background.submit(lambda: self._verified(attempt, record))
            case StartWorkers():
                self._barriers = Barriers(command.size)
                if self._watch is not None:
                    self._watch.began(command.size, self._clock.now())
                self._engine.start(self._group(command, self.run))
            case CommitCheckpoint():
                self._background.submit(lambda: self._committed(command))
            case DeleteCheckpoint(record=record):
                self._background.submit(lambda: self._deleted(record))
            case AnnounceCommit(record=record, removed=removed):
                self._tell_all(CheckpointCommitted(record, removed))
                self._background.submit(self._journal.sync_written)
            case AnnounceRefusal(seq=seq, error=error):
                self._tell_all(CheckpointRefused(seq, error))
            case HoldWorkers():
                self._tell_all(Hold())
            case StopWorkersAt(seq=seq):
                self._tell_all(StopAt(seq))
            case StopWorkers(kill=kill):
                self._engine.stop(kill=kill)

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

    def _told(self, observer: Observer, tell: Callable[[], None]) -> None:
        try:
            tell()
        except Exception:
            self._observers.remove(observer)
            log.exception("%s raised and is dropped; training goes on", type(observer).__name__)

    # These run on the storage thread.

    def _verified(self, attempt: int, record: CheckpointRecord) -> Event:
        problem = commit.problem_with(self._layout.checkpoint(record.name))
        if problem is None:
            return CheckpointVerified(attempt, record.seq)
        if self._layout.checkpoint(record.name).exists():
            aside = commit.set_aside(self._files, self._layout, record.name)
            problem = f"{problem}; set aside as {aside}"
        return CheckpointBroken(attempt, record.seq, problem)

    def _committed(self, command: CommitCheckpoint) -> Event:
        record = command.record
        try:
            differing = commit.commit(
                self._files,
                self._layout,
                record,
                command.parts,
                world_size=self.run.size,
                created_at=self._clock.wall(),
            )
        except OSError as error:
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
            commit.delete(self._files, self._layout, record)
        except OSError as error:
            log.warning("%s could not be deleted: %s", record.name, error)
