"""From the reports of single ranks to the reports of the run: each number once, in order.

A report of the run is rank 0's, and where that has metrics to be reduced, those of the other ranks belong to it. It is
ready once every rank has made it or has returned without; one in which rank 0 reduces nothing is ready at once. What
some rank had not come to when its attempt ended is reduced over those that had.
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
from paceline._core.plain import plain, restored
from paceline._core.reductions import reduced


@dataclass(frozen=True)
class Report:
    """One report of the run. What it comes to is worked out when it is asked for."""

    made: tuple[Reported, ...]
    """In the order of ranks: that of rank 0, and those it is reduced with."""

    @property
    def attempt(self) -> int:
        return self.made[0].attempt

    @property
    def seq(self) -> int:
        return self.made[0].seq

    @property
    def at(self) -> float:
        return self.made[0].at

    @cached_property
    def metrics(self) -> dict[str, Any]:
        if len(self.made) == 1 and not self.made[0].reduce:
            return own_metrics(self.made[0])
        return reduced((own_metrics(event), event.reduce) for event in self.made)


class Gathering:
    """Hears what ranks report, and gives the reports of the run as they get ready."""

    def __init__(self) -> None:
        self._now = _Attempt(0)

    def hear(self, event: Event, run: Run) -> list[Report]:
        """An event took effect, and this is the run after it: the reports that are ready by that."""
        done: list[Report] = []
        if run.attempt != self._now.number:
            done = self._now.rest()
            self._now = _Attempt(run.attempt)
        if isinstance(event, Reported):
            self._now.take(event)
            done += self._now.ready(run.size)
        elif isinstance(event, WorkerReturned):
            self._now.end(event)
            done += self._now.ready(run.size)
        if not isinstance(run.phase, Running | Stopping):
            done += self._now.rest()
        return done

    def rest(self) -> list[Report]:
        """Those that not every rank has made, as far as they are made."""
        return self._now.rest()


class _Attempt:
    """Of other ranks than 0 only what is reduced is kept, and only until it is."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._first: deque[Reported] = deque()
        """Those of rank 0 that are not ready."""
        self._passed = 0
        """The number of the last one that was."""
        self._last: int | None = None
        """How many there are of rank 0 in all, once it has returned."""
        self._others: dict[int, dict[int, Reported]] = {}
        """By number and rank, those with something to be reduced."""
        self._counts: dict[int, int] = {}
        """By number, how many ranks have made it."""
        self._returned: list[int] = []
        """Of the ranks that have returned, how many reports each had made; sorted."""

    @property
    def waits(self) -> bool:
        """Whether some of rank 0 are not passed on."""
        return bool(self._first)

    def take(self, event: Reported) -> None:
        seq = event.seq
        if event.rank == 0:
            self._first.append(event)
        elif seq <= self._passed or (self._last is not None and seq > self._last):
            return  # It belongs to a report that is passed on, or that rank 0 never makes.
        elif event.reduce:
            self._others.setdefault(seq, {})[event.rank] = event
        self._counts[seq] = self._counts.get(seq, 0) + 1

    def end(self, event: WorkerReturned) -> None:
        insort(self._returned, event.num_reports)
        if event.rank == 0:
            self._last = event.num_reports

    def ready(self, size: int) -> list[Report]:
        done = []
        while self._first:
            first = self._first[0]
            if first.reduce and self._counts[first.seq] + bisect_left(self._returned, first.seq) < size:
                break
            done.append(self._popped())
        return done

    def rest(self) -> list[Report]:
        done = []
        while self._first:
            done.append(self._popped())
        return done

    def _popped(self) -> Report:
        first = self._first.popleft()
        self._passed = first.seq
        self._counts.pop(first.seq, None)
        others = self._others.pop(first.seq, None)
        if others is None or not first.reduce:
            return Report((first,))
        return Report((first, *(others[rank] for rank in sorted(others))))


def reports_of(events: Iterable[Event]) -> Iterator[Report]:
    """All reports of a run, as its journal tells them; one that was made again comes again."""
    now = _Attempt(0)
    for event in events:
        if isinstance(event, Reported):
            if event.attempt != now.number:
                yield from now.rest()
                now = _Attempt(event.attempt)
            if event.rank == 0 and not event.reduce and not now.waits:
                yield Report((event,))
            elif event.rank == 0 or event.reduce:
                now.take(event)
    yield from now.rest()


def that_count(reports: Iterable[Report]) -> list[Report]:
    """Each number once: an attempt that continues from a checkpoint makes the reports after it again, and those of the
    attempt before give way."""
    counting: list[Report] = []
    attempt = 0
    for report in reports:
        if report.attempt > attempt:
            attempt = report.attempt
            while counting and counting[-1].seq >= report.seq:
                counting.pop()
        counting.append(report)
    return counting


def own_metrics(event: Reported) -> dict[str, Any]:
    """What a rank itself reported."""
    metrics: dict[str, Any] = restored(event.metrics)
    return metrics


def reduced_metrics(made: Iterable[Reported]) -> msgspec.Raw:
    """What ranks report together, as one of them would have written it."""
    metrics = reduced((own_metrics(event), event.reduce) for event in made)
    return msgspec.Raw(msgspec.json.encode(plain(metrics)))
