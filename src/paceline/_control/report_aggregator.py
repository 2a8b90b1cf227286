"""Turns the reports of ranks into the reports of the run: each number once, in order.

A report of the run is that of rank 0. If it has metrics to reduce, those of the other ranks belong to it: it is ready
once every rank has made the report or has returned without it. A report in which rank 0 reduces nothing is ready at
once. If an attempt ends before all ranks have made a report, it is reduced over the ranks that have.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec

from paceline._control.events import Event, Reported, WorkerReturned
from paceline._control.run import Run, Running, Stopping
from paceline._core.plain_values import decode_plain, to_plain
from paceline._core.reductions import reduce_metrics


@dataclass(frozen=True)
class RunReport:
    """One report of the run. Its metrics are computed on first access."""

    rank_reports: tuple[Reported, ...]
    """In rank order: that of rank 0, and those it is reduced with."""

    @property
    def attempt(self) -> int:
        return self.rank_reports[0].attempt

    @property
    def seq(self) -> int:
        return self.rank_reports[0].seq

    @property
    def at(self) -> float:
        return self.rank_reports[0].at

    @cached_property
    def metrics(self) -> dict[str, Any]:
        if not self.rank_reports[0].reduce:
            return own_metrics(self.rank_reports[0])
        return reduce_metrics((own_metrics(event), event.reduce) for event in self.rank_reports)


class ReportAggregator:
    """Collects the reports of ranks, and returns reports of the run as they become ready."""

    def __init__(self) -> None:
        self._attempt = _AttemptReports(0)

    def add_event(self, event: Event, run: Run) -> list[RunReport]:
        """Add an event, with the run after it; return the reports that are now ready."""
        ready: list[RunReport] = []
        if run.attempt != self._attempt.number:
            ready = self._attempt.pop_all()
            self._attempt = _AttemptReports(run.attempt)
        if type(event) is Reported:  # Nearly all events are.
            attempt = self._attempt
            attempt.add_report(event)
            return ready + attempt.pop_ready(run.size) if attempt.has_waiting else ready
        if isinstance(event, WorkerReturned):
            self._attempt.add_return(event)
            ready += self._attempt.pop_ready(run.size)
        if not isinstance(run.phase, Running | Stopping):
            ready += self._attempt.pop_all()
        return ready

    def flush(self) -> list[RunReport]:
        """Return the remaining reports, reduced over the ranks that have made them."""
        return self._attempt.pop_all()


class _AttemptReports:
    """The reports of one attempt. Of ranks other than 0, only metrics to reduce are kept, until they are reduced."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._first: deque[Reported] = deque()
        """Reports of rank 0 that are not ready."""
        self._passed = 0
        """The number of the last report passed on."""
        self._last: int | None = None
        """The total number of reports of rank 0, once it has returned."""
        self._rank_reports: dict[int, dict[int, Reported]] = {}
        """Reports with metrics to reduce, by number and rank."""
        self._counts: dict[int, int] = {}
        """How many ranks have made each report, by number."""
        self._returned: list[int] = []
        """The report counts of the ranks that have returned, sorted."""

    @property
    def has_waiting(self) -> bool:
        """Whether reports of rank 0 are still waiting."""
        return bool(self._first)

    def add_report(self, event: Reported) -> None:
        seq = event.seq
        if event.rank == 0:
            self._first.append(event)
        elif seq <= self._passed or (self._last is not None and seq > self._last):
            return  # It belongs to a report that was already passed on, or that rank 0 never makes.
        elif event.reduce:
            self._rank_reports.setdefault(seq, {})[event.rank] = event
        self._counts[seq] = self._counts.get(seq, 0) + 1

    def add_return(self, event: WorkerReturned) -> None:
        insort(self._returned, event.num_reports)
        if event.rank == 0:
            self._last = event.num_reports

    def pop_ready(self, size: int) -> list[RunReport]:
        ready = []
        while self._first:
            first = self._first[0]
            if first.reduce and self._counts[first.seq] + bisect_left(self._returned, first.seq) < size:
                break
            ready.append(self._pop_first())
        return ready

    def pop_all(self) -> list[RunReport]:
        return self.pop_ready(0)

    def _pop_first(self) -> RunReport:
        first = self._first.popleft()
        self._passed = first.seq
        self._counts.pop(first.seq, None)
        rank_reports = self._rank_reports.pop(first.seq, None)
        if rank_reports is None or not first.reduce:
            return RunReport((first,))
        return RunReport((first, *(rank_reports[rank] for rank in sorted(rank_reports))))


class ReportCollector:
    """Makes reports of the run from those of a journal, as they come; repeated reports are made again."""

    def __init__(self) -> None:
        self._attempt = _AttemptReports(0)

    def add_report(self, event: Reported) -> Iterator[RunReport]:
        yield from self.begin_attempt(event.attempt)
        if event.rank == 0 and not event.reduce and not self._attempt.has_waiting:
            yield RunReport((event,))
        elif event.rank == 0 or event.reduce:
            self._attempt.add_report(event)

    def begin_attempt(self, number: int) -> Iterator[RunReport]:
        """Yield what is left of earlier attempts."""
        if number != self._attempt.number:
            yield from self._attempt.pop_all()
            self._attempt = _AttemptReports(number)

    @property
    def has_waiting(self) -> bool:
        return self._attempt.has_waiting

    def flush(self) -> Iterator[RunReport]:
        yield from self._attempt.pop_all()


def iter_reports(events: Iterable[Event]) -> Iterator[RunReport]:
    """Yield all reports of a run from its journal; repeated reports are yielded again."""
    collector = ReportCollector()
    for event in events:
        if isinstance(event, Reported):
            yield from collector.add_report(event)
    yield from collector.flush()


def drop_superseded_reports(reports: Iterable[RunReport]) -> list[RunReport]:
    """Keep each number once.

    An attempt that resumes from a checkpoint repeats the reports after it, which replace those of the earlier attempt.
    """
    kept: list[RunReport] = []
    attempt = 0
    for report in reports:
        if report.attempt > attempt:
            attempt = report.attempt
            while kept and kept[-1].seq >= report.seq:
                kept.pop()
        kept.append(report)
    return kept


def own_metrics(event: Reported) -> dict[str, Any]:
    """The metrics that a rank itself reported."""
    metrics: dict[str, Any] = decode_plain(event.metrics)
    return metrics


def encode_reduced_metrics(reports: Iterable[Reported]) -> msgspec.Raw:
    """Reduce the reports of several ranks, encoded as if one rank had reported the result."""
    metrics = reduce_metrics((own_metrics(event), event.reduce) for event in reports)
    return msgspec.Raw(msgspec.json.encode(to_plain(metrics, keep_types=True)))
