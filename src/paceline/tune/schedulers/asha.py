"""Asynchronous successive halving: at increasing times, stops a trial that is not among the best so far.

The times are rungs: `grace_period`, then each `reduction_factor` times the previous one, below `max_t`. A trial is
judged once per rung, by its first report at or after it, against all trials that reached the rung before: no trial
waits for another. https://arxiv.org/abs/1810.05934
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline._core.arguments import check_int, check_number
from paceline.tune.schedulers.metric_scheduler import WORST, MetricScheduler, format_number
from paceline.tune.schedulers.scheduler import Action, Stop
from paceline.tune.trial import Trial


@dataclass
class Rung:
    """The scores of trials when they reached a certain time."""

    time: float
    scores: list[float] = field(default_factory=list)
    """From worst to best."""

    def enter(self, score: float, reduction_factor: float) -> float:
        """Add a trial's score, and return the lowest of the best; nan is among them only if there is nothing else."""
        bisect.insort(self.scores, score)
        cut = self.scores[-count_best(len(self.scores), reduction_factor)]
        if cut == WORST and self.scores[-1] != WORST:
            cut = self.scores[bisect.bisect_right(self.scores, WORST)]
        return cut


@dataclass
class AshaBracket:
    rungs: list[Rung]
    share: float
    """Fraction of all trials."""
    num_trials: int = 0


@dataclass
class BracketPosition:
    bracket: AshaBracket
    next_rung: int = 0


def count_best(count: int, reduction_factor: float) -> int:
    """How many of `count` trials continue: one in `reduction_factor`, rounded down, and at least one."""
    return max(1, math.floor(count / reduction_factor))


def format_best_share(count: int, reduction_factor: float) -> str:
    """Format a message part such as `the best 1/4 of 8 trials`."""
    if count < 2 * reduction_factor:
        return f"the best of {count} trials"
    return f"among the best 1/{format_number(reduction_factor)} of {count} trials"


class AsyncHyperBandScheduler(MetricScheduler):
    """Stops a trial at a rung unless it is among the best `1/reduction_factor` of those that got there so far.

    No trial is stopped before `grace_period`, and all are stopped at `max_t` unless `stop_last_trials` is False; both
    are in units of `time_attr`, which must increase from report to report. With several brackets, each one starts
    judging one rung later than the previous one; their shares of the trials fall by a factor of e for each rung fewer.
    """

    def __init__(
        self,
        time_attr: str = "training_iteration",
        metric: str | None = None,
        mode: str | None = None,
        max_t: float = 100,
        grace_period: float = 1,
        reduction_factor: float = 4,
        brackets: int = 1,
        stop_last_trials: bool = True,
    ) -> None:
        super().__init__(time_attr, metric, mode)
        self.max_t = check_number("max_t", max_t, above=0)
        self.grace_period = check_number("grace_period", grace_period, above=0)
        self.reduction_factor = check_number("reduction_factor", reduction_factor, above=1)
        if grace_period > max_t:
            raise ValueError(f"grace_period must be at most max_t={max_t!r}, got {grace_period!r}")
        self.stop_last_trials = stop_last_trials
        self.brackets = check_int("brackets", brackets, at_least=1)
        self._brackets = self._make_brackets()
        self._positions: dict[str, BracketPosition] = {}

    def on_trial_add(self, trial: Trial) -> Sequence[Action]:
        self.require_metric()
        count = sum(bracket.num_trials for bracket in self._brackets) + 1
        # Assigned by share instead of at random: reproducible, and no bracket can stay empty.
        behind = max(self._brackets, key=lambda bracket: bracket.share * count - bracket.num_trials)
        behind.num_trials += 1
        self._positions[trial.trial_id] = BracketPosition(behind)
        return ()

    def on_trial_result(self, trial: Trial, result: Mapping[str, Any]) -> Sequence[Action]:
        time = self.get_time(trial.trial_id, result)
        if time is None:
            return ()
        if time >= self.max_t and self.stop_last_trials:
            self._positions.pop(trial.trial_id, None)
            return (Stop(trial.trial_id, self.format_max_t(time, self.max_t)),)
        position = self._positions.get(trial.trial_id)
        score = self.get_score(result)
        if position is None or score is None:
            return ()
        rungs = position.bracket.rungs
        reached = sum(rung.time <= time for rung in rungs) - 1
        if reached < position.next_rung:
            return ()
        # If several rungs are passed at once, only the last is entered: at the others, no trial had trained that long.
        position.next_rung = reached + 1
        needed = rungs[reached].enter(score, self.reduction_factor)
        if score >= needed:
            return ()
        best = format_best_share(len(rungs[reached].scores), self.reduction_factor)
        why = f"{self.format_report(result, time)} is not {best} (needs {self.format_score(needed)})"
        del self._positions[trial.trial_id]
        return (Stop(trial.trial_id, why),)

    def _remove_trial(self, trial_id: str) -> Sequence[Action]:
        self._positions.pop(trial_id, None)
        return ()

    def _make_brackets(self) -> list[AshaBracket]:
        times: list[float] = []
        while (time := self.grace_period * self.reduction_factor ** len(times)) < self.max_t:
            times.append(time)
        # A bracket without rungs lets every trial run to max_t; a second one of those would be the same.
        skipped = range(min(self.brackets, len(times) + 1))
        weights = [math.exp(-skip) for skip in skipped]
        return [
            AshaBracket([Rung(time) for time in times[skip:]], weight / sum(weights))
            for skip, weight in zip(skipped, weights, strict=True)
        ]


ASHAScheduler = AsyncHyperBandScheduler
