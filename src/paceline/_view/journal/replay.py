"""Replays a run's journal: its state as a driver would find it, its reports, its history and its usage.

The state is what `Replay` makes of all events. Most lines are reports that contain only metrics. Of those, `step` gets
only the ones with a lasting effect: the last of each rank, and those that some rank or checkpoint waits for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from operator import lt
from pathlib import Path

import msgspec
from msgspec.structs import replace

from paceline._control import events, journal
from paceline._control.events import Event, Reported, WorkerReturned
from paceline._control.recovery import RunReplay
from paceline._control.report_aggregator import ReportAggregator, RunReport
from paceline._control.run import NUM_RECENT_METRICS, RankProgress, Run, Running, Stopping
from paceline._core.cursor import Cursors, count_dataset_epochs
from paceline._core.errors import StorageError
from paceline._core.reductions import Path as MetricPath
from paceline._core.reductions import Reduction
from paceline._storage.journal_archive import ARCHIVE_PREFIX, decode_archive, iter_archived_blocks
from paceline._view.history import RunHistory
from paceline._view.journal.lines import ABSENT, EventLine, JournalLines, ReportLine, decode_journal_lines
from paceline._view.journal.report_table import ReportTable
from paceline._view.journal.usage import UsageHistory
from paceline._view.pace import WINDOW_S
from paceline._view.projection import RunProjection

_MAX_DEFERRED = 10_000
_MAX_POSITIONS = 50


class JournalReplay:
    def __init__(self, uri: str, path: Path | None = None) -> None:
        """`uri`: the journal's location, for messages about invalid lines. `path`: its file, if it is on a disk."""
        self._path = path
        self.replay = RunReplay()
        self.reports = ReportTable()
        self.projection = RunProjection()
        self.usage = UsageHistory()
        self.problem: str | None = None
        """Why lines were skipped from some point on."""
        self.num_lines = 0
        self._uri = uri
        self._at = 0.0
        self._aggregator: ReportAggregator | None = None
        """Set once a rank has reported a metric to be reduced."""
        self._skipped: dict[int, tuple[int, bytes]] = {}
        """By rank, the last report that `step` did not get: number and payload."""
        self._skipped_of_rank_0: deque[tuple[int, bytes]] = deque(maxlen=NUM_RECENT_METRICS)
        """The same for rank 0, as many as a checkpoint may refer to."""
        self._skipped_awaited: dict[int, bytes] = {}
        """Also for rank 0: reports that a checkpoint waits for, by number."""
        self._skipped_positions: list[tuple[int, int, bytes]] = []
        """Number, rank and payload of reports with dataset positions that some rank has not reached yet."""
        self._positions: deque[tuple[float, int, int, Cursors | msgspec.Raw]] = deque(maxlen=_MAX_POSITIONS)
        """Time, attempt, number and dataset positions of the last reports of rank 0, or a sample if they are many."""
        self._first_seq: int | None = None
        self._deferred: list[Reported] = []
        """The same once something is reduced: all of them, in order."""
        self._deferred_seqs: dict[int, int] = {}
        """By rank, the number of the last deferred report."""
        self._returned: list[WorkerReturned] = []
        """Workers of the current attempt that have returned."""

    def restore(self, run: Run, past: Sequence[Event], num_lines: int, at: float) -> None:
        """Continue from a snapshot, with the events but for reports."""
        self.replay.restore(run, past, num_lines)
        self.num_lines, self._at = num_lines, at
        for event in past:
            if isinstance(event, events.RunDescribed):
                self.projection.add_event(event, run, run, at)

    def restore_positions(self, positions: Iterable[tuple[float, int, int, msgspec.Raw]]) -> None:
        self._positions.extend(positions)

    def list_positions(self) -> Iterator[tuple[float, int, int, msgspec.Raw]]:
        for at, attempt, seq, positions in self._positions:
            yield at, attempt, seq, positions if isinstance(positions, msgspec.Raw) else _encode_positions(positions)

    @property
    def run(self) -> Run:
        """The run after all lines so far."""
        self._catch_up()
        return self.replay.run

    @property
    def _history(self) -> RunHistory:
        return self.projection.history

    @property
    def updated_at(self) -> float:
        return max(self._at, self._history.last_at)

    def dataset_epochs(self) -> Iterator[tuple[int, float | None]]:
        """Yield the row of each recent report with dataset positions, and how many epochs were used by then."""
        for _, attempt, seq, positions in self._positions:
            row = self.reports.find_row(seq)
            if row is not None and (self.reports.seqs[row], self.reports.attempts[row]) == (seq, attempt):
                cursors = positions if isinstance(positions, tuple) else msgspec.json.decode(positions, type=Cursors)
                yield row, count_dataset_epochs(cursors)

    def _add_positions(self, at: float, attempt: int, seq: int, positions: Cursors | msgspec.Raw) -> None:
        if len(self._positions) > 1 and at - self._positions[-2][0] < WINDOW_S / _MAX_POSITIONS:
            self._positions.pop()
        self._positions.append((at, attempt, seq, positions))

    def add_lines(self, lines: JournalLines) -> None:
        """Apply lines in order. After one that cannot be applied, ignores all others."""
        start = 0
        for at in (*lines.special, len(lines.lines)):
            if start < at and self.problem is None:
                self._add_plain_reports(lines, start, at)
            if at < len(lines.lines) and self.problem is None:
                self._add_line(lines.payloads[at])
            start = at + 1

    def add_worker_lines(self, lines: JournalLines) -> None:
        """Apply the lines that a worker of the last attempt wrote to its own file; most are known already."""
        run = self.run
        live = _find_running(run)
        if live is None:
            return
        for payload, line in zip(lines.payloads, lines.lines, strict=True):
            is_new = isinstance(line, EventLine) and (
                line.type == "checkpoint_staged" or (line.type == "reported" and _is_ahead(line, run, live.progress))
            )
            if is_new and self.problem is None:
                self._add_line(payload)

    def apply_survey(self, survey: events.CheckpointsFound) -> None:
        """Apply a survey of storage, which may contradict the journal."""
        self._catch_up()
        self._apply_event(survey)

    def flush_reports(self) -> None:
        """Accept reports that not every rank has made: there is no driver, so no more will come."""
        self._catch_up()
        if self._aggregator is not None:
            self._add_reports(self._aggregator.flush())

    def _add_plain_reports(self, lines: JournalLines, start: int, end: int) -> None:
        """Add reports that contain only metrics."""
        reports = lines.lines[start:end]
        if not self._are_new_reports(reports):
            for payload in lines.payloads[start:end]:
                if self.problem is None:
                    self._add_line(payload)
            return
        self.num_lines += len(reports)
        last, first = {0: len(reports) - 1}, reports
        of_first: Sequence[int] = range(len(reports))
        if self.replay.run.size > 1:
            last = {line.rank: at for at, line in enumerate(reports)}
            first = [line for line in reports if line.rank == 0]
            of_first = [at for at, line in enumerate(reports) if line.rank == 0]
        for rank, at in last.items():
            self._skipped[rank] = reports[at].seq, lines.payloads[start + at]
        recent = of_first[-NUM_RECENT_METRICS:]
        self._skipped_of_rank_0.extend((reports[at].seq, lines.payloads[start + at]) for at in recent)
        if awaited := self._awaited_seqs():
            for payload, line in zip(lines.payloads[start:end], reports, strict=True):
                if line.rank == 0 and line.seq in awaited:
                    self._skipped_awaited[line.seq] = payload
        if any(line.data is not ABSENT for line in reports):
            for payload, line in zip(lines.payloads[start:end], reports, strict=True):
                if line.data is not ABSENT:
                    self._skipped_positions.append((line.seq, line.rank, payload))
                    if line.rank == 0:
                        self._add_positions(line.at, line.attempt, line.seq, line.data)
            least = self._lowest_seq()
            self._skipped_positions = [
                position for position in self._skipped_positions if position[0] > least or position[0] in awaited
            ]
        if first:
            self._first_seq = first[0].seq if self._first_seq is None else self._first_seq
            self.reports.add_many(
                self.replay.run.attempt,
                [line.seq for line in first],
                [line.at for line in first],
                [line.metrics for line in first],
                lines.names,
            )
        self._at = max(self._at, reports[-1].at)

    def _are_new_reports(self, reports: Sequence[ReportLine]) -> bool:
        """Whether the reports are new and of the current attempt."""
        run = self.replay.run
        live = _find_running(run)
        if self._aggregator is not None or live is None or {line.attempt for line in reports} != {run.attempt}:
            return False
        ranks = {line.rank for line in reports}
        if not 0 <= min(ranks) <= max(ranks) < run.size:
            return False
        reached = {rank: self._skipped[rank][0] if rank in self._skipped else live.progress[rank] for rank in ranks}
        if len(ranks) == 1:
            seqs = [line.seq for line in reports]
            return seqs[0] > reached[reports[0].rank] and all(map(lt, seqs, islice(seqs, 1, None)))
        for line in reports:
            if line.seq <= reached[line.rank]:
                return False
            reached[line.rank] = line.seq
        return True

    def _lowest_seq(self) -> int:
        """Return the number of the last report that every rank has reached."""
        progress = self._running_phase().progress
        ranks = range(self.replay.run.size)
        return min(self._skipped[rank][0] if rank in self._skipped else progress[rank] for rank in ranks)

    def _awaited_seqs(self) -> set[int]:
        return {pending.seq for pending in self._running_phase().pending}

    def _add_archive(self, path: Path, payload: bytes) -> None:
        try:
            for block in iter_archived_blocks(path, decode_archive(payload)):
                self.add_lines(decode_journal_lines(block, self.reports.columns))
        except StorageError as problem:
            self.num_lines += 1  # There is a journal, though nothing of it may have been read.
            self.problem = str(problem)

    def _add_line(self, payload: bytes) -> None:
        if self._path is not None and payload.startswith(ARCHIVE_PREFIX):
            self._add_archive(self._path, payload)
            return
        self.num_lines += 1
        try:
            event: Event = journal.decode_line(payload, self._uri, self.num_lines)
        except journal.JournalVersionError as problem:
            self.problem = str(problem)
            return
        if isinstance(event, events.Note):
            self._add_note(event)
            return
        if isinstance(event, Reported) and event.rank == 0 and event.data:
            self._add_positions(event.at, event.attempt, event.seq, event.data)
        if isinstance(event, Reported) and self._can_defer(event):
            self._defer_report(event)
        else:
            self._catch_up()
            self._apply_event(event)

    def _can_defer(self, event: Reported) -> bool:
        """Whether this is a report for reduced metrics that `step` does not need at once."""
        run = self.replay.run
        if event.reduce and self._aggregator is None:
            self._catch_up()
            run = self.replay.run
            self._aggregator = self._make_aggregator(run)
        return (
            self._aggregator is not None
            and isinstance(run.phase, Running | Stopping)
            and event.checkpoint is None
            and event.attempt == run.attempt
            and 0 <= event.rank < run.size
        )

    def _defer_report(self, event: Reported) -> None:
        assert self._aggregator is not None
        run = self.replay.run
        rank = event.rank
        reached = self._deferred_seqs.get(rank)
        if event.seq <= (reached if reached is not None else self._running_phase().progress[rank]):
            return  # Duplicate.
        self._deferred_seqs[rank] = event.seq
        self._deferred.append(event)
        self._at = max(self._at, event.at)
        self._add_reports(self._aggregator.add_event(event, run))
        if len(self._deferred) >= _MAX_DEFERRED:
            self._catch_up()

    def _apply_deferred(self) -> None:
        """Pass the deferred reports with a lasting effect to `step`.

        These are the reports that not every rank has made, those that a checkpoint waits for, and the last of each
        rank; or all, if ranks differ in how they reduce.
        """
        deferred, self._deferred = self._deferred, []
        last, self._deferred_seqs = self._deferred_seqs, {}
        live = self._running_phase()
        hows: dict[MetricPath, Reduction] = {}
        reductions = [how for reducing in live.reducing.values() for how in reducing.reductions]
        reductions += [(mark.path, mark.how) for event in deferred for mark in event.reduce]
        is_uniform = all(hows.setdefault(path, how) == how for path, how in reductions)
        ranks = range(self.replay.run.size)
        least = min(last[rank] if rank in last else live.progress[rank] for rank in ranks)
        awaited = self._awaited_seqs()
        before = live.recent
        of_first = []
        for event in deferred:
            rank, seq = event.rank, event.seq
            if rank == 0:
                of_first.append((seq, event.metrics))
                if (attempt := self._history.current_attempt) is not None:
                    attempt.first_report = attempt.first_report or seq
            if not is_uniform or seq > least or seq in awaited or seq == last[rank]:
                run = self.replay.run
                if self._apply_to_run(event):
                    self._history.add_progress(rank, seq)
                    if not is_uniform:
                        self._history.add_event(event, run, self.replay.run, self._at)
        self._set_recent_metrics((*before, *of_first)[-NUM_RECENT_METRICS:])

    def _running_phase(self) -> Running:
        live = _find_running(self.replay.run)
        assert live is not None
        return live

    def _add_note(self, note: events.Note) -> None:
        if isinstance(note, events.Timestamp):
            self._at = note.at
        elif isinstance(note, events.UsageMeasured):
            self._at = max(self._at, note.at)
            self.usage.add_measurement(note)
        self.projection.add_event(note, self.replay.run, self.replay.run, self._at)

    def _catch_up(self) -> None:
        """Pass the skipped reports to `step`."""
        if self._deferred:
            self._apply_deferred()
        if not self._skipped:
            return
        behind, self._skipped = self._skipped, {}
        recent, self._skipped_of_rank_0 = self._skipped_of_rank_0, deque(maxlen=NUM_RECENT_METRICS)
        awaited, self._skipped_awaited = self._skipped_awaited, {}
        if (attempt := self._history.current_attempt) is not None:
            attempt.first_report = attempt.first_report or self._first_seq or 0
        self._first_seq = None
        before = self._running_phase().recent
        payloads = {(seq, 0): payload for seq, payload in awaited.items()}
        payloads |= {(seq, rank): payload for seq, rank, payload in self._skipped_positions}
        payloads |= {(seq, rank): payload for rank, (seq, payload) in behind.items()}
        self._skipped_positions = []
        for key in sorted(payloads):
            event = journal.decode_line(payloads[key], self._uri)
            if self._apply_to_run(event):
                self._history.add_progress(event.rank, event.seq)
        # As if all reports of rank 0 had been applied.
        of_first = [(seq, _decode_metrics(payload).metrics) for seq, payload in recent]
        self._set_recent_metrics((*before, *of_first)[-NUM_RECENT_METRICS:])

    def _set_recent_metrics(self, recent: tuple[tuple[int, msgspec.Raw], ...]) -> None:
        phase = self.replay.run.phase
        if isinstance(phase, Running):
            self.replay.run = replace(self.replay.run, phase=replace(phase, recent=recent))
        elif isinstance(phase, Stopping):
            live = replace(phase.running, recent=recent)
            self.replay.run = replace(self.replay.run, phase=replace(phase, running=live))

    def _apply_event(self, event: Event) -> None:
        if isinstance(event, Reported):
            self._at = max(self._at, event.at)
        elif isinstance(event, events.DriverStarted):
            self._at = event.at or self._at
        before = self.replay.run
        if not self._apply_to_run(event):
            return
        after = self.replay.run
        if after.attempt != before.attempt:
            self._returned = []
        if isinstance(event, WorkerReturned):
            self._returned.append(event)
        self.projection.add_event(event, before, after, self._at)
        if self._aggregator is not None:
            self._add_reports(self._aggregator.add_event(event, after))
        elif isinstance(event, Reported) and event.rank == 0:
            self._add_reports([RunReport((event,))])

    def _apply_to_run(self, event: Event) -> bool:
        """Apply an event; return whether it changed anything."""
        self.replay.num_events = self.num_lines - 1
        try:
            return self.replay.apply_event(event)
        except StorageError as problem:
            self.problem = str(problem)
            return False

    def _make_aggregator(self, run: Run) -> ReportAggregator:
        """Create the aggregator. From here on reports wait for other ranks, so it starts with those already made."""
        aggregator = ReportAggregator()
        if (live := _find_running(run)) is not None:
            for rank in range(1, run.size):
                for seq in range(live.progress[0] + 1, live.progress[rank] + 1):
                    aggregator.add_event(Reported(run.attempt, rank, seq, msgspec.Raw(b"{}"), 0.0, ""), run)
            for returned in self._returned:
                aggregator.add_event(returned, run)
        return aggregator

    def _add_reports(self, ready: Sequence[RunReport]) -> None:
        for report in ready:
            self.reports.add(report.attempt, report.seq, report.at, report.metrics)


def _encode_positions(positions: Cursors) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(positions))


class _MetricsField(msgspec.Struct):
    metrics: msgspec.Raw


_decode_metrics = msgspec.json.Decoder(_MetricsField).decode


def _find_running(run: Run) -> Running | None:
    """Return the phase with the workers' progress, also while they stop; None in other phases."""
    return (
        run.phase.running if isinstance(run.phase, Stopping) else run.phase if isinstance(run.phase, Running) else None
    )


def _is_ahead(line: ReportLine, run: Run, progress: RankProgress) -> bool:
    return line.attempt == run.attempt and 0 <= line.rank < run.size and line.seq > progress[line.rank]
