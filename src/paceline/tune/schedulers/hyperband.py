"""HyperBand: brackets of trials that are halved together, at increasing times, by pausing early arrivals.

A bracket is a number of trials and a time: many trials that are first compared early, or few that are compared late. At
each of its times, the bracket waits for all of its live trials; then the best continue and the others are stopped.
Brackets are filled one after the other, from smallest to largest, and then again. https://arxiv.org/abs/1603.06560
Nothing waits forever: finished trials are not waited for, and a bracket that will not fill up is halved as it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from paceline._core.arguments import check_number
from paceline.tune.schedulers.asha import count_best
from paceline.tune.schedulers.metric_scheduler import WORST, MetricScheduler, format_number
from paceline.tune.schedulers.scheduler import Action, Pause, Resume, Stop
from paceline.tune.trial import Trial


@dataclass(frozen=True)
class BracketShape:
    size: int
    times: tuple[float, ...]
    """When they are compared; all below max_t."""


@dataclass(frozen=True)
class RungArrival:
    """The report a trial is compared by."""

    time: float
    score: float
    description: str


@dataclass
class HyperBandBracket:
    number: int
    shape: BracketShape
    num_added: int = 0
    is_open: bool = True
    rung: int = 0
    """Index of the time it waits at."""
    live_trials: dict[str, None] = field(default_factory=dict)
    arrivals: dict[str, RungArrival] = field(default_factory=dict)
    """The trials at the rung, all paused, in order of arrival."""

    @property
    def time(self) -> float:
        """When its trials are compared next; infinity for those that run to their end."""
        return self.shape.times[self.rung] if self.rung < len(self.shape.times) else math.inf

    @property
    def is_complete(self) -> bool:
        return not self.is_open and 0 < len(self.live_trials) == len(self.arrivals)


def compute_bracket_shapes(max_t: float, reduction_factor: float) -> list[BracketShape]:
    """Return the brackets of one round, smallest to largest, as in the paper."""
    most = 0
    while reduction_factor ** (most + 1) <= max_t:
        most += 1
    return [
        BracketShape(
            math.ceil((most + 1) / (halvings + 1) * reduction_factor**halvings),
            tuple(max(1, round(max_t / reduction_factor**ahead)) for ahead in range(halvings, 0, -1)),
        )
        for halvings in range(most + 1)
    ]


class HyperBandScheduler(MetricScheduler):
    """Halves brackets of trials: at each time of a bracket, the best `1/reduction_factor` of its trials continue.

    `max_t` is the maximum a trial gets, in units of `time_attr`; with 81 and a factor of 3, a round has brackets of 5,
    8, 15, 34 and 81 trials. Waiting trials are paused to free their resources, and resume from their last checkpoint:
    train functions must save and restore.
    """

    largest_first: ClassVar[bool] = False

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
        self.max_t = check_number("max_t", max_t, above=0)
        self.reduction_factor = check_number("reduction_factor", reduction_factor, above=1)
        self.stop_last_trials = stop_last_trials
        order = compute_bracket_shapes(max_t, reduction_factor)
        self._shapes = order[::-1] if self.largest_first else order
        self._num_brackets = 0
        self._filling: HyperBandBracket | None = None
        self._brackets: dict[str, HyperBandBracket] = {}

    def on_trial_add(self, trial: Trial) -> Sequence[Action]:
        self.require_metric()
        if self._filling is None:
            self._filling = HyperBandBracket(self._num_brackets, self._shapes[self._num_brackets % len(self._shapes)])
            self._num_brackets += 1
        bracket = self._filling
        self._brackets[trial.trial_id] = bracket
        bracket.live_trials[trial.trial_id] = None
        bracket.num_added += 1
        return self._close_bracket() if bracket.num_added == bracket.shape.size else ()

    def on_trial_result(self, trial: Trial, result: Mapping[str, Any]) -> Sequence[Action]:
        trial_id = trial.trial_id
        bracket = self._brackets.get(trial_id)
        time = self.get_time(trial_id, result)
        if bracket is None or time is None:
            return ()
        if time >= self.max_t and self.stop_last_trials:
            return Stop(trial_id, self.format_max_t(time, self.max_t)), *self._remove_trial(trial_id)
        score = self.get_score(result)
        if score is None or time < bracket.time:
            return ()
        bracket.arrivals.setdefault(trial_id, RungArrival(time, score, self.format_report(result, time)))
        actions = [action for action in self._halve_bracket(bracket) if action != Resume(trial_id)]
        if trial_id not in bracket.arrivals:
            return actions
        return Pause(trial_id, self._format_wait_reason(bracket)), *actions

    def on_no_more_trials(self) -> Sequence[Action]:
        return self._close_bracket()

    def on_idle(self) -> Sequence[Action]:
        return self._close_bracket()

    def choose(self, waiting: Sequence[Trial]) -> Trial | None:
        """Choose from the oldest bracket first, so that it completes before others start."""
        return min(waiting, key=self._bracket_number, default=None)

    def _bracket_number(self, trial: Trial) -> int:
        bracket = self._brackets.get(trial.trial_id)
        return bracket.number if bracket is not None else -1

    def _close_bracket(self) -> Sequence[Action]:
        """Stop adding trials to the bracket that is being filled."""
        bracket, self._filling = self._filling, None
        if bracket is None:
            return ()
        bracket.is_open = False
        return [*self._halve_bracket(bracket)]

    def _remove_trial(self, trial_id: str) -> Sequence[Action]:
        bracket = self._brackets.pop(trial_id, None)
        if bracket is None:
            return ()
        bracket.live_trials.pop(trial_id)
        bracket.arrivals.pop(trial_id, None)
        return [*self._halve_bracket(bracket)]

    def _halve_bracket(self, bracket: HyperBandBracket) -> Iterator[Action]:
        """Decide about a bracket's trials once all have arrived; before that, nothing."""
        while bracket.is_complete:
            # In a tie, earlier arrivals rank higher.
            ranked = sorted(bracket.arrivals.items(), key=lambda item: -item[1].score)
            numbers = sum(arrival.score != WORST for _, arrival in ranked)
            count = min(count_best(len(ranked), self.reduction_factor), numbers or len(ranked))
            bracket.rung += 1
            bracket.arrivals = {}
            for trial_id, arrival in ranked[:count]:
                # A trial that is already past the next time is compared there by the same report.
                if arrival.time >= bracket.time:
                    bracket.arrivals[trial_id] = arrival
                else:
                    yield Resume(trial_id)
            needed = self.format_score(ranked[count - 1][1].score)
            best = "the best" if count == 1 else f"among the best {count}"
            among = f"{best} of the {len(ranked)} trials of its bracket (needs {needed})"
            for trial_id, arrival in ranked[count:]:
                del self._brackets[trial_id], bracket.live_trials[trial_id]
                yield Stop(trial_id, f"{arrival.description} is not {among}")

    def _format_wait_reason(self, bracket: HyperBandBracket) -> str:
        missing = len(bracket.live_trials) - len(bracket.arrivals)
        awaited = f"its bracket of {bracket.shape.size} trials to fill up"
        if missing:
            awaited = f"{missing} other trial{'s' * (missing > 1)} of its bracket"
        return f"waits at {self.time_attr} {format_number(bracket.time)} for {awaited}"


class HyperBandForBOHB(HyperBandScheduler):
    """HyperBand for searchers that learn from early results: the largest bracket is filled first."""

    largest_first: ClassVar[bool] = True
