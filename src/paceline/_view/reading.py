"""One run as people look at it: read from its journal, again and again, only what is new.

Works while the run is written, after it, of a copy and of a run in a store. Nothing is changed there. What a driver
that is dead did not get to read, from the files of its workers, is read here.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from paceline._control.recover import surveyed
from paceline._control.run import Finished, Run, Running, Stopping, Validating
from paceline._core.errors import StorageError
from paceline._storage.home import Home
from paceline._view import decoding
from paceline._view.liveness import Liveness
from paceline._view.model import Detail, Points, State, Summary, UseSeries
from paceline._view.pace import AT_LEAST, COUNTERS, WINDOW_S, Pace, Pacing
from paceline._view.playing import Play
from paceline._view.shown import best_of, state_of, values_of
from paceline._view.tail import DiskTail, StoreTail, Tail
from paceline._view.thinning import thinned

_ROWS_AT_ONCE = 10_000
_PACED = 100_000
"""So many of the last reports are looked among for how fast a run goes."""


class RunReader:
    """May be used from several threads."""

    def __init__(self, run: str | os.PathLike[str] | Home) -> None:
        self.home = run if isinstance(run, Home) else Home.of_path(os.fspath(run))
        self._store = self.home.store() if self.home.address is not None else None
        self._where = self._store.uri if self._store is not None else self.home.uri
        self.version = 0
        """Grows whenever something is new."""
        self._lock = threading.RLock()
        """Over all that follows: a page asks from several threads."""
        self._liveness = Liveness(self.home)
        self._held = False
        self._tail = self._opened()
        self._play = Play(self._where)
        self._is_completed = False
        """What dead workers left was added, so that whatever comes next is played from the start."""
        self._is_surveyed = False

    @property
    def run(self) -> Run:
        with self._lock:
            return self._play.run

    @property
    def problem(self) -> str | None:
        """Why some of its journal could not be understood: what else is said of the run may be wrong."""
        return self._play.problem

    @property
    def num_rows(self) -> int:
        """How many reports it holds."""
        return len(self._play.reports)

    @property
    def last_step(self) -> int:
        """The number of the last report that still counts."""
        return self.run.num_reports

    @property
    def is_ended(self) -> bool:
        return isinstance(self.run.phase, Finished)

    def refresh(self) -> bool:
        """Read what is new; whether anything changed."""
        with self._lock:
            # Before the journal is read: a driver that lets go has written all of it.
            held = self._liveness.is_held()
            changed = self._read()
            if isinstance(self._play.run.phase, Finished):
                held = True
            if held != self._held:
                self._held, changed = held, changed or self._play.num_lines > 0
            if not held and not self._is_completed and self._play.num_lines:
                self._complete()
                changed = True
            if changed:
                self.version += 1
            return changed

    def summary(self, id: str = ".", *, kind: Literal["run", "trial"] = "run", search: str | None = None) -> Summary:
        """`StorageError` where there is no run."""
        with self._lock:
            play = self._read_something()
            run, story, reports = play.run, play.story, play.reports
            state = state_of(run, is_held=self._held)
            row = reports.row_at(run.num_reports)
            pacing = _pacing(play, state)
            failures = [chapter for chapter in story.chapters if chapter.failures]
            live = run.phase if isinstance(run.phase, Running) else None
            return Summary(
                id=id,
                name=self.home.name,
                path=self._where,
                kind=kind,
                state=state,
                began_at=story.began_at,
                ended_at=story.ended_at if story.ended_at is not None or state != "lost" else play.updated_at,
                updated_at=play.updated_at,
                attempt=run.attempt,
                num_workers=run.size,
                num_reports=run.num_reports,
                num_checkpoints=len(run.checkpoints),
                num_failures=len(failures),
                metrics=values_of(reports.metrics_of(row)) if row is not None else {},
                best=best_of(reports, run.retention),
                progress=pacing.progress,
                left_s=pacing.left_s,
                steps_per_s=pacing.reports_per_s,
                epochs_per_s=pacing.epochs_per_s,
                failure=self._failure(run, failures),
                hang=(live.hang or None) if live is not None and self._held else None,
                search=search,
            )

    def detail(self, id: str = ".", *, kind: Literal["run", "trial"] = "run", search: str | None = None) -> Detail:
        from paceline._view.detail import detail_of

        with self._lock:
            self._survey()
            summary = self.summary(id, kind=kind, search=search)
            return detail_of(summary, self._play, self.home, self._store, self.version)

    def points(
        self,
        names: Sequence[str],
        x: Literal["step", "time"] = "step",
        range: tuple[float, float] | None = None,
        at_most: int = 2000,
    ) -> list[Points]:
        """Of each metric, in the order of `names`; one that there is not has no points.

        `range` is that of steps, or of seconds since the run began, both ends included.
        """
        if x not in ("step", "time"):
            raise ValueError(f"x={x!r} is neither 'step' nor 'time'")
        with self._lock:
            reports = self._play.reports
            xs = reports.seqs if x == "step" else reports.ats
            origin = 0.0 if x == "step" else self._play.story.began_at
            found = []
            for name in names:
                column = reports.columns.get(name)
                if column is None:
                    found.append(Points(name=name, x=[], y=[], low=[], high=[], num_points=0, whole=True))
                else:
                    found.append(thinned(name, xs, column, at_most=at_most, origin=origin, within=range))
            return found

    def use(self, attempt: int | None = None) -> list[UseSeries]:
        """What each rank used over time; of all attempts, if none is named."""
        with self._lock:
            return self._play.usage.series(attempt)

    def rows(self, names: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
        """`step`, `time` (since the epoch), `attempt` and the metrics of each report that counts, those that it has.

        A metric that is itself called so is `reported/step` and the like. nan and infinity are floats.
        """
        first = 0
        while True:
            with self._lock:
                reports = self._play.reports
                some = list(reports.between(first, min(first + _ROWS_AT_ONCE, len(reports)), names))
            if not some:
                return
            yield from some
            first += len(some)

    def metric_names(self) -> tuple[str, ...]:
        """Those that have numbers."""
        with self._lock:
            return tuple(name for name, column in self._play.reports.columns.items() if len(column.rows))

    def _opened(self) -> Tail:
        return DiskTail(self.home.layout.journal) if self._store is None else StoreTail(self._store)

    def _read_something(self) -> Play:
        if not self._play.num_lines:
            self.refresh()
        if not self._play.num_lines:
            raise StorageError(
                f"{self._where} has no journal of a run, or an empty one\n\n"
                "hint: a run's directory has a journal.jsonl; `paceline ls PATH` lists the runs below a path"
            )
        return self._play

    def _read(self) -> bool:
        changed = False
        if self._tail.is_another():
            self._begin_again()
            changed = True
        while data := self._tail.more():
            if self._is_completed:
                self._begin_again()
                self._tail = self._opened()
                return self._read() or True
            lines = decoding.decoded(data, self._play.reports.columns)
            self._tail.took(data, lines.num_bytes)
            if lines.payloads:
                changed = True
                self._play.take(lines)
            if lines.num_bytes < len(data):
                break
        return changed

    def _begin_again(self) -> None:
        self._play, self._is_completed, self._is_surveyed = Play(self._where), False, False

    def _complete(self) -> None:
        """Add what nobody will: reports in the files of workers that no driver has read."""
        self._is_completed = True
        run = self._play.run
        if self._store is None and isinstance(run.phase, Running | Stopping):
            for rank in range(run.size):
                tail = DiskTail(self.home.layout.reports(run.attempt, rank))
                while data := tail.more():
                    lines = decoding.decoded(data)
                    tail.took(data, lines.num_bytes)
                    self._play.take_unread(lines)
                    if lines.num_bytes < len(data):
                        break
        self._play.gather_rest()

    def _survey(self) -> None:
        """Of a run that was lost: checkpoints that are there though its journal does not get to tell of them."""
        self._read_something()
        if self._is_completed and not self._is_surveyed:
            self._is_surveyed = True
            self._play.find(surveyed(self.home.depot_to_read(), self._play.replay))

    def _failure(self, run: Run, failed: Sequence[Any]) -> str | None:
        from paceline._control.policy import first_failure

        if self._play.problem is not None:
            return self._play.problem
        if isinstance(run.phase, Finished) and run.phase.failures:
            return first_failure(run.phase.failures).message
        if isinstance(run.phase, Finished | Validating) and run.is_trained:
            return None
        return first_failure(failed[-1].failures).message if failed else None


def _pacing(play: Play, state: State) -> Pacing:
    """How fast a run goes that goes on: from its last reports, some of them where there are many."""
    if state == "complete":
        return Pacing(progress=1.0)
    if state not in ("running", "stopping"):
        return Pacing()
    reports = play.reports
    config = play.about.get("config")
    pace = Pace(config if isinstance(config, dict) else None)
    num_rows = len(reports)
    first = max(0, num_rows - _PACED)
    while first < num_rows - AT_LEAST and reports.ats[num_rows - 1] - reports.ats[first] > WINDOW_S:
        first += max(1, (num_rows - AT_LEAST - first) // 8)
    counting = [name for name in reports.columns if name.rpartition("/")[2] in _COUNTING]
    for row in dict.fromkeys((*range(first, num_rows, max(1, (num_rows - first) // 50)), num_rows - 1)):
        if row >= 0:
            metrics = reports.metrics_of(row, counting)
            pace.hear(reports.ats[row], reports.seqs[row], metrics, reports.attempts[row])
    return pace.now(time.time())


_COUNTING = {name for names in COUNTERS.values() for name in names}
