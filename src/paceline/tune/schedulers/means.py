"""Running means of many trials over time, and how many of them were better than a score at a certain time.

A trial's mean holds from one report to the next. Asked for is how many means hold at a time, and how many of those are
above a score: as many as began by then, less those that ended by then. To count either, times lie in blocks with the
means of each block in order, so that neither reports nor trials have to be looked at one by one.
"""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass, field

_LEAST_BLOCK = 128


@dataclass
class Block:
    times: list[float] = field(default_factory=list)
    means: list[float] = field(default_factory=list)
    """At each of the times."""
    ranked: list[float] = field(default_factory=list)
    """The means, from the least to the most."""


@dataclass
class Moments:
    """Means that began, or ended, each at some time."""

    blocks: list[Block] = field(default_factory=lambda: [Block()])
    firsts: list[float] = field(default_factory=list)
    """The first time of each block but the first."""
    count: int = 0

    def add(self, time: float, mean: float) -> None:
        number = bisect.bisect_right(self.firsts, time)
        block = self.blocks[number]
        place = bisect.bisect_right(block.times, time)
        block.times.insert(place, time)
        block.means.insert(place, mean)
        bisect.insort(block.ranked, mean)
        self.count += 1
        # As many blocks as there are means in one: both are gone through when something is asked.
        if len(block.times) > max(_LEAST_BLOCK, math.isqrt(self.count)):
            self._halve(number)

    def until(self, time: float, score: float) -> tuple[int, int]:
        """How many there are until a time, that time included; and how many of them are above a score."""
        last = bisect.bisect_right(self.firsts, time)
        total = above = 0
        for block in self.blocks[:last]:
            total += len(block.ranked)
            above += len(block.ranked) - bisect.bisect_right(block.ranked, score)
        block = self.blocks[last]
        place = bisect.bisect_right(block.times, time)
        return total + place, above + sum([mean > score for mean in block.means[:place]])

    def _halve(self, number: int) -> None:
        block = self.blocks[number]
        half = len(block.times) // 2
        parts = [Block(block.times[part], block.means[part]) for part in (slice(half), slice(half, None))]
        for part in parts:
            part.ranked = sorted(part.means)
        self.blocks[number : number + 1] = parts
        self.firsts.insert(number, parts[1].times[0])


@dataclass
class RunningMean:
    """Of one trial, up to its last report."""

    time: float
    total: float
    count: int = 1

    @property
    def mean(self) -> float:
        return self.total / self.count


@dataclass
class Means:
    """The running means of all trials."""

    began: Moments = field(default_factory=Moments)
    ended: Moments = field(default_factory=Moments)
    """Of means that a later report has ended."""
    last: dict[float, list[float]] = field(default_factory=dict)
    """Those that hold at a trial's last report, and until its next: by time, from the least to the most."""
    of: dict[str, RunningMean] = field(default_factory=dict)

    def extend(self, trial_id: str, time: float, score: float) -> None:
        """A trial has reported a score, at a later time than before."""
        running = self.of.get(trial_id)
        if running is None:
            running = self.of[trial_id] = RunningMean(time, score)
        else:
            self.began.add(running.time, running.mean)
            self.ended.add(time, running.mean)
            self._drop(running)
            total = running.total + score
            running.time = time
            running.total = total if total == total else -math.inf  # Of infinities of both signs.
            running.count += 1
        bisect.insort(self.last.setdefault(time, []), running.mean)

    def forget(self, trial_id: str) -> None:
        """A trial begins anew: what it will report does not follow what it has."""
        running = self.of.pop(trial_id, None)
        if running is not None:
            self._drop(running)

    def better(self, time: float, score: float) -> tuple[int, int]:
        """How many trials have a mean at a time that they have come to or past; and how many of these are better."""
        began, began_above = self.began.until(time, score)
        ended, ended_above = self.ended.until(time, score)
        last = self.last.get(time, ())
        return began - ended + len(last), began_above - ended_above + len(last) - bisect.bisect_right(last, score)

    def _drop(self, running: RunningMean) -> None:
        means = self.last[running.time]
        del means[bisect.bisect_left(means, running.mean)]
        if not means:
            del self.last[running.time]
