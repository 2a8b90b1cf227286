"""The median rule: a trial whose best is worse than the median of the others' means so far is stopped.

As in Google Vizier (https://research.google.com/pubs/pub46180.html). Compared are the trials that have come as far as
this one, each with the mean of what it had reported up to there.
"""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.tune.schedulers.judged import WORST, JudgingScheduler, checked_number, short
from paceline.tune.schedulers.scheduler import Action, Pause, Resume, Stop
from paceline.tune.trial import Trial


@dataclass
class Curve:
    """The reports of one trial from the grace period on."""

    times: list[float] = field(default_factory=list)
    means: list[float] = field(default_factory=list)
    """Of the scores up to each of them."""
    total: float = 0.0

    def extended(self, time: float, score: float) -> None:
        self.times.append(time)
        total = self.total + score
        self.total = total if total == total else WORST  # Of infinities of both signs.
        self.means.append(self.total / len(self.times))


@dataclass
class Followed:
    """A trial that is not over."""

    curve: Curve
    best: float = WORST
    last: float = WORST
    """The time of its last report."""
    began: float = 0.0
    """The time from which it has been running since it last yielded."""
    is_spared: bool = False
    """It was paused and let go on: nothing is decided about it any more."""


class MedianStoppingRule(JudgingScheduler):
    """Stops a trial whose best value so far is worse than the median of the others' means up to the same time.

    No trial is stopped before `grace_period`, nor while fewer than `min_samples_required` others have come as far;
    means are taken from `grace_period` on. With `hard_stop=False` trials are paused instead, and go on one after the
    other when all others are over. With `min_time_slice`, a trial that cannot be judged yet makes room after so long
    for trials that have not reported yet; 0 means never.
    """

    def __init__(
        self,
        time_attr: str = "time_total_s",
        metric: str | None = None,
        mode: str | None = None,
        grace_period: float = 60.0,
        min_samples_required: int = 3,
        min_time_slice: float = 0,
        hard_stop: bool = True,
    ) -> None:
        super().__init__(time_attr, metric, mode)
        self.grace_period = checked_number("grace_period", grace_period, 0)
        self.min_samples_required = checked_number("min_samples_required", min_samples_required, 1, whole=True)
        self.min_time_slice = checked_number("min_time_slice", min_time_slice, 0)
        self.hard_stop = hard_stop
        self._curves: dict[str, Curve] = {}
        self._followed: dict[str, Followed] = {}
        self._silent: dict[str, None] = {}
        """Trials that have not reported yet."""
        self._paused: dict[str, None] = {}
        self._no_more = False

    def on_trial_add(self, trial: Trial) -> Sequence[Action]:
        self.needed_metric()
        curve = self._curves.setdefault(trial.trial_id, Curve())
        self._followed[trial.trial_id] = Followed(curve)
        self._silent[trial.trial_id] = None
        return ()

    def on_trial_result(self, trial: Trial, result: Mapping[str, Any]) -> Sequence[Action]:
        self._silent.pop(trial.trial_id, None)
        followed = self._followed.get(trial.trial_id)
        time = self.time_of(trial.trial_id, result)
        score = self.score_of(result)
        if followed is None or time is None or score is None or time <= followed.last:
            return ()
        score = as_float(score)
        followed.last = time
        followed.best = max(followed.best, score)
        if time < self.grace_period:
            return ()
        followed.curve.extended(time, score)
        if followed.is_spared:
            return ()
        others = self._others_means(followed.curve, time)
        if len(others) < self.min_samples_required:
            return self._yielded(trial.trial_id, followed, time)
        median = statistics.median(others)
        if followed.best >= median or median != median:
            return ()
        why = (
            f"its best {self.metric} by {self.time_attr} {short(time)}, {self.spoken(followed.best)}, is worse than "
            f"the median of the means of {len(others)} other trials ({self.spoken(median)})"
        )
        if self.hard_stop:
            self._followed.pop(trial.trial_id)
            return (Stop(trial.trial_id, why), *self._last_ones())
        self._paused[trial.trial_id] = None
        resumed = [action for action in self._last_ones() if action.trial_id != trial.trial_id]
        # Where all others are over or paused there is nobody to make room for: it goes on like them.
        return resumed if followed.is_spared else (Pause(trial.trial_id, why), *resumed)

    def on_trial_complete(self, trial: Trial, result: Mapping[str, Any] | None) -> Sequence[Action]:
        return self._left(trial.trial_id)

    def on_trial_error(self, trial: Trial) -> Sequence[Action]:
        return self._left(trial.trial_id)

    def on_no_more_trials(self) -> Sequence[Action]:
        self._no_more = True
        return self._last_ones()

    def on_idle(self) -> Sequence[Action]:
        return self._resumed()

    def _others_means(self, own: Curve, time: float) -> list[float]:
        return [
            curve.means[bisect_right(curve.times, time) - 1]
            for curve in self._curves.values()
            if curve.times and curve.times[-1] >= time >= curve.times[0] and curve is not own
        ]

    def _yielded(self, trial_id: str, followed: Followed, time: float) -> Sequence[Action]:
        if not self.min_time_slice or time - followed.began < self.min_time_slice or not self._silent:
            return ()
        followed.began = time
        return Pause(trial_id, "makes room for trials that have not begun"), Resume(trial_id)

    def _left(self, trial_id: str) -> Sequence[Action]:
        self._silent.pop(trial_id, None)
        self._paused.pop(trial_id, None)
        self._followed.pop(trial_id, None)
        return self._last_ones()

    def _last_ones(self) -> Sequence[Action]:
        """What was paused goes on once nothing else is left."""
        return self._resumed() if self._no_more and len(self._paused) == len(self._followed) else ()

    def _resumed(self) -> Sequence[Action]:
        for trial_id in self._paused:
            self._followed[trial_id].is_spared = True
        resumed = [Resume(trial_id) for trial_id in self._paused]
        self._paused.clear()
        return resumed


def as_float(score: float) -> float:
    """A score that can be added up: an integer may be larger than any float."""
    try:
        return float(score)
    except OverflowError:
        return float("inf") if score > 0 else WORST
