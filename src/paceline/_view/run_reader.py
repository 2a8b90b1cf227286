"""Reads one run from its journal, incrementally.

Works while the run is being written, after it, on a copy, and on a run in a store. Changes nothing there. Also reads
the reports that a dead driver did not get to read, from the files of its workers.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from paceline._control.events import encode_event
from paceline._control.journal_snapshot import read_snapshot
from paceline._control.recovery import rebuild_events, survey_checkpoints
from paceline._control.run import Finished, Run, Running, Stopping
from paceline._core.arguments import check_choice
from paceline._core.codec import seal_line
from paceline._core.errors import StorageError
from paceline._core.system import Clock, SystemClock
from paceline._storage.lease import AcquireLease, HolderWatch, LeaseStore, RefuseLease, decide_lease, is_holder_alive
from paceline._storage.run_location import RunLocation
from paceline._view.downsampling import downsample
from paceline._view.journal.lines import decode_journal_lines
from paceline._view.journal.outline import restore_replay
from paceline._view.journal.replay import JournalReplay
from paceline._view.journal.report_table import CompactedRowsError
from paceline._view.journal.tail import DiskJournalTail, open_journal_tail
from paceline._view.model import Points, RunSnapshot, State, Summary, UsageSeries
from paceline._view.pace import PaceEstimate, PaceEstimator, choose_rows, find_first_recent, is_pace_metric
from paceline._view.run_values import display_state, find_best_metric

_ROWS_AT_ONCE = 10_000


_LOST_JOURNAL = "the journal is lost: this is what reports and checkpoints say"


class JournalFollower:
    """Reads the journal of a run or a search. Thread-safe."""

    def __init__(self, run: str | os.PathLike[str] | RunLocation) -> None:
        self.location = run if isinstance(run, RunLocation) else RunLocation.from_path(os.fspath(run))
        self._store = self.location.open_store() if self.location.address is not None else None
        self._uri = self._store.uri if self._store is not None else self.location.uri
        self.version = 0
        self._lock = threading.RLock()
        """Protects all fields below: the dashboard calls from several threads."""
        self._liveness = Liveness(self.location)
        self._is_held = False
        self._tail = open_journal_tail(self.location, self._store)
        self._restart()

    @property
    def is_ended(self) -> bool:
        raise NotImplementedError

    @property
    def has_lines(self) -> bool:
        """Whether anything has been read."""
        raise NotImplementedError

    def refresh(self) -> bool:
        """Read what is new; return whether anything changed."""
        with self._lock:
            # Before the journal is read: a driver that releases the lease has written all of it.
            is_held = self._liveness.is_held()
            changed = self._read_new_lines()
            is_held = is_held or self.is_ended
            if not is_held and not self.has_lines:
                changed |= self._rebuild_lost_journal()
            if is_held != self._is_held:
                self._is_held, changed = is_held, changed or self.has_lines
            if not is_held and self.has_lines:
                changed |= self._add_unread_reports()
            self.version += changed
            return changed

    def _restart(self) -> None:
        """Forget what was read."""
        raise NotImplementedError

    def _read_new_lines(self) -> bool:
        raise NotImplementedError

    def _rebuild_lost_journal(self) -> bool:
        """If there is no journal, add what else is known; return whether there was anything."""
        return False

    def _add_unread_reports(self) -> bool:
        """Add what no driver has read, and none will; return whether there may be anything new."""
        return False


class RunReader(JournalFollower):
    def __init__(self, run: str | os.PathLike[str] | RunLocation, *, only_summary: bool = False) -> None:
        """`only_summary`: read no more of a long journal than `summary()` needs, if its driver left an outline."""
        self._only_summary = only_summary
        self.is_whole = True
        """Whether it has all reports; otherwise only `summary()` may be used."""
        super().__init__(run)

    def _restart(self) -> None:
        path = self.location.layout.journal if self._store is None else None
        self._replay = JournalReplay(self._uri, path)
        self.is_whole = True
        if self._only_summary and isinstance(self._tail, DiskJournalTail):
            self._restore_outline(self._tail)
        self._is_completed = False
        """Reports of dead workers were added, so new events require a replay from the start."""
        self._is_surveyed = False
        self._is_rebuilt = self._is_journal_lost = False

    @property
    def run(self) -> Run:
        with self._lock:
            return self._replay.run

    @property
    def problem(self) -> str | None:
        """Why a part of the journal could not be read: anything else shown of the run may be wrong."""
        return self._replay.problem

    @property
    def num_rows(self) -> int:
        return len(self._replay.reports)

    @property
    def last_step(self) -> int:
        """The number of the last valid report."""
        return self.run.num_reports

    @property
    def is_ended(self) -> bool:
        return isinstance(self.run.phase, Finished)

    @property
    def has_lines(self) -> bool:
        return self._replay.num_lines > 0

    def summary(self, id: str = ".", *, kind: Literal["run", "trial"] = "run", search: str | None = None) -> Summary:
        """Raises `StorageError` if there is no run."""
        with self._lock:
            replay = self._require_replay()
            run, reports = replay.run, replay.reports
            state = display_state(run, is_held=self._is_held)
            row = reports.find_row(run.num_reports)
            summary = replay.projection.summarize(
                run,
                state,
                replay.updated_at,
                reports.row_metrics(row) if row is not None else {},
                _estimate_pace(replay, state),
                id=id,
                name=self.location.name,
                path=self._uri,
                kind=kind,
                best=find_best_metric(reports, run.retention),
                search=search,
            )
            problem = replay.problem or (_LOST_JOURNAL if self._is_journal_lost else None)
            return summary if problem is None else replace(summary, failure=problem)

    def snapshot(
        self, id: str = ".", *, kind: Literal["run", "trial"] = "run", search: str | None = None
    ) -> RunSnapshot:
        from paceline._view.run_snapshot import build_snapshot

        with self._lock:
            self._survey_checkpoints()
            summary = self.summary(id, kind=kind, search=search)
            pace = _estimate_pace(self._replay, summary.state)
            return build_snapshot(summary, self._replay, self.location, self._store, pace=pace, version=self.version)

    def points(
        self,
        names: Sequence[str],
        x: Literal["step", "time"] = "step",
        range: tuple[float, float] | None = None,
        at_most: int = 2000,
    ) -> list[Points]:
        """Return the points of each metric, in the order of `names`; an unknown metric has no points.

        `range` is in steps, or in seconds since the start of the run, both ends included.
        """
        check_choice("x", x, ("step", "time"))
        with self._lock:
            reports = self._replay.reports
            xs = reports.seqs if x == "step" else reports.ats
            origin = 0.0 if x == "step" else self._replay.projection.history.began_at
            points = []
            for name in names:
                column = reports.columns.get(name)
                if column is None:
                    points.append(Points(name=name, x=[], y=[], low=[], high=[], num_points=0, whole=True))
                else:
                    points.append(downsample(name, xs, column, at_most=at_most, origin=origin, within=range))
            return points

    def usage_series(self, attempt: int | None = None) -> list[UsageSeries]:
        """Return the usage of each rank over time, for one attempt or all."""
        with self._lock:
            return self._replay.usage.series(attempt)

    def rows(self, names: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
        """Yield `step`, `time` (since the epoch), `attempt` and the metrics of each valid report.

        A metric with one of these names becomes `reported/step` and so on. nan and infinity are floats.
        """
        first = 0
        while True:
            with self._lock:
                reports = self._replay.reports
                rows = list(reports.iter_rows(first, min(first + _ROWS_AT_ONCE, len(reports)), names))
            if not rows:
                return
            yield from rows
            first += len(rows)

    def metric_names(self) -> tuple[str, ...]:
        """Names of metrics that have numbers."""
        with self._lock:
            return self._replay.reports.numeric_names()

    def _require_replay(self) -> JournalReplay:
        if not self.has_lines:
            self.refresh()
        if not self.has_lines:
            raise StorageError(
                f"{self._uri} has no journal of a run, or an empty one\n\n"
                "hint: a run's directory has a journal.jsonl; `paceline ls PATH` lists the runs below a path"
            )
        return self._replay

    def _read_new_lines(self) -> bool:
        changed = False
        if self._tail.reset_if_replaced():
            self._restart()
            changed = True
        while data := self._tail.read_new():
            if self._is_completed:
                return self._read_again()
            lines = decode_journal_lines(data, self._replay.reports.columns)
            self._tail.mark_read(data, lines.num_bytes)
            if lines.payloads:
                changed = True
                try:
                    self._replay.add_lines(lines)
                except CompactedRowsError:
                    self._only_summary = False
                    return self._read_again()
            if lines.num_bytes < len(data):
                break
        return changed

    def _read_again(self) -> bool:
        self._tail = open_journal_tail(self.location, self._store)
        self._restart()
        return self._read_new_lines() or True

    def _restore_outline(self, tail: DiskJournalTail) -> None:
        snapshot = read_snapshot(self.location.layout)
        if snapshot is None or (replay := restore_replay(self.location.layout, snapshot)) is None:
            return
        tail.skip(snapshot.length)
        self._replay, self.is_whole = replay, False

    def _rebuild_lost_journal(self) -> bool:
        if self._is_rebuilt:
            return False
        self._is_rebuilt = True
        rebuilt = rebuild_events(self.location.open_run_store_for_reading())
        while events := list(islice(rebuilt, _ROWS_AT_ONCE)):
            data = b"".join(seal_line(encode_event(event)) for event in events)
            self._replay.add_lines(decode_journal_lines(data, self._replay.reports.columns))
        if not self._replay.run.checkpoints and not self.num_rows:
            self._replay = JournalReplay(self._uri)
            return False
        self._is_journal_lost = self._is_completed = True
        return True

    def _add_unread_reports(self) -> bool:
        if self._is_completed:
            return False
        self._is_completed = True
        run = self._replay.run
        if self._store is None and isinstance(run.phase, Running | Stopping):
            for rank in range(run.size):
                tail = DiskJournalTail(self.location.layout.reports(run.attempt, rank))
                while data := tail.read_new():
                    lines = decode_journal_lines(data)
                    tail.mark_read(data, lines.num_bytes)
                    self._replay.add_worker_lines(lines)
                    if lines.num_bytes < len(data):
                        break
        self._replay.flush_reports()
        return True

    def _survey_checkpoints(self) -> None:
        """For a lost run: find checkpoints in storage that its journal does not mention."""
        self._require_replay()
        if self._is_completed and not self._is_surveyed:
            self._is_surveyed = True
            store = self.location.open_run_store_for_reading()
            self._replay.apply_survey(survey_checkpoints(store, self._replay.replay))


def read_ended_summary(location: RunLocation) -> Summary | None:
    """Return the summary that the driver of a long run left when the run ended, if nothing has happened since."""
    layout = location.layout
    if location.address is not None or (snapshot := read_snapshot(layout)) is None:
        return None
    if snapshot.length != layout.journal.stat().st_size:
        return None
    try:
        summary = msgspec.json.decode(snapshot.summary, type=Summary)
    except msgspec.MsgspecError:
        return None
    return replace(summary, name=location.name, path=location.uri)


def _estimate_pace(replay: JournalReplay, state: State) -> PaceEstimate:
    """Estimate the pace of a run in progress from its last reports, or a sample if there are many."""
    if state == "finished":
        return PaceEstimate(progress=1.0)
    if state not in ("running", "stopping"):
        return PaceEstimate()
    reports = replay.reports
    config = replay.projection.about.get("config")
    counting = [name for name in reports.columns if is_pace_metric(name)]
    void = [name for name in counting if reports.goes_backwards(name)]
    pace = PaceEstimator(
        config if isinstance(config, dict) else None,
        void=void,
        first_metrics=reports.row_metrics(0, counting) if reports and reports.seqs[0] == 1 else None,
    )
    dataset_epochs = dict(replay.dataset_epochs())
    first = find_first_recent(reports)
    for row in sorted({*choose_rows(reports), *dataset_epochs}):
        metrics = reports.row_metrics(row, counting)
        at, seq, attempt = reports.ats[row], reports.seqs[row], reports.attempts[row]
        pace.add_report(at, seq, metrics, attempt, dataset_epochs.get(row), is_recent=row >= first)
    return pace.estimate(time.time())


class Liveness:
    """Liveness of one run. A holder on another machine is watched from call to call."""

    def __init__(self, location: RunLocation, clock: Clock | None = None) -> None:
        self._location = location
        self._lease_store: LeaseStore | None = None
        self._clock = clock if clock is not None else SystemClock()
        self._watched: HolderWatch | None = None

    def is_held(self) -> bool:
        """Return False if the driver has ended, has released the lease, or has been silent for too long."""
        if self._lease_store is None:
            self._lease_store = self._location.open_lease_store()
        lease = self._lease_store.read()
        if lease is None:
            return False
        holder = lease.holder
        decision = decide_lease(
            holder, alive=is_holder_alive(holder), watched=self._watched, now=self._clock.now(), wall=self._clock.wall()
        )
        if isinstance(decision, RefuseLease):
            self._watched = None
        elif self._watched is None or self._watched.holder != holder:
            self._watched = HolderWatch(holder, self._clock.now())
        return not isinstance(decision, AcquireLease)
