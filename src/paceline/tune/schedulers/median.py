"""The median rule: a trial whose best is worse than the median of the others' means so far is stopped.

As in Google Vizier (https://research.google.com/pubs/pub46180.html). Compared are the trials that have come as far as
this one, each with the mean of what it had reported up to there. Worse than the median is what is worse than more than
half of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.tune.schedulers.judged import WORST, JudgingScheduler, checked_number, short
from paceline.tune.schedulers.means import Means
from paceline.tune.schedulers.scheduler import Action, Pause, Resume, Stop
from paceline.tune.trial import Trial


@dataclass
class Followed:
    """A trial that is not over."""

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
    for others that wait; 0 means never.
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
        self._means = Means()
        self._followed: dict[str, Followed] = {}
        self._waiting: dict[str, None] = {}
        """Trials that wait for room, as far as was told."""
        self._paused: dict[str, None] = {}
        self._no_more = False

    def on_trial_add(self, trial: Trial) -> Sequence[Action]:
        self.needed_metric()
        # A trial that had failed and is tried again may begin anew.
        self._means.forget(trial.trial_id)
        self._followed[trial.trial_id] = Followed()
        self._waiting[trial.trial_id] = None
        return ()

    def on_trial_begin(self, trial: Trial) -> None:
        self._waiting.pop(trial.trial_id, None)

    def on_trial_result(self, trial: Trial, result: Mapping[str, Any]) -> Sequence[Action]:
        self._waiting.pop(trial.trial_id, None)
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
        others, better = self._means.better(time, followed.best)
        self._means.extend(trial.trial_id, time, score)
        if followed.is_spared:
            return ()
        if others < self.min_samples_required:
            return self._yielded(trial.trial_id, followed, time)
        if 2 * better <= others:
            return ()
        why = (
            f"its best {self.metric} by {self.time_attr} {short(time)}, {self.spoken(followed.best)}, is worse than "
            f"the mean so far of {better} of {others} other trials"
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

    def _yielded(self, trial_id: str, followed: Followed, time: float) -> Sequence[Action]:
        if not self.min_time_slice or time - followed.began < self.min_time_slice or not self._waiting:
            return ()
        why = f"makes room at {self.time_attr} {short(time)} for {len(self._waiting)} that wait"
        followed.began = time
        self._waiting[trial_id] = None
        return Pause(trial_id, why), Resume(trial_id)

    def _left(self, trial_id: str) -> Sequence[Action]:
        self._waiting.pop(trial_id, None)
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
