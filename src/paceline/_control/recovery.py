"""Restores a run for a new driver: replays the journal through `step` and adds what else is on storage.

There is no second way to restore. What is missing in the journal is turned into the events it would have had: reports
that a worker wrote to its own file but no driver read, commits that were requested but not answered, and checkpoints
whose manifest exists while their line in the journal was torn or lost. A journal that is lost as a whole is rebuilt
from the workers' files and the manifests.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec

from paceline._control import events, journal
from paceline._control.commands import CommitCheckpoint
from paceline._control.events import CheckpointRecord, Committed, Event, Reported
from paceline._control.journal import Journal
from paceline._control.journal_snapshot import EventHistory, read_snapshot
from paceline._control.report_aggregator import ReportAggregator, RunReport
from paceline._control.run import Run, Running, Stopping
from paceline._control.step import InvalidTransition, step
from paceline._core.codec import valid_lines, valid_prefix
from paceline._core.errors import RunHeldError, StorageError
from paceline._storage.commit import iter_manifests
from paceline._storage.lease import UNFENCED, Fence
from paceline._storage.run_layout import RunLayout, checkpoint_name
from paceline._storage.run_store import DiskRunStore, RunStore

log = logging.getLogger("paceline")

_UNREAD_STEP_BYTES = 2 << 20
_MAX_LINES_TRIED = 100
"""Among how many lines to look for a report: most are."""


@dataclass(frozen=True)
class RecoveredRun:
    run: Run
    journal: Journal
    history: tuple[Event, ...]
    """The events so far without reports, including those that recovery added."""
    fence: Fence = UNFENCED
    last_report: RunReport | None = None
    """The last report of the run that still counts."""
    last_rank_0_report: Reported | None = None
    """The last report of rank 0, even if it does not count."""

    def iter_rank_0_reports(self) -> Iterator[Reported]:
        """Yield the reports of rank 0 from the journal: there may be too many to keep in memory."""
        reading = journal.JournalReader(self.journal.path)
        return (event for event in reading if isinstance(event, Reported) and event.rank == 0)


class RunReplay:
    """Rebuilds a run from its events, one at a time."""

    def __init__(self) -> None:
        self.run = Run()
        self.num_events = 0
        self._requested_commits: dict[int, CommitCheckpoint] = {}
        self._known_records: set[tuple[int, int]] = set()
        self.lease = 0
        """The fencing token of the last driver."""

    def apply_event(self, event: Event) -> bool:
        """Return whether the event changed anything."""
        self.num_events += 1
        try:
            after, commands = step(self.run, event)
        except (InvalidTransition, AssertionError, LookupError) as problem:
            raise StorageError(
                f"line {self.num_events} of the run's journal contradicts the lines before it: {problem!s:.500}\n\n"
                "hint: move journal.jsonl away; the run is then rebuilt from its checkpoints"
            ) from problem
        changed = after is not self.run
        self.run = after
        for command in commands:
            if isinstance(command, CommitCheckpoint):
                self._requested_commits[command.record.seq] = command
        if self._requested_commits and len(self._requested_commits) > len(after.committing):
            self._requested_commits = {seq: self._requested_commits[seq] for seq in after.committing}
        if type(event) is not Reported:  # Most events are reports, and there may be millions.
            self._note_records(event)
        return changed

    def restore(self, run: Run, history: Iterable[Event], num_events: int) -> None:
        """Continue from a snapshot: a run, and its events without reports."""
        self.run, self.num_events = run, num_events
        for event in history:
            self._note_records(event)

    def _note_records(self, event: Event) -> None:
        if isinstance(event, Committed):
            self._known_records.add((event.record.seq, event.record.attempt))
        elif isinstance(event, events.CheckpointsFound):
            self._known_records |= {(record.seq, record.attempt) for record in event.records}
        elif isinstance(event, events.DriverStarted):
            self.lease = event.lease

    def unanswered_commits(self) -> list[CommitCheckpoint]:
        """The commits that were requested and that no event answers."""
        return [self._requested_commits[seq] for seq in self.run.committing]

    def has_record(self, record: CheckpointRecord) -> bool:
        return (record.seq, record.attempt) in self._known_records


def recover_run(store: RunStore, wall: float, fence: Fence = UNFENCED, *, in_new_file: bool = False) -> RecoveredRun:
    """Open a run for writing, whatever state the last driver left it in. The caller holds the lease.

    `in_new_file`: an earlier driver may come back, and must not be able to write to this driver's journal.
    """
    if store.is_blank():
        journal_file = journal.reopen_journal(journal.JournalReader(store.layout.journal), fence)
        return RecoveredRun(Run(), journal_file, (), fence)
    store.recover(fence)
    replay, history, reading = replay_journal(store.layout)
    if not replay.num_events:
        _secure_damaged_checkpoints(store, fence)
    journal_file = journal.reopen_journal(reading, fence, in_new_file=in_new_file)
    try:
        return _complete_recovery(store, wall, fence, journal_file, replay, history)
    except BaseException:
        journal_file.abandon()
        raise


def replay_journal(layout: RunLayout) -> tuple[RunReplay, EventHistory, journal.JournalReader]:
    """Replay a journal on this machine, from a snapshot if one fits; return its reader, too, which is at the end."""
    replay, history, reading = RunReplay(), EventHistory(), journal.JournalReader(layout.journal)
    if (snapshot := read_snapshot(layout)) is not None:
        history = snapshot.restore_history()
        replay.restore(snapshot.restore_run(), history.events, snapshot.num_lines)
        reading = journal.JournalReader(layout.journal, length=snapshot.length, num_lines=snapshot.num_lines)
    for event in reading:
        replay.apply_event(event)
        history.add(event)
    return replay, history, reading


def _find_last_report(history: EventHistory, run: Run, read_events: Callable[[], Iterable[Event]]) -> RunReport | None:
    """The last report that still counts. `read_events` yields all events, to find what was not kept."""
    first = history.last_rank_0_report
    if first is not None and first.seq > run.num_reports:  # The run went back to an earlier checkpoint.
        first = None
        for event in read_events():
            if isinstance(event, Reported) and event.rank == 0 and event.seq <= run.num_reports:
                first = event
    if first is None or not first.reduce:
        return RunReport((first,)) if first is not None else None
    reports = {
        event.rank: event
        for event in read_events()
        if isinstance(event, Reported) and (event.attempt, event.seq) == (first.attempt, first.seq) and event.reduce
    }
    return RunReport(tuple(reports[rank] for rank in sorted(reports)))


def _complete_recovery(
    store: RunStore, wall: float, fence: Fence, journal_file: Journal, replay: RunReplay, history: EventHistory
) -> RecoveredRun:
    """Add what is missing in the journal, and clean up unfinished work."""

    def add_event(event: Event) -> None:
        if replay.apply_event(event):
            journal_file.append(event)
            history.add(event)

    if is_lost := not replay.num_events:
        for event in rebuild_events(store):
            if isinstance(event, events.Timestamp):
                journal_file.append(event)
            add_event(event)
    for event in _unread_reports(store.layout, replay.run):
        add_event(event)
    _finish_commits(store, replay, wall, fence)
    survey = survey_checkpoints(store, replay)
    # A driver that died after the rename of a commit may not have synced it. What it replaces is deleted below.
    for record in (*survey.records, *(replay.run.checkpoints if is_lost else ())):
        store.sync_checkpoint(record)
    for record in replay.run.checkpoints:
        if record.seq in survey.missing:
            log.warning("%s was committed, but it or its manifest is missing", store.locate_checkpoint(record)[0])
    add_event(survey)
    _delete_forgotten(store, replay, fence)
    store.clear_staging(fence)
    journal_file.flush()
    reported = _find_last_report(history, replay.run, lambda: journal.JournalReader(store.layout.journal))
    last = history.last_rank_0_report
    return RecoveredRun(replay.run, journal_file, tuple(history.events), fence, reported, last)


def iter_reports_so_far(
    layout: RunLayout, on_event: Callable[[Event], None] = lambda event: None
) -> Iterator[RunReport]:
    """Yield every report of an opened run; repeated reports are yielded again. `on_event` gets each event."""
    replay, aggregator = RunReplay(), ReportAggregator()
    for event in journal.JournalReader(layout.journal):
        replay.apply_event(event)
        yield from aggregator.add_event(event, replay.run)
        on_event(event)
    yield from aggregator.flush()


def _iter_journal(store: RunStore) -> Iterator[Event]:
    if isinstance(store, DiskRunStore):
        yield from journal.JournalReader(store.layout.journal)
        return
    for line, payload in enumerate(valid_prefix(store.read_journal()), start=1):
        yield journal.decode_line(payload, store.uri, line)


def replay_events(store: RunStore, replay: RunReplay) -> Iterator[Event]:
    """Yield every event of a run for readers and apply it to `replay`, without keeping any.

    Changes nothing, and can read a run that is being written.
    """
    for event in _iter_journal(store):
        replay.apply_event(event)
        yield event
    yield from add_missing_events(store, replay)


def add_missing_events(store: RunStore, replay: RunReplay) -> Iterator[Event]:
    """Apply and yield what the journal does not have."""
    if not replay.num_events:
        for event in rebuild_events(store):
            if replay.apply_event(event) or isinstance(event, events.Timestamp):
                yield event
    for event in _unread_reports(store.layout, replay.run):
        if replay.apply_event(event):
            yield event


def load_history(store: RunStore) -> tuple[Run, list[Event]]:
    """Load the run, read-only, and all its events."""
    replay = RunReplay()
    history = list(replay_events(store, replay))
    survey = survey_checkpoints(store, replay)
    return step(replay.run, survey)[0], [*history, survey]


def load_outline(store: RunStore) -> tuple[Run, list[Event], RunReport | None]:
    """Load the run, read-only, its events without reports, and the last report that counts."""
    if isinstance(store, DiskRunStore):
        replay, history, _ = replay_journal(store.layout)
        for event in add_missing_events(store, replay):
            history.add(event)
    else:
        replay, history = RunReplay(), EventHistory()
        for event in replay_events(store, replay):
            history.add(event)
    survey = survey_checkpoints(store, replay)
    run = step(replay.run, survey)[0]
    last_report = _find_last_report(history, run, lambda: replay_events(store, RunReplay()))
    return run, [*history.events, survey], last_report


def _unread_reports(layout: RunLayout, run: Run) -> Iterator[Event]:
    """Reports from the files of the last attempt's workers; most of them are known already."""
    if not isinstance(run.phase, Running | Stopping):
        return
    for rank in range(run.size):
        path = layout.reports(run.attempt, rank)
        try:
            file = path.open("rb")
        except FileNotFoundError:
            continue
        with file:
            _skip_known_reports(file, path, run.phase, rank)
            for payload in valid_lines(file):
                event = journal.decode_line(payload, path)
                if isinstance(event, Reported | events.CheckpointStaged):
                    yield event


