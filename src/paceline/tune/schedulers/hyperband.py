"""HyperBand: brackets of trials that are halved together, at growing times, by pausing those that come there first.

A bracket is a number of trials and a time: many trials that are first compared early, or few that are compared late. At
each of its times, all of its trials that still live are waited for; then the best go on and the others are stopped.
Brackets are filled one after the other, from the smallest to the largest, and then again. https://arxiv.org/abs/1603.06560

Nothing may be waited for in vain: a trial that is over is no longer waited for, and a bracket that will not fill up is
halved with the trials it has.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from paceline.tune.schedulers.asha import num_best
from paceline.tune.schedulers.judged import WORST, JudgingScheduler, checked_number, short
from paceline.tune.schedulers.scheduler import Action, Pause, Resume, Stop
from paceline.tune.trial import Trial


@dataclass(frozen=True)
class Shape:
    """What a bracket is to be."""

    size: int
    """How many trials it begins with."""
    times: tuple[float, ...]
    """When they are compared: all below max_t."""


@dataclass(frozen=True)
class Arrival:
    """The report by which a trial is compared."""

    time: float
    score: float
    said: str


@dataclass
class Bracket:
    number: int
    shape: Shape
    num_added: int = 0
    is_open: bool = True
    """It takes further trials."""
    rung: int = 0
    """Which of its times it waits at."""
    living: dict[str, None] = field(default_factory=dict)
    arrived: dict[str, Arrival] = field(default_factory=dict)
    """Those at the rung, all paused, in the order in which they came."""

    @property
    def time(self) -> float:
        """When its trials are compared next; infinity for those that run to their end."""
        return self.shape.times[self.rung] if self.rung < len(self.shape.times) else math.inf

    @property
    def is_complete(self) -> bool:
        return not self.is_open and 0 < len(self.living) == len(self.arrived)


def shapes(max_t: float, reduction_factor: float) -> list[Shape]:
    """The brackets of one round, from the smallest to the largest, as in the paper."""
    most = 0
    while reduction_factor ** (most + 1) <= max_t:
        most += 1
    return [
        Shape(
            math.ceil((most + 1) / (halvings + 1) * reduction_factor**halvings),
            tuple(max(1, round(max_t / reduction_factor**ahead)) for ahead in range(halvings, 0, -1)),
        )
        for halvings in range(most + 1)
    ]


class HyperBandScheduler(JudgingScheduler):
    """Halves brackets of trials: at each time of a bracket, the best `1/reduction_factor` of its trials go on.

    `max_t` is the most that a trial gets, in the unit of `time_attr`; with 81 and a factor of 3 a round has brackets of
    5, 8, 15, 34 and 81 trials. Trials that wait are paused, so that others have their room, and go on from their last
    checkpoint: train functions have to save and to continue.
    """

    largest_first: ClassVar[bool] = False
    """Whether brackets are filled from the largest to the smallest."""

    def __init__(
        self,
        time_attr: str = "training_iteration",
        metric: str | None = None,
        mode: str | None = None,
        max_t: float = 81,
        reduction_factor: float = 3,
        stop_last_trials: bool = True,
    ) -> None:
        super().__init__(time_attr, metric, mode)
        self.max_t = checked_number("max_t", max_t, 0, above=True)
        self.reduction_factor = checked_number("reduction_factor", reduction_factor, 1, above=True)
        self.stop_last_trials = stop_last_trials
        order = shapes(max_t, reduction_factor)
        self._shapes = order[::-1] if self.largest_first else order
        self._num_brackets = 0
        self._filling: Bracket | None = None
        self._brackets: dict[str, Bracket] = {}
        """Of each trial that is not over."""

    def on_trial_add(self, trial: Trial) -> Sequence[Action]:
        self.needed_metric()
        if self._filling is None:
            self._filling = Bracket(self._num_brackets, self._shapes[self._num_brackets % len(self._shapes)])
            self._num_brackets += 1
        bracket = self._filling
        self._brackets[trial.trial_id] = bracket
        bracket.living[trial.trial_id] = None
        bracket.num_added += 1
        return self._closed() if bracket.num_added == bracket.shape.size else ()

    def on_trial_result(self, trial: Trial, result: Mapping[str, Any]) -> Sequence[Action]:
        trial_id = trial.trial_id
        bracket = self._brackets.get(trial_id)
        time = self.time_of(trial_id, result)
        if bracket is None or time is None:
            return ()
        if time >= self.max_t and self.stop_last_trials:
            why = f"reached max_t: {self.time_attr} {short(time)} of {short(self.max_t)}"
            return Stop(trial_id, why), *self._left(trial_id)
        score = self.score_of(result)
        if score is None or time < bracket.time:
            return ()
        bracket.arrived.setdefault(trial_id, Arrival(time, score, self.placed(result, time)))
        actions = [action for action in self._halved(bracket) if action != Resume(trial_id)]
        if trial_id not in bracket.arrived:
            return actions
        return Pause(trial_id, self._why_waiting(bracket)), *actions

    def on_trial_complete(self, trial: Trial, result: Mapping[str, Any] | None) -> Sequence[Action]:
        return self._left(trial.trial_id)

    def on_trial_error(self, trial: Trial) -> Sequence[Action]:
        return self._left(trial.trial_id)

    def on_no_more_trials(self) -> Sequence[Action]:
        return self._closed()

    def on_idle(self) -> Sequence[Action]:
        return self._closed()

    def choose(self, waiting: Sequence[Trial]) -> Trial | None:
        """The oldest bracket first, so that it is done before others have begun."""
        return min(waiting, key=self._age, default=None)

    def _age(self, trial: Trial) -> int:
        bracket = self._brackets.get(trial.trial_id)
        return bracket.number if bracket is not None else -1

    def _closed(self) -> Sequence[Action]:
        """The bracket that is being filled gets no further trial."""
        bracket, self._filling = self._filling, None
        if bracket is None:
            return ()
        bracket.is_open = False
        return [*self._halved(bracket)]

    def _left(self, trial_id: str) -> Sequence[Action]:
        """A trial is over: those who wait for it need not."""
        bracket = self._brackets.pop(trial_id, None)
        if bracket is None:
            return ()
        bracket.living.pop(trial_id)
        bracket.arrived.pop(trial_id, None)
        return [*self._halved(bracket)]

    def _halved(self, bracket: Bracket) -> Iterator[Action]:
        """What becomes of a bracket's trials if all have come; nothing if some are still to come."""
        while bracket.is_complete:
            # Of equals those who came first are the better.
            ranked = sorted(bracket.arrived.items(), key=lambda item: -item[1].score)
            numbers = sum(arrival.score != WORST for _, arrival in ranked)
            count = min(num_best(len(ranked), self.reduction_factor), numbers or len(ranked))
            bracket.rung += 1
            bracket.arrived = {}
            for trial_id, arrival in ranked[:count]:
                # Who has come as far as the next time already is compared there by the same report.
                if arrival.time >= bracket.time:
                    bracket.arrived[trial_id] = arrival
                else:
                    yield Resume(trial_id)
            needed = self.spoken(ranked[count - 1][1].score)
            best = "the best" if count == 1 else f"among the best {count}"
            for trial_id, arrival in ranked[count:]:
                del self._brackets[trial_id], bracket.living[trial_id]
                best = (
                    f"the best of the {len(ranked)}" if count == 1 else f"among the best {count} of the {len(ranked)}"
                )
                yield Stop(trial_id, f"{arrival.said} is not {best} trials of its bracket (needs {needed})")

    def _why_waiting(self, bracket: Bracket) -> str:
        missing = len(bracket.living) - len(bracket.arrived)
        if missing:
            others = "1 other trial" if missing == 1 else f"{missing} other trials"
            return f"waits at {self.time_attr} {short(bracket.time)} for {others} of its bracket"
        size = bracket.shape.size
        return f"waits at {self.time_attr} {short(bracket.time)} for its bracket of {size} trials to fill up"


class HyperBandForBOHB(HyperBandScheduler):
    """HyperBand for searchers that learn from early results: the largest bracket is filled first."""

    largest_first: ClassVar[bool] = True
