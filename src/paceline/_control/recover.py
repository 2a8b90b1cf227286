"""How a driver finds a run: the journal played through `step`, completed by what else lies on storage.

There is no second way to restore. What the journal does not tell yet is turned into the events it would have told:
reports that a worker wrote to its own file but that no driver read, commits that were asked for but not answered,
checkpoints whose manifest exists while the line about them was torn or lost.
"""

import logging
from dataclasses import dataclass

from paceline._control import journal
from paceline._control.commands import CommitCheckpoint
from paceline._control.events import CheckpointsFound, CheckpointStaged, Committed, DriverStarted, Event, Reported
from paceline._control.journal import Journal
from paceline._control.run import Run, Running, Stopping
from paceline._control.step import InvalidTransition, step
from paceline._core.codec import valid_prefix
from paceline._core.errors import RunHeldError, StorageError
from paceline._storage.depot import Depot
from paceline._storage.layout import Layout
from paceline._storage.lease import UNFENCED, Fence

log = logging.getLogger("paceline")


@dataclass(frozen=True)
class Recovered:
    run: Run
    journal: Journal
    history: tuple[Event, ...]
    """Every event so far, those that recovery itself added included."""
    fence: Fence = UNFENCED


def replayed(history: list[Event]) -> tuple[Run, dict[int, CommitCheckpoint]]:
    """The run after these events, and the commits it asked for that no event answers."""
    run = Run()
    asked: dict[int, CommitCheckpoint] = {}
    for number, event in enumerate(history, start=1):
        try:
            run, commands = step(run, event)
        except (InvalidTransition, AssertionError, LookupError) as problem:
            raise StorageError(
                f"line {number} of the run's journal tells of what cannot have happened: {problem!s:.500}\n\n"
                "hint: move journal.jsonl away, and the run is rebuilt from the checkpoints that are there"
            ) from problem
        asked.update({c.record.seq: c for c in commands if isinstance(c, CommitCheckpoint)})
    return run, {seq: command for seq, command in asked.items() if seq in run.committing}


def recovered(depot: Depot, wall: float, fence: Fence = UNFENCED, *, apart: bool = False) -> Recovered:
    """Open a run for writing, whatever state the last driver left it in. The caller holds the lease.

    `apart`: an earlier driver may come back, and must not be able to write to this one's journal.
    """
    depot.recover(fence)
    book, history = journal.reopened(depot.layout.journal, fence, apart=apart)
    try:
        return _completed(depot, wall, fence, book, history)
    except BaseException:
        book.abandon()
        raise


def _completed(depot: Depot, wall: float, fence: Fence, book: Journal, history: list[Event]) -> Recovered:
    """Tell the journal what it does not tell yet, and undo what was left half done."""
    run, asked = replayed(history)

    def learn(event: Event) -> None:
        nonlocal run
        after, commands = step(run, event)
        if after is run:
            return
        run = after
        history.append(event)
        book.append(event)
        for command in commands:
            if isinstance(command, CommitCheckpoint):
                asked[command.record.seq] = command

    for event in _unread_reports(depot.layout, run):
        learn(event)
    _finish_commits(depot, run, asked, wall, fence)
    survey = _surveyed(depot, run, history)
    for record in run.checkpoints:
        if record.seq in survey.missing:
            log.warning("%s was committed and is gone, or its manifest is", depot.place(record)[0])
    learn(survey)
    _delete_forgotten(depot, run, fence)
    depot.clear_staging(fence)
    book.flush()
    return Recovered(run, book, tuple(history), fence)


def history_of(depot: Depot) -> tuple[Run, list[Event]]:
    """The run as it lies there, for readers: nothing is changed, and one that is being written can be read."""
    history = journal.told_by(depot.journal(), depot.uri)
    run, _ = replayed(history)
    for event in _unread_reports(depot.layout, run):
        after, _ = step(run, event)
        if after is not run:
            run = after
            history.append(event)
    survey = _surveyed(depot, run, history)
    return step(run, survey)[0], [*history, survey]


def _unread_reports(layout: Layout, run: Run) -> list[Event]:
    """What the workers of the last attempt wrote to files of their own; most of it is known already."""
    if not isinstance(run.phase, Running | Stopping):
        return []
    unread: list[Event] = []
    for rank in range(run.size):
        try:
            data = layout.reports(run.attempt, rank).read_bytes()
        except FileNotFoundError:
            continue
        for payload in valid_prefix(data):
            event = journal.decoded(payload, layout.reports(run.attempt, rank))
            if isinstance(event, Reported | CheckpointStaged):
                unread.append(event)
    return unread


def _finish_commits(depot: Depot, run: Run, asked: dict[int, CommitCheckpoint], wall: float, fence: Fence) -> None:
    """All ranks had said it and all files were durable: only the last act was missing."""
    for seq in run.committing:
        command = asked[seq]
        try:
            depot.commit(command.record, command.parts, world_size=run.size, created_at=wall, fence=fence)
        except RunHeldError:
            raise
        except OSError:
            continue  # Its files are gone or unreadable: it never became a checkpoint.


def _surveyed(depot: Depot, run: Run, history: list[Event]) -> CheckpointsFound:
    """Where storage and journal differ about what checkpoints there are."""
    told = {(event.record.seq, event.record.attempt) for event in history if isinstance(event, Committed)}
    for event in history:
        if isinstance(event, CheckpointsFound):
            told |= {(record.seq, record.attempt) for record in event.records}
    lease = next((event.lease for event in reversed(history) if isinstance(event, DriverStarted)), 0)
    untold = [m for m in depot.manifests() if (m.record.seq, m.record.attempt) not in told]
    # Too late: by a driver that was paused between asking whether the run is still its own and this last act.
    void = {manifest.record.name for manifest in untold if 0 < manifest.lease < lease}
    return CheckpointsFound(
        tuple(manifest.record for manifest in untold if manifest.record.name not in void),
        # One that is there but cannot be read stays: it is set aside, and said so, when its turn comes.
        tuple(r.seq for r in run.checkpoints if r.name in void or not depot.has(r)),
    )


def _delete_forgotten(depot: Depot, run: Run, fence: Fence) -> None:
    """Retention had decided on these and the driver died before it got to them; or they came too late to count."""
    kept = {(record.name, record.seq, record.attempt) for record in run.checkpoints}
    for manifest in depot.manifests():
        record = manifest.record
        if (record.name, record.seq, record.attempt) not in kept:
            depot.delete(record, fence)
