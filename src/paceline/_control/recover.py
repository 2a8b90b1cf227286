"""How a driver finds a run: the journal played through `step`, completed by what else lies on storage.

There is no second way to restore. What the journal does not tell yet is turned into the events it would have told:
reports that a worker wrote to its own file but that no driver read, commits that were asked for but not answered,
checkpoints whose manifest exists while the line about them was torn or lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline._control import journal
from paceline._control.commands import CommitCheckpoint, DeleteCheckpoint
from paceline._control.events import (
    CheckpointRecord,
    CheckpointsFound,
    CheckpointStaged,
    Committed,
    DriverStarted,
    Event,
    FileMade,
    Measured,
    Reported,
    TimeTold,
    WorkerReady,
)
from paceline._control.gathering import Gathering, Report
from paceline._control.journal import Journal
from paceline._control.run import Run, Running, Stopping
from paceline._control.step import InvalidTransition, step
from paceline._core.codec import valid_lines, valid_prefix
from paceline._core.errors import RunHeldError, StorageError
from paceline._engine.messages import Staged
from paceline._storage.layout import Layout
from paceline._storage.lease import UNFENCED, Fence

if TYPE_CHECKING:
    from paceline._storage.depot import Depot

log = logging.getLogger("paceline")


@dataclass(frozen=True)
class Recovered:
    run: Run
    journal: Journal
    history: tuple[Event, ...]
    """The events so far, those that recovery itself added included, but for reports."""
    fence: Fence = UNFENCED
    reported: Report | None = None
    """The last report of the run that still counts."""

    def reports_of_first(self) -> Iterator[Reported]:
        """What rank 0 reported so far, from the journal: there may be more than one wants to hold."""
        reading = journal.Reading(self.journal.path)
        return (event for event in reading if isinstance(event, Reported) and event.rank == 0)


class Replay:
    """A run as its events tell it, one after the other."""

    def __init__(self) -> None:
        self.run = Run()
        self.num_events = 0
        self._asked: dict[int, CommitCheckpoint] = {}
        self._told: set[tuple[int, int]] = set()
        self.given_up: dict[str, CheckpointRecord] = {}
        """By name, those that retention has had deleted: as far as the driver got to it."""
        self.lease = 0
        """The number of the last driver."""

    def hear(self, event: Event) -> bool:
        """Whether it changed anything."""
        self.num_events += 1
        try:
            after, commands = step(self.run, event)
        except (InvalidTransition, AssertionError, LookupError) as problem:
            raise StorageError(
                f"line {self.num_events} of the run's journal tells of what cannot have happened: {problem!s:.500}\n\n"
                "hint: move journal.jsonl away, and the run is rebuilt from the checkpoints that are there"
            ) from problem
        changed = after is not self.run
        self.run = after
        if isinstance(event, Committed):
            self.given_up.pop(event.record.name, None)
        for command in commands:
            if isinstance(command, CommitCheckpoint):
                self._asked[command.record.seq] = command
            elif isinstance(command, DeleteCheckpoint):
                self.given_up[command.record.name] = command.record
        if self._asked and len(self._asked) > len(after.committing):
            self._asked = {seq: self._asked[seq] for seq in after.committing}
        if type(event) is Reported:
            return changed  # Most are, and there may be millions.
        if isinstance(event, Committed):
            self._told.add((event.record.seq, event.record.attempt))
        elif isinstance(event, CheckpointsFound):
            self._told |= {(record.seq, record.attempt) for record in event.records}
        elif isinstance(event, DriverStarted):
            self.lease = event.lease
        return changed

    def unanswered(self) -> list[CommitCheckpoint]:
        """The commits that were asked for and that no event answers."""
        return [self._asked[seq] for seq in self.run.committing]

    def tells_of(self, record: CheckpointRecord) -> bool:
        return (record.seq, record.attempt) in self._told


def recovered(depot: Depot, wall: float, fence: Fence = UNFENCED, *, apart: bool = False) -> Recovered:
    """Open a run for writing, whatever state the last driver left it in. The caller holds the lease.

    `apart`: an earlier driver may come back, and must not be able to write to this one's journal.
    """
    depot.recover(fence)
    replay, history = Replay(), _History()
    reading = journal.Reading(depot.layout.journal)
    for event in reading:
        replay.hear(event)
        history.add(event)
    book = journal.reopened(reading, fence, apart=apart)
    try:
        return _completed(depot, wall, fence, book, replay, history)
    except BaseException:
        book.abandon()
        raise


class _History:
    """What is remembered of events. Of reports, of which there may be millions, the last one of rank 0."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.reported: Reported | None = None

    def add(self, event: Event) -> None:
        if type(event) is Reported:
            if event.rank == 0:
                self.reported = event
            return
        match event:
            case TimeTold() | Measured() | FileMade():
                return
            case WorkerReady(rank=rank) | CheckpointStaged(staged=Staged(rank=rank)) if rank != 0:
                return  # Of ten thousand workers one is enough to tell what came of them.
        self.events.append(event)

    def last_report(self, run: Run, again: Callable[[], Iterable[Event]]) -> Report | None:
        """The last one that still counts. `again` gives all events, for what is not remembered of it."""
        first = self.reported
        if first is not None and first.seq > run.num_reports:  # The run went back to a checkpoint before it.
            first = None
            for event in again():
                if isinstance(event, Reported) and event.rank == 0 and event.seq <= run.num_reports:
                    first = event
        if first is None or not first.reduce:
            return Report((first,)) if first is not None else None
        made = {
            event.rank: event
            for event in again()
            if isinstance(event, Reported) and (event.attempt, event.seq) == (first.attempt, first.seq) and event.reduce
        }
        return Report(tuple(made[rank] for rank in sorted(made)))