def _skip_known_reports(file: BinaryIO, path: Path, phase: Running | Stopping, rank: int) -> None:
    """Go to a line of a worker's file before the first one that the journal does not have.

    The journal has the lines in nearly the same order: two threads of a worker may write and send in another one.
    """
    live = phase.running if isinstance(phase, Stopping) else phase
    size = at = file.seek(0, os.SEEK_END)
    while at > 0:
        at = max(0, at - _UNREAD_STEP_BYTES)
        file.seek(at)
        if at > 0:
            file.readline()
        lines = valid_lines(itertools.islice(file, _MAX_LINES_TRIED))
        tried = (journal.decode_line(payload, path) for payload in lines)
        first = next((event.seq for event in tried if isinstance(event, Reported)), math.inf)
        if size - at >= 2 * _UNREAD_STEP_BYTES and first <= live.progress[rank]:
            at = max(0, at - _UNREAD_STEP_BYTES)
            break
    file.seek(at)
    if at > 0:
        file.readline()


_ATTEMPT = re.compile(r"attempt_(\d{1,9})")
_RANK_FILE = re.compile(r"rank_(\d{1,9})\.jsonl")


def has_lost_journal(directory: Path) -> bool:
    """Whether this is the directory of a run on a disk whose journal is lost: it has reports or checkpoints."""
    layout = RunLayout(directory)
    return layout.lease.is_dir() and (
        bool(_list_numbered(layout.root / "reports", _ATTEMPT)) or any(iter_manifests(layout))
    )


