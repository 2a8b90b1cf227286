"""A search without processes: trials that report what they are told to, in any order, on any number of slots.

What is told to the scheduler is written down, so that it can be told again.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from paceline.tune.schedulers.scheduler import Action, Exploit, Pause, Resume, Stop, TrialScheduler
from paceline.tune.trial import Trial

Report = Mapping[str, Any]


@dataclass(frozen=True)
class Fate:
    """What a trial would do if it were let run."""

    reports: Sequence[Report]
    fails: bool = False


def curve(values: Sequence[Any], times: Sequence[Any] | None = None, fails: bool = False) -> Fate:
    """A trial that reports these losses, at 1, 2, 3, ... or at these times."""
    times = times or range(1, len(values) + 1)
    reports = [{"training_iteration": t, "loss": v} for t, v in zip(times, values, strict=True)]
    return Fate(reports, fails)


@dataclass(frozen=True)
class Told:
    what: str
    trial_id: str | None
    result: Report | None
    answer: Sequence[Action]


@dataclass
class Search:
    """Plays the fates. `pick(n)` says which of n possible steps is next; without it, the first: trials in order."""

    scheduler: TrialScheduler
    fates: Mapping[str, Fate]
    slots: int = 1
    most_alive: int | None = None
    """How many trials the searcher wants to have that are not over."""
    pick: Callable[[int], int] = lambda n: 0
    tells_stopped: bool = False
    """Whether the scheduler is told that a trial is over that it has stopped itself."""
    told: list[Told] = field(default_factory=list)
    ended: dict[str, str] = field(default_factory=dict)
    """How each trial ended, in that order."""
    made: dict[str, int] = field(default_factory=dict)
    """How many reports each trial has made."""

    def __post_init__(self) -> None:
        self._to_add = [*self.fates]
        self._waiting: list[str] = []
        self._running: list[str] = []
        self._paused: list[str] = []
        self._said_no_more = False

    def play(self) -> Search:
        while len(self.ended) < len(self.fates) or not self._said_no_more:
            steps = self._steps()
            if steps:
                steps[self.pick(len(steps))]()
            else:
                before = len(self._paused)
                self._tell("idle", None, None, self.scheduler.on_idle())
                assert len(self._paused) < before, f"deadlock: {self._paused} wait, {self._to_add} are to come"
        return self

    @property
    def stopped(self) -> dict[str, str]:
        """Why each trial was stopped that was."""
        return {action.trial_id: action.why for told in self.told for action in told.answer if isinstance(action, Stop)}

    @property
    def decisions(self) -> list[Sequence[Action]]:
        return [told.answer for told in self.told]

    def _steps(self) -> list[Callable[[], None]]:
        alive = len(self._waiting) + len(self._running) + len(self._paused)
        steps: list[Callable[[], None]] = []
        if len(self._running) < self.slots and self._waiting:
            steps.append(self._start)
        if self._to_add and (self.most_alive is None or alive < self.most_alive):
            steps.append(self._add)
        if not self._to_add and not self._said_no_more:
            steps.append(self._say_no_more)
        steps += [lambda trial_id=trial_id: self._step(trial_id) for trial_id in self._running]  # type: ignore[misc]
        return steps

    def _add(self) -> None:
        trial_id = self._to_add.pop(0)
        self.made[trial_id] = 0
        self._waiting.append(trial_id)
        self._tell("add", trial_id, None, self.scheduler.on_trial_add(Trial(trial_id, {})))

    def _say_no_more(self) -> None:
        self._said_no_more = True
        self._tell("no more", None, None, self.scheduler.on_no_more_trials())

    def _start(self) -> None:
        chosen = self.scheduler.choose([Trial(trial_id, {}) for trial_id in self._waiting])
        assert chosen is not None
        self._waiting.remove(chosen.trial_id)
        self._running.append(chosen.trial_id)
        self.scheduler.on_trial_begin(chosen)
        self._tell("begin", chosen.trial_id, None, ())

    def _step(self, trial_id: str) -> None:
        fate = self.fates[trial_id]
        if self.made[trial_id] < len(fate.reports):
            result = fate.reports[self.made[trial_id]]
            self.made[trial_id] += 1
            answer = self.scheduler.on_trial_result(Trial(trial_id, {}, "RUNNING"), result)
            assert not isinstance(answer, str)
            self._tell("result", trial_id, result, answer)
        elif fate.fails:
            self._end(trial_id, "failed")
            self._tell("error", trial_id, None, self.scheduler.on_trial_error(Trial(trial_id, {}, "ERROR")))
        else:
            self._end(trial_id, "returned")
            self._complete(trial_id)

    def _complete(self, trial_id: str) -> None:
        trial = Trial(trial_id, {}, "TERMINATED")
        self._tell("complete", trial_id, None, self.scheduler.on_trial_complete(trial, None))

    def _end(self, trial_id: str, how: str) -> None:
        assert trial_id not in self.ended, f"{trial_id} ends twice"
        for trials in (self._waiting, self._running, self._paused):
            if trial_id in trials:
                trials.remove(trial_id)
        self.ended[trial_id] = how

    def _tell(self, what: str, trial_id: str | None, result: Report | None, answer: Sequence[Action]) -> None:
        self.told.append(Told(what, trial_id, result, answer))
        for action in answer:
            match action:
                case Stop(other):
                    self._end(other, "stopped")
                    if self.tells_stopped:
                        self._complete(other)
                case Pause(other):
                    self._running.remove(other)
                    self._paused.append(other)
                case Resume(other):
                    self._paused.remove(other)
                    self._waiting.append(other)
                case Exploit():
                    raise AssertionError("not of these schedulers")


def told_again(scheduler: TrialScheduler, told: Sequence[Told], renamed: Callable[[str], str] = str) -> list[Any]:
    """What a new scheduler answers when it is told the same, with other names for the trials."""
    answers: list[Any] = []
    for each in told:
        trial = Trial(renamed(each.trial_id or ""), {})
        match each.what:
            case "add":
                answers.append(scheduler.on_trial_add(trial))
            case "result":
                assert each.result is not None
                answers.append(scheduler.on_trial_result(trial, each.result))
            case "begin":
                scheduler.on_trial_begin(trial)
                answers.append(())
            case "complete":
                answers.append(scheduler.on_trial_complete(trial, None))
            case "error":
                answers.append(scheduler.on_trial_error(trial))
            case "no more":
                answers.append(scheduler.on_no_more_trials())
            case "idle":
                answers.append(scheduler.on_idle())
    return answers


def state(scheduler: TrialScheduler) -> dict[str, Any]:
    return vars(scheduler)


def shown(decisions: Sequence[Sequence[Action]]) -> list[list[tuple[str, str]]]:
    """Decisions without their reasons."""
    return [[(type(action).__name__, action.trial_id) for action in answer] for answer in decisions]


ids = [f"{number:05d}" for number in range(40)]

UNUSUAL = [math.nan, math.inf, -math.inf, 10**400, -(10**400)]


@st.composite
def fates(draw: st.DrawFn, most: int = 14, longest: int = 12) -> dict[str, Fate]:
    """Trials that report any values, skip iterations, leave the metric out, end early or fail."""
    number, most_reports = draw(st.integers(0, most)), draw(st.integers(0, longest))
    chance = random.Random(draw(st.integers(0, 2**32)))
    return {trial_id: _fate(chance, most_reports) for trial_id in ids[:number]}


def _fate(chance: random.Random, most_reports: int) -> Fate:
    time: float = 0
    reports = []
    for _ in range(chance.randint(0, most_reports)):
        time += chance.choice([1, 1, 1, 2, 5, 0.5])
        value = chance.choice([chance.randint(0, 1), chance.randint(-3, 3), chance.uniform(-1, 1)])
        if chance.random() < 0.2:
            value = chance.choice(UNUSUAL)
        result: dict[str, Any] = {"training_iteration": time, "loss": value}
        if chance.random() < 0.1:
            result.pop(chance.choice(["loss", "training_iteration"]))
        reports.append(result)
    return Fate(reports, chance.random() < 0.3)


@st.composite
def searches(draw: st.DrawFn, make: Callable[[], TrialScheduler]) -> Search:
    """Any search, played in any order."""
    return Search(
        make(),
        draw(fates()),
        slots=draw(st.integers(1, 5)),
        most_alive=draw(st.one_of(st.none(), st.integers(1, 6))),
        pick=random.Random(draw(st.integers(0, 2**32))).randrange,
        tells_stopped=draw(st.booleans()),
    )


def negated(told: Sequence[Told]) -> list[Told]:
    def other(result: Report | None) -> Report | None:
        return None if result is None else {k: -v if k == "loss" else v for k, v in result.items()}

    return [Told(each.what, each.trial_id, other(each.result), each.answer) for each in told]
