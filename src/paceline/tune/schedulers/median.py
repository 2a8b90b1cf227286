"""The median rule: stops a trial whose best value is worse than the median of the other trials' running means.

As in Google Vizier (https://research.google.com/pubs/pub46180.html). A trial is compared with those that got as far,
each by the mean of its reports up to that time. "Worse than the median" means worse than more than half of them.

A trial's mean holds from one report to the next. Those that hold at a time are those that began by then, minus those
that ended by then. To count either without scanning every report, times are in blocks, each with its means sorted.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline._core.arguments import check_int, check_number
from paceline.tune.results.scopes import as_float
from paceline.tune.schedulers.scheduler import WORST, Action, MetricScheduler, Pause, Resume, Stop, format_number
from paceline.tune.trial import Trial

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


@dataclass
class FollowedTrial:
    best: float = WORST
    last: float = WORST
    """The time of its last report."""
    slice_started: float = 0.0
    """Since when it has been running without yielding."""
    is_spared: bool = False
    """It was paused and resumed: no further decisions are made about it."""


@dataclass(eq=False, repr=False)
class MedianStoppingRule(MetricScheduler):
    """Stops a trial whose best value so far is worse than the median of the others' means up to the same time.

    No trial is stopped before `grace_period`, nor while fewer than `min_samples_required` others have got as far; means
    start at `grace_period`. With `hard_stop=False`, trials are paused instead, and resume one after the other when all
    others have ended. With `min_time_slice`, a trial that cannot be judged yet yields to waiting trials after that
    long; 0 means never.
    """

    time_attr: str = "time_total_s"
    grace_period: float = 60.0
    min_samples_required: int = 3
    min_time_slice: float = 0
    hard_stop: bool = True
    _means: TrialMeans = field(default_factory=TrialMeans, init=False)
    _followed: dict[str, FollowedTrial] = field(default_factory=dict, init=False)
    _waiting: dict[str, None] = field(default_factory=dict, init=False)
    """Trials known to be waiting for capacity."""
    _paused: dict[str, None] = field(default_factory=dict, init=False)
    _no_more: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("grace_period", self.grace_period, at_least=0)
        check_int("min_samples_required", self.min_samples_required, at_least=1)
        check_number("min_time_slice", self.min_time_slice, at_least=0)

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> Sequence[Action]:
        self.require_metric()
        # A failed trial that is retried may start from scratch.
        self._means.forget(trial.trial_id)
        self._followed[trial.trial_id] = FollowedTrial()
        self._waiting[trial.trial_id] = None
        return ()

    def on_trial_begin(self, trial: Trial) -> None:
        self._waiting.pop(trial.trial_id, None)

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: Mapping[str, Any]) -> Sequence[Action]:
        self._waiting.pop(trial.trial_id, None)
        followed = self._followed.get(trial.trial_id)
        time = self.get_time(trial.trial_id, result)
        score = self.get_score(result)
        if followed is None or time is None or score is None or time <= followed.last:
            return ()
        score = as_float(score)
        followed.last = time
        followed.best = max(followed.best, score)
        if time < self.grace_period:
            return ()
        others, better = self._means.count_better(time, followed.best)
        self._means.add_score(trial.trial_id, time, score)
        if followed.is_spared:
            return ()
        if others < self.min_samples_required:
            return self._yield_slice(trial.trial_id, followed, time)
        if 2 * better <= others:
            return ()
        best = f"its best {self.metric} by {self.time_attr} {format_number(time)}, {self.format_score(followed.best)}"
        why = f"{best}, is worse than the mean so far of {better} of {others} other trials"
        if self.hard_stop:
            self._followed.pop(trial.trial_id)
            return (Stop(trial.trial_id, why), *self._resume_if_last())
        self._paused[trial.trial_id] = None
        resumed = [action for action in self._resume_if_last() if action.trial_id != trial.trial_id]
        # If all others have ended or are paused, there is nobody to yield to: it continues like them.
        return resumed if followed.is_spared else (Pause(trial.trial_id, why), *resumed)

    def on_no_more_trials(self) -> Sequence[Action]:
        self._no_more = True
        return self._resume_if_last()

    def on_idle(self) -> Sequence[Action]:
        return self._resume_paused()

    def _yield_slice(self, trial_id: str, followed: FollowedTrial, time: float) -> Sequence[Action]:
        if not self.min_time_slice or time - followed.slice_started < self.min_time_slice or not self._waiting:
            return ()
        num_waiting = len(self._waiting)
        others = f"{num_waiting} waiting trial{'s' if num_waiting > 1 else ''}"
        why = f"makes room at {self.time_attr} {format_number(time)} for {others}"
        followed.slice_started = time
        self._waiting[trial_id] = None
        return Pause(trial_id, why), Resume(trial_id)

    def _remove_trial(self, trial_id: str) -> Sequence[Action]:
        self._waiting.pop(trial_id, None)
        self._paused.pop(trial_id, None)
        self._followed.pop(trial_id, None)
        return self._resume_if_last()

    def _resume_if_last(self) -> Sequence[Action]:
        """Resume paused trials once nothing else is left."""
        return self._resume_paused() if self._no_more and len(self._paused) == len(self._followed) else ()

    def _resume_paused(self) -> Sequence[Action]:
        for trial_id in self._paused:
            self._followed[trial_id].is_spared = True
        resumed = [Resume(trial_id) for trial_id in self._paused]
        self._paused.clear()
        return resumed