def rebuild_events(store: RunStore) -> Iterator[Event]:
    """Yield the events of a lost journal, as far as the workers' files and the manifests have them.

    Each attempt begins as if a new driver had started it, from the checkpoint before its first report. That one may be
    deleted by now: the last event says which checkpoints there are.
    """
    records = {manifest.record.seq: manifest.record for manifest in store.list_manifests()}
    number, begun_from = 0, 0
    for attempt, directory in _list_numbered(store.layout.root / "reports", _ATTEMPT):
        files = _list_numbered(directory, _RANK_FILE)
        reports = heapq.merge(*(_iter_reports(path) for _, path in files), key=lambda event: (event.seq, event.rank))
        first = next(reports, None)
        if first is None:
            continue
        started = events.DriverStarted(files[-1][0] + 1, 0)
        while (number := number + 1) < attempt:
            yield started  # An attempt without reports.
        seq = first.seq - 1
        if seq != begun_from:
            lost = CheckpointRecord(seq, checkpoint_name(seq), attempt - 1, msgspec.Raw(b"{}"))
            yield events.CheckpointsFound((records.get(seq, lost),) if seq else (), (begun_from,))
            begun_from = seq
        yield events.Timestamp(first.at)
        yield started
        if seq:
            yield events.CheckpointVerified(attempt, seq)
        for report in itertools.chain([first], reports):
            yield msgspec.structs.replace(report, checkpoint=None, validation=None)
    yield events.CheckpointsFound(tuple(records.values()), () if begun_from in records else (begun_from,))