def _completed(depot: Depot, wall: float, fence: Fence, book: Journal, replay: Replay, history: _History) -> Recovered:
    """Tell the journal what it does not tell yet, and undo what was left half done."""

    def learn(event: Event) -> None:
        if replay.hear(event):
            book.append(event)
            history.add(event)

    for event in _unread_reports(depot.layout, replay.run):
        learn(event)
    _finish_commits(depot, replay, wall, fence)
    survey = surveyed(depot, replay)
    for record in replay.run.checkpoints:
        if record.seq in survey.missing:
            log.warning("%s was committed and is gone, or its manifest is", depot.place(record)[0])
    learn(survey)
    _delete_forgotten(depot, replay, fence)
    depot.clear_staging(fence)
    book.flush()
    reported = history.last_report(replay.run, lambda: journal.Reading(depot.layout.journal))
    return Recovered(replay.run, book, tuple(history.events), fence, reported)


def reports_so_far(layout: Layout) -> Iterator[Report]:
    """Every report of a run that was opened, one after the other; one that was made again comes again."""
    replay, gathering = Replay(), Gathering()
    for event in journal.Reading(layout.journal):
        replay.hear(event)
        yield from gathering.hear(event, replay.run)
    yield from gathering.rest()


def told(depot: Depot, replay: Replay) -> Iterator[Event]:
    """Every event of a run as it lies there, for readers, heard by `replay`: one after the other, and none is held.

    Nothing is changed, and a run that is being written can be read.
    """
    for line, payload in enumerate(valid_prefix(depot.journal()), start=1):
        event: Event = journal.decoded(payload, depot.uri, line)
        replay.hear(event)
        yield event
    for event in _unread_reports(depot.layout, replay.run):
        if replay.hear(event):
            yield event


def history_of(depot: Depot) -> tuple[Run, list[Event]]:
    """The run as it lies there, and all its events."""
    replay = Replay()
    history = list(told(depot, replay))
    survey = surveyed(depot, replay)
    return step(replay.run, survey)[0], [*history, survey]


def outline_of(depot: Depot) -> tuple[Run, list[Event], Report | None]:
    """The run as it lies there, its events but for reports, and the last report that counts."""
    replay, history = Replay(), _History()
    for event in told(depot, replay):
        history.add(event)
    survey = surveyed(depot, replay)
    run = step(replay.run, survey)[0]
    return run, [*history.events, survey], history.last_report(run, lambda: told(depot, Replay()))


def _unread_reports(layout: Layout, run: Run) -> Iterator[Event]:
    """What the workers of the last attempt wrote to files of their own; most of it is known already."""
    if not isinstance(run.phase, Running | Stopping):
        return
    for rank in range(run.size):
        path = layout.reports(run.attempt, rank)
        try:
            file = path.open("rb")
        except FileNotFoundError:
            continue
        with file:
            for payload in valid_lines(file):
                event = journal.decoded(payload, path)
                if isinstance(event, Reported | CheckpointStaged):
                    yield event


def _finish_commits(depot: Depot, replay: Replay, wall: float, fence: Fence) -> None:
    """All ranks had said it and all files were durable: only the last act was missing."""
    for command in replay.unanswered():
        try:
            depot.commit(command.record, command.parts, world_size=replay.run.size, created_at=wall, fence=fence)
        except RunHeldError:
            raise
        except OSError:
            continue  # Its files are gone or unreadable: it never became a checkpoint.


def surveyed(depot: Depot, replay: Replay) -> CheckpointsFound:
    """Where storage and journal differ about what checkpoints there are."""
    untold = [manifest for manifest in depot.manifests() if not replay.tells_of(manifest.record)]
    # Too late: by a driver that was paused between asking whether the run is still its own and this last act.
    void = {manifest.record.name for manifest in untold if 0 < manifest.lease < replay.lease}
    return CheckpointsFound(
        tuple(manifest.record for manifest in untold if manifest.record.name not in void),
        # One that is there but cannot be read stays: it is set aside, and said so, when its turn comes.
        tuple(r.seq for r in replay.run.checkpoints if r.name in void or not depot.has(r)),
    )


def _delete_forgotten(depot: Depot, replay: Replay, fence: Fence) -> None:
    """Retention had decided on these and the driver died before it got to them, or amid it; or they came too late."""
    kept = {(record.name, record.seq, record.attempt) for record in replay.run.checkpoints}
    for manifest in depot.manifests():
        record = manifest.record
        if (record.name, record.seq, record.attempt) not in kept:
            depot.delete(record, fence)
    # A manifest goes first, so what is left of one shows as a directory without. Others of that kind are the user's.
    for name in sorted(depot.without_manifest() & replay.given_up.keys()):
        depot.delete(replay.given_up[name], fence)
