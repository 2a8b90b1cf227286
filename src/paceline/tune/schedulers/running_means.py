"""Running means of many trials over time, and how many of them beat a score at a given time.

A trial's mean holds from one report to the next. Those that hold at a time are those that began by then, minus those
that ended by then. To count either without scanning every report, times are in blocks, each with its means sorted.
"""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass, field

_LEAST_BLOCK = 128


@dataclass
class MeanBlock:
    times: list[float] = field(default_factory=list)
    means: list[float] = field(default_factory=list)
    sorted_means: list[float] = field(default_factory=list)


@dataclass
class TimedMeans:
    """Means that began, or ended, each at some time."""

    blocks: list[MeanBlock] = field(default_factory=lambda: [MeanBlock()])
    firsts: list[float] = field(default_factory=list)
    """The first time of each block but the first."""
    count: int = 0

    def add(self, time: float, mean: float) -> None:
        number = bisect.bisect_right(self.firsts, time)
        block = self.blocks[number]
        place = bisect.bisect_right(block.times, time)
        block.times.insert(place, time)
        block.means.insert(place, mean)
        bisect.insort(block.sorted_means, mean)
        self.count += 1
        # Keep the number of blocks close to the block size: a query scans both.
        if len(block.times) > max(_LEAST_BLOCK, math.isqrt(self.count)):
            self._split_block(number)

    def count_until(self, time: float, score: float) -> tuple[int, int]:
        """How many means there are up to and including a time, and how many of them are above a score."""
        last = bisect.bisect_right(self.firsts, time)
        total = above = 0
        for block in self.blocks[:last]:
            total += len(block.sorted_means)
            above += len(block.sorted_means) - bisect.bisect_right(block.sorted_means, score)
        block = self.blocks[last]
        place = bisect.bisect_right(block.times, time)
        return total + place, above + sum([mean > score for mean in block.means[:place]])

    def _split_block(self, number: int) -> None:
        block = self.blocks[number]
        half = len(block.times) // 2
        parts = [MeanBlock(block.times[part], block.means[part]) for part in (slice(half), slice(half, None))]
        for part in parts:
            part.sorted_means = sorted(part.means)
        self.blocks[number : number + 1] = parts
        self.firsts.insert(number, parts[1].times[0])


@dataclass
class RunningMean:
    """The running mean of one trial, up to its last report."""

    time: float
    total: float
    count: int = 1

    @property
    def mean(self) -> float:
        return self.total / self.count


@dataclass
class TrialMeans:
    started: TimedMeans = field(default_factory=TimedMeans)
    ended: TimedMeans = field(default_factory=TimedMeans)
    """Means ended by a later report."""
    last: dict[float, list[float]] = field(default_factory=dict)
    """Means at each trial's last report, which hold until its next: by time, sorted."""
    running: dict[str, RunningMean] = field(default_factory=dict)

    def add_score(self, trial_id: str, time: float, score: float) -> None:
        """Add a trial's score at a later time than its previous one."""
        running = self.running.get(trial_id)
        if running is None:
            running = self.running[trial_id] = RunningMean(time, score)
        else:
            self.started.add(running.time, running.mean)
            self.ended.add(time, running.mean)
            self._drop(running)
            total = running.total + score
            running.time = time
            running.total = total if total == total else -math.inf  # The sum of infinities of both signs.
            running.count += 1
        bisect.insort(self.last.setdefault(time, []), running.mean)

    def forget(self, trial_id: str) -> None:
        """Start a new mean: the trial starts from scratch."""
        running = self.running.pop(trial_id, None)
        if running is not None:
            self._drop(running)

    def count_better(self, time: float, score: float) -> tuple[int, int]:
        """How many trials have a mean at a time they have reached, and how many of these are better."""
        began, began_above = self.started.count_until(time, score)
        ended, ended_above = self.ended.count_until(time, score)
        last = self.last.get(time, ())
        return began - ended + len(last), began_above - ended_above + len(last) - bisect.bisect_right(last, score)

    def _drop(self, running: RunningMean) -> None:
        means = self.last[running.time]
        del means[bisect.bisect_left(means, running.mean)]
        if not means:
            del self.last[running.time]