def _iter_reports(path: Path) -> Iterator[Reported]:
    with path.open("rb") as file:
        for payload in valid_lines(file):
            event = journal.decode_line(payload, path)
            if isinstance(event, Reported):
                yield event


def _list_numbered(directory: Path, pattern: re.Pattern[str]) -> list[tuple[int, Path]]:
    try:
        found = [(pattern.fullmatch(path.name), path) for path in directory.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted((int(match[1]), path) for match, path in found if match is not None)


def _secure_damaged_checkpoints(store: RunStore, fence: Fence) -> None:
    """Without a journal, nothing tells which directories are checkpoints: none may be overwritten."""
    damaged = store.find_damaged()
    if not damaged:
        return
    if not store.list_manifests():
        raise StorageError(
            f"{store.uri} has no journal, and its checkpoints have no valid manifest: {', '.join(damaged[:5])}"
            f"{f' and {len(damaged) - 5} more' if len(damaged) > 5 else ''}. A new run would overwrite them\n\n"
            "hint: restore journal.jsonl or the manifests from a copy, or use another RunConfig(name=...); "
            "resume_from_checkpoint=Checkpoint.from_directory(...) starts from such a directory"
        )
    for name in damaged:
        record = CheckpointRecord(0, name, 0, msgspec.Raw(b"{}"))
        if (quarantine_path := store.quarantine(record, fence)) is not None:
            log.warning("%s has no valid manifest; moved to %s", name, quarantine_path)


def _finish_commits(store: RunStore, replay: RunReplay, wall: float, fence: Fence) -> None:
    """Finish commits for which all ranks had reported and all files were durable."""
    for command in replay.unanswered_commits():
        try:
            store.commit(command.record, command.parts, world_size=replay.run.size, created_at=wall, fence=fence)
            store.remove_replaced(command.record, fence)
        except RunHeldError:
            raise
        except OSError:
            continue  # Its files are gone or unreadable: it never became a checkpoint.


def survey_checkpoints(store: RunStore, replay: RunReplay) -> events.CheckpointsFound:
    """Find where storage and journal disagree about the checkpoints."""
    unknown = [manifest for manifest in store.list_manifests() if not replay.has_record(manifest.record)]
    # Written too late, by a driver that was paused between its last fence check and the commit.
    # By location: on a disk it took the place of a checkpoint of its name, in a store each attempt has its own.
    void = {store.checkpoint_uri(manifest.record) for manifest in unknown if 0 < manifest.lease < replay.lease}
    return events.CheckpointsFound(
        tuple(manifest.record for manifest in unknown if store.checkpoint_uri(manifest.record) not in void),
        # A checkpoint that exists but cannot be read stays: it is set aside, with a message, when it is verified.
        tuple(r.seq for r in replay.run.checkpoints if store.checkpoint_uri(r) in void or not store.has_checkpoint(r)),
    )


def _delete_forgotten(store: RunStore, replay: RunReplay, fence: Fence) -> None:
    """Delete what retention had selected before the driver died, and commits that came too late."""
    kept = {(record.name, record.seq, record.attempt) for record in replay.run.checkpoints}
    for manifest in store.list_manifests():
        record = manifest.record
        if (record.name, record.seq, record.attempt) not in kept:
            store.delete(record, fence)
