"""The median rule: stops a trial whose best value is worse than the median of the other trials' running means.

As in Google Vizier (https://research.google.com/pubs/pub46180.html). A trial is compared with those that got as far,
each by the mean of its reports up to that time. "Worse than the median" means worse than more than half of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline._core.arguments import check_int, check_number
from paceline.tune.results.scopes import as_float
from paceline.tune.schedulers.metric_scheduler import WORST, MetricScheduler, format_number
from paceline.tune.schedulers.running_means import TrialMeans
from paceline.tune.schedulers.scheduler import Action, Pause, Resume, Stop
from paceline.tune.trial import Trial


@dataclass
class FollowedTrial:
    """An unfinished trial."""

    best: float = WORST
    last: float = WORST
    """The time of its last report."""
    slice_started: float = 0.0
    """Since when it has been running without yielding."""
    is_spared: bool = False
    """It was paused and resumed: no further decisions are made about it."""


class MedianStoppingRule(MetricScheduler):
    """Stops a trial whose best value so far is worse than the median of the others' means up to the same time.

    No trial is stopped before `grace_period`, nor while fewer than `min_samples_required` others have got as far; means
    start at `grace_period`. With `hard_stop=False`, trials are paused instead, and resume one after the other when all
    others have ended. With `min_time_slice`, a trial that cannot be judged yet yields to waiting trials after that
    long; 0 means never.
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
        self.grace_period = check_number("grace_period", grace_period, at_least=0)
        self.min_samples_required = check_int("min_samples_required", min_samples_required, at_least=1)
        self.min_time_slice = check_number("min_time_slice", min_time_slice, at_least=0)
        self.hard_stop = hard_stop
        self._means = TrialMeans()
        self._followed: dict[str, FollowedTrial] = {}
        self._waiting: dict[str, None] = {}
        """Trials known to be waiting for capacity."""
        self._paused: dict[str, None] = {}
        self._no_more = False

    def on_trial_add(self, trial: Trial) -> Sequence[Action]:
        self.require_metric()
        # A failed trial that is retried may start from scratch.
        self._means.forget(trial.trial_id)
        self._followed[trial.trial_id] = FollowedTrial()
        self._waiting[trial.trial_id] = None
        return ()

    def on_trial_begin(self, trial: Trial) -> None:
        self._waiting.pop(trial.trial_id, None)

    def on_trial_result(self, trial: Trial, result: Mapping[str, Any]) -> Sequence[Action]:
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
