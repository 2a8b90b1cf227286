"""Successive halving: at increasing times, the best trials continue and the others are stopped.

ASHA judges a trial at each of its rungs, by its first report at or after it, against all trials that reached the rung
before: no trial waits for another. https://arxiv.org/abs/1810.05934

HyperBand halves brackets of trials together, by pausing early arrivals. A bracket is a number of trials and a time:
many trials that are first compared early, or few that are compared late. Brackets are filled one after the other, from
smallest to largest, and then again. https://arxiv.org/abs/1603.06560 Nothing waits forever: finished trials are not
waited for, and a bracket that will not fill up is halved as it is.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from paceline._core.arguments import bad_value, check_int, check_number
from paceline.tune.schedulers.scheduler import WORST, Action, MetricScheduler, Pause, Resume, Stop, format_number
from paceline.tune.trial import Trial


class HalvingScheduler(MetricScheduler):
    """What ASHA and HyperBand share: one in `reduction_factor` trials continues, until `max_t`."""

    max_t: float
    reduction_factor: float
    stop_last_trials: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("max_t", self.max_t, above=0)
        check_number("reduction_factor", self.reduction_factor, above=1)

    def stop_at_max_t(self, trial_id: str, time: float) -> Stop | None:
        if time < self.max_t or not self.stop_last_trials:
            return None
        return Stop(trial_id, f"reached max_t: {self.time_attr} {format_number(time)} of {format_number(self.max_t)}")


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


@dataclass(eq=False, repr=False)
class AsyncHyperBandScheduler(HalvingScheduler):
    """Stops a trial at a rung unless it is among the best `1/reduction_factor` of the trials that have reached it.

    No trial is stopped before `grace_period`, and all are stopped at `max_t` unless `stop_last_trials` is False; both
    are in units of `time_attr`, which must increase from report to report. With several brackets, each one starts
    judging one rung later than the previous one; their shares of the trials fall by a factor of e for each rung fewer.
    """

    max_t: float = 100
    grace_period: float = 1
    reduction_factor: float = 4
    brackets: int = 1
    stop_last_trials: bool = True
    _positions: dict[str, BracketPosition] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("grace_period", self.grace_period, above=0)
        if self.grace_period > self.max_t:
            raise bad_value("grace_period", f"at most max_t={self.max_t!r}", self.grace_period)
        check_int("brackets", self.brackets, at_least=1)
        self._brackets = self._make_brackets()

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> Sequence[Action]:
        self.require_metric()
        count = sum(bracket.num_trials for bracket in self._brackets) + 1
        # Assigned by share instead of at random: reproducible, and no bracket can stay empty.
        behind = max(self._brackets, key=lambda bracket: bracket.share * count - bracket.num_trials)
        behind.num_trials += 1
        self._positions[trial.trial_id] = BracketPosition(behind)
        return ()

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: Mapping[str, Any]) -> Sequence[Action]:
        time = self.get_time(trial.trial_id, result)
        if time is None:
            return ()
        if (stop := self.stop_at_max_t(trial.trial_id, time)) is not None:
            return stop, *self._remove_trial(trial.trial_id)
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
        count = len(rungs[reached].scores)
        few = count < 2 * self.reduction_factor
        best = f"{'the best' if few else f'among the best 1/{format_number(self.reduction_factor)}'} of {count} trials"
        why = f"{self.format_report(result, time)} is not {best} (needs {self.format_score(needed)})"
        return Stop(trial.trial_id, why), *self._remove_trial(trial.trial_id)

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


@dataclass(eq=False, repr=False)
class HyperBandScheduler(HalvingScheduler):
    """Halves brackets of trials: at each time of a bracket, the best `1/reduction_factor` of its trials continue.

    `max_t` is the maximum a trial gets, in units of `time_attr`; with 81 and a factor of 3, a round has brackets of 5,
    8, 15, 34 and 81 trials. Waiting trials are paused to free their resources, and resume from their last checkpoint:
    train functions must save and restore.
    """

    largest_first: ClassVar[bool] = False

    max_t: float = 81
    reduction_factor: float = 3
    stop_last_trials: bool = True
    _num_brackets: int = field(default=0, init=False)
    _filling: HyperBandBracket | None = field(default=None, init=False)
    _brackets: dict[str, HyperBandBracket] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        shapes = compute_bracket_shapes(self.max_t, self.reduction_factor)
        self._shapes = shapes[::-1] if self.largest_first else shapes

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> Sequence[Action]:
        self.require_metric()
        if self._filling is None:
            self._filling = HyperBandBracket(self._num_brackets, self._shapes[self._num_brackets % len(self._shapes)])
            self._num_brackets += 1
        bracket = self._filling
        self._brackets[trial.trial_id] = bracket
        bracket.live_trials[trial.trial_id] = None
        bracket.num_added += 1
        return self._close_bracket() if bracket.num_added == bracket.shape.size else ()

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: Mapping[str, Any]) -> Sequence[Action]:
        trial_id = trial.trial_id
        bracket = self._brackets.get(trial_id)
        time = self.get_time(trial_id, result)
        if bracket is None or time is None:
            return ()
        if (stop := self.stop_at_max_t(trial_id, time)) is not None:
            return stop, *self._remove_trial(trial_id)
        score = self.get_score(result)
        if score is None or time < bracket.time:
            return ()
        bracket.arrivals.setdefault(trial_id, RungArrival(time, score, self.format_report(result, time)))
        actions = [action for action in self._halve_bracket(bracket) if action != Resume(trial_id)]
        if trial_id not in bracket.arrivals:
            return actions
        missing = len(bracket.live_trials) - len(bracket.arrivals)
        awaited = f"its bracket of {bracket.shape.size} trials to fill up"
        if missing:
            awaited = f"{missing} other trial{'s' * (missing > 1)} of its bracket"
        why = f"waits at {self.time_attr} {format_number(bracket.time)} for {awaited}"
        return Pause(trial_id, why), *actions

    def on_no_more_trials(self) -> Sequence[Action]:
        return self._close_bracket()

    on_idle = on_no_more_trials

    def choose(self, waiting: Sequence[Trial]) -> Trial | None:
        """Choose from the oldest bracket first, so that it completes before others start."""
        return min(waiting, key=lambda trial: getattr(self._brackets.get(trial.trial_id), "number", -1), default=None)

    def state(self) -> dict[str, int]:
        """The number of brackets so far, of those with unfinished trials, and of these trials."""
        open_brackets = {id(bracket) for bracket in self._brackets.values()}
        return {
            "num_brackets": self._num_brackets,
            "num_open_brackets": len(open_brackets),
            "num_trials": len(self._brackets),
        }

    def debug_string(self) -> str:
        return f"Using {type(self).__name__}: {', '.join(f'{name} {count}' for name, count in self.state().items())}"

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


class HyperBandForBOHB(HyperBandScheduler):
    """HyperBand for searchers that learn from early results: the largest bracket is filled first."""

    largest_first: ClassVar[bool] = True
