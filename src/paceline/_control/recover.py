"""How a driver finds a run: the journal played through `step`, completed by what else lies on storage.

There is no second way to restore. What the journal does not tell yet is turned into the events it would have told:
reports that a worker wrote to its own file but that no driver read, commits that were asked for but not answered,
checkpoints whose manifest exists while the line about them was torn or lost.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from paceline._control import journal
from paceline._control.commands import CommitCheckpoint
from paceline._control.events import (
    CheckpointRecord,
    CheckpointsFound,
    CheckpointStaged,
    Committed,
    DriverStarted,
    Event,
    Reported,
    WorkerReady,
)
from paceline._control.gathering import Gathering, Report
from paceline._control.journal import Journal
from paceline._control.run import Run, Running, Stopping
from paceline._control.step import InvalidTransition, step
from paceline._core.codec import valid_lines
from paceline._core.errors import RunHeldError, StorageError
from paceline._engine.messages import Staged
from paceline._storage.depot import Depot
from paceline._storage.layout import Layout
from paceline._storage.lease import UNFENCED, Fence

log = logging.getLogger("paceline")


@dataclass(frozen=True)
class Recovered:
    run: Run
    journal: Journal
    history: tuple[Event, ...]
    """The events so far, those that recovery itself added included, but for what other ranks than 0 reported."""
    fence: Fence = UNFENCED
    reported: Report | None = None
    """The last report of the run that still counts."""


class Replay:
    """A run as its events tell it, one after the other."""

    def __init__(self) -> None:
        self.run = Run()
        self.num_events = 0
        self._asked: dict[int, CommitCheckpoint] = {}
        self._told: set[tuple[int, int]] = set()
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
        for command in commands:
            if isinstance(command, CommitCheckpoint):
                self._asked[command.record.seq] = command
        if len(self._asked) > len(after.committing):
            self._asked = {seq: self._asked[seq] for seq in after.committing}
        if isinstance(event, Committed):
            self._told.add((event.record.seq, event.record.attempt))
        elif isinstance(event, CheckpointsFound):
            self._told |= {(record.seq, record.attempt) for record in event.records}
        elif isinstance(event, DriverStarted):
            self.lease = event.lease
        changed = after is not self.run
        self.run = after
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
    replay, history = Replay(), []
    reading = journal.Reading(depot.layout.journal)
    for event in reading:
        replay.hear(event)
        if _is_remembered(event):
            history.append(event)
    book = journal.reopened(reading, fence, apart=apart)
    try:
        return _completed(depot, wall, fence, book, replay, history)
    except BaseException:
        book.abandon()
        raise


def _is_remembered(event: Event) -> bool:
    """Of ten thousand workers the reports of one are enough to tell what came of them."""
    match event:
        case Reported(rank=rank) | WorkerReady(rank=rank) | CheckpointStaged(staged=Staged(rank=rank)):
            return rank == 0
    return True


def _completed(
    depot: Depot, wall: float, fence: Fence, book: Journal, replay: Replay, history: list[Event]
) -> Recovered:
    """Tell the journal what it does not tell yet, and undo what was left half done."""

    def learn(event: Event) -> None:
        if replay.hear(event):
            book.append(event)
            if _is_remembered(event):
                history.append(event)

    for event in _unread_reports(depot.layout, replay.run):
        learn(event)
    _finish_commits(depot, replay, wall, fence)
    survey = _surveyed(depot, replay)
    for record in replay.run.checkpoints:
        if record.seq in survey.missing:
            log.warning("%s was committed and is gone, or its manifest is", depot.place(record)[0])
    learn(survey)
    _delete_forgotten(depot, replay.run, fence)
    depot.clear_staging(fence)
    book.flush()
    reported = _last_report(depot.layout, replay.run, history)
    return Recovered(replay.run, book, tuple(history), fence, reported)


def _last_report(layout: Layout, run: Run, history: list[Event]) -> Report | None:
    first = next((e for e in reversed(history) if isinstance(e, Reported) and e.seq <= run.num_reports), None)
    if first is None or not first.reduce:
        return Report((first,)) if first is not None else None
    made = {
        event.rank: event
        for event in journal.Reading(layout.journal)
        if isinstance(event, Reported) and (event.attempt, event.seq) == (first.attempt, first.seq) and event.reduce
    }
    return Report(tuple(made[rank] for rank in sorted(made)))


def reports_so_far(layout: Layout) -> Iterator[Report]:
    """Every report of a run that was opened, one after the other; one that was made again comes again."""
    replay, gathering = Replay(), Gathering()
    for event in journal.Reading(layout.journal):
        replay.hear(event)
        yield from gathering.hear(event, replay.run)
    yield from gathering.rest()


def history_of(depot: Depot) -> tuple[Run, list[Event]]:
    """The run as it lies there, for readers: nothing is changed, and one that is being written can be read."""
    replay = Replay()
    history = journal.told_by(depot.journal(), depot.uri)
    for event in history:
        replay.hear(event)
    history += [event for event in _unread_reports(depot.layout, replay.run) if replay.hear(event)]
    survey = _surveyed(depot, replay)
    return step(replay.run, survey)[0], [*history, survey]


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


def _surveyed(depot: Depot, replay: Replay) -> CheckpointsFound:
    """Where storage and journal differ about what checkpoints there are."""
    untold = [manifest for manifest in depot.manifests() if not replay.tells_of(manifest.record)]
    # Too late: by a driver that was paused between asking whether the run is still its own and this last act.
    void = {manifest.record.name for manifest in untold if 0 < manifest.lease < replay.lease}
    return CheckpointsFound(
        tuple(manifest.record for manifest in untold if manifest.record.name not in void),
        # One that is there but cannot be read stays: it is set aside, and said so, when its turn comes.
        tuple(r.seq for r in replay.run.checkpoints if r.name in void or not depot.has(r)),
    )


def _delete_forgotten(depot: Depot, run: Run, fence: Fence) -> None:
    """Retention had decided on these and the driver died before it got to them; or they came too late to count."""
    kept = {(record.name, record.seq, record.attempt) for record in run.checkpoints}
    for manifest in depot.manifests():
        record = manifest.record
        if (record.name, record.seq, record.attempt) not in kept:
            depot.delete(record, fence)
