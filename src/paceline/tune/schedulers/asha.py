"""Asynchronous successive halving: at growing times, a trial that is not among the best so far is stopped.

The times are rungs: `grace_period`, and each further one `reduction_factor` times the one before, below `max_t`. A
trial is judged at a rung once, by its first report at or after it, among all trials that came there before it: nobody
waits for anybody. https://arxiv.org/abs/1810.05934
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.tune.schedulers.judged import WORST, JudgingScheduler, checked_number, short
from paceline.tune.schedulers.scheduler import Action, Stop
from paceline.tune.trial import Trial


@dataclass
class Rung:
    """What trials had reached when they came to a certain time."""

    time: float
    scores: list[float] = field(default_factory=list)
    """From worst to best."""

    def entered(self, score: float, reduction_factor: float) -> float:
        """Take in a trial's score, and tell the least score that is among the best of all that came here.

        The best are one in `reduction_factor`, and at least one. nan is among them only where there is nothing else.
        """
        bisect.insort(self.scores, score)
        cut = self.scores[-num_best(len(self.scores), reduction_factor)]
        if cut == WORST and self.scores[-1] != WORST:
            cut = self.scores[bisect.bisect_right(self.scores, WORST)]
        return cut


@dataclass
class Bracket:
    rungs: list[Rung]
    share: float
    """Of all trials."""
    num_trials: int = 0


@dataclass
class Place:
    """Where a trial is."""

    bracket: Bracket
    next_rung: int = 0


def num_best(count: int, reduction_factor: float) -> int:
    """How many of so many trials go on: one in `reduction_factor`, rounded down, and at least one."""
    return max(1, math.floor(count / reduction_factor))


def among_best(count: int, reduction_factor: float) -> str:
    """`the best 1/4 of 8 trials`, for a person."""
    if count < 2 * reduction_factor:
        return f"the best of {count} trials"
    return f"among the best 1/{short(reduction_factor)} of {count} trials"


class AsyncHyperBandScheduler(JudgingScheduler):
    """Stops a trial at a rung unless it is among the best `1/reduction_factor` of those that came there so far.

    No trial is stopped before `grace_period`, and all are at `max_t` unless `stop_last_trials` is False; both are in
    the unit of `time_attr`, which has to grow from report to report. Of several brackets, each but the first begins to
    judge one rung later than the one before; they get trials in shares that fall by a factor of e with every rung less.
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
        self.max_t = checked_number("max_t", max_t, 0, above=True)
        self.grace_period = checked_number("grace_period", grace_period, 0, above=True)
        self.reduction_factor = checked_number("reduction_factor", reduction_factor, 1, above=True)
        if grace_period > max_t:
            raise ValueError(f"grace_period={grace_period!r} is more than max_t={max_t!r}: no trial would reach it")
        self.stop_last_trials = stop_last_trials
        self.brackets = checked_number("brackets", brackets, 1, whole=True)
        self._brackets = self._made_brackets()
        self._places: dict[str, Place] = {}

    def on_trial_add(self, trial: Trial) -> Sequence[Action]:
        self.needed_metric()
        count = sum(bracket.num_trials for bracket in self._brackets) + 1
        # Shares are kept instead of drawn by lot: the same at every time, and no chance that a bracket stays empty.
        behind = max(self._brackets, key=lambda bracket: bracket.share * count - bracket.num_trials)
        behind.num_trials += 1
        self._places[trial.trial_id] = Place(behind)
        return ()

    def on_trial_result(self, trial: Trial, result: Mapping[str, Any]) -> Sequence[Action]:
        time = self.time_of(trial.trial_id, result)
        if time is None:
            return ()
        if time >= self.max_t and self.stop_last_trials:
            self._places.pop(trial.trial_id, None)
            return (Stop(trial.trial_id, f"reached max_t: {self.time_attr} {short(time)} of {short(self.max_t)}"),)
        place = self._places.get(trial.trial_id)
        score = self.score_of(result)
        if place is None or score is None:
            return ()
        rungs = place.bracket.rungs
        reached = place.next_rung - 1
        while reached + 1 < len(rungs) and rungs[reached + 1].time <= time:
            reached += 1
        if reached < place.next_rung:
            return ()
        # Of several rungs passed at once only the last is entered: at the others nobody had come that far.
        place.next_rung = reached + 1
        needed = rungs[reached].entered(score, self.reduction_factor)
        if score >= needed:
            return ()
        best = among_best(len(rungs[reached].scores), self.reduction_factor)
        why = f"{self.placed(result, time)} is not {best} (needs {self.spoken(needed)})"
        del self._places[trial.trial_id]
        return (Stop(trial.trial_id, why),)

    def on_trial_complete(self, trial: Trial, result: Mapping[str, Any] | None) -> Sequence[Action]:
        self._places.pop(trial.trial_id, None)
        return ()

    def on_trial_error(self, trial: Trial) -> Sequence[Action]:
        self._places.pop(trial.trial_id, None)
        return ()

    def _made_brackets(self) -> list[Bracket]:
        times: list[float] = []
        while (time := self.grace_period * self.reduction_factor ** len(times)) < self.max_t:
            times.append(time)
        # A bracket without rungs lets every trial run to max_t: more than one of that kind would be the same.
        skipped = range(min(self.brackets, len(times) + 1))
        weights = [math.exp(-skip) for skip in skipped]
        return [
            Bracket([Rung(time) for time in times[skip:]], weight / sum(weights))
            for skip, weight in zip(skipped, weights, strict=True)
        ]


ASHAScheduler = AsyncHyperBandScheduler
