"""A search without processes: trials that report what they are given, in any order, on any number of slots.

All that the scheduler hears is kept, so that another scheduler can hear it again.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from paceline.tune.schedulers.scheduler import Action, Pause, Resume, Stop, TrialScheduler
from paceline.tune.trial import Trial

Report = Mapping[str, Any]


@dataclass(frozen=True)
class Fate:
    """What a trial would do if it were let run."""

    reports: Sequence[Report]
    fails: bool = False


def curve(values):
    """A trial that reports these losses, at 1, 2, 3, ..."""
    return Fate([{"training_iteration": t, "loss": v} for t, v in enumerate(values, start=1)])


@dataclass(frozen=True)
class Call:
    """Of a method of the scheduler."""

    method: str
    trial_id: str | None
    result: Report | None
    answer: Sequence[Action]


def call(scheduler, method, trial_id, result):
    arguments = [] if trial_id is None else [Trial(trial_id, {})]
    if method in ("on_trial_result", "on_trial_complete"):
        arguments.append(result)
    return getattr(scheduler, method)(*arguments) or ()


def add(scheduler, *trial_ids):
    for trial_id in trial_ids:
        assert not scheduler.on_trial_add(Trial(trial_id, {}))


def tell(scheduler, trial_id, time, loss):
    """What the scheduler does about a report."""
    result = {"training_iteration": time, "loss": loss}
    return without_reasons([scheduler.on_trial_result(Trial(trial_id, {}), result)])[0]


@dataclass
class Search:
    """Plays the fates. `pick(n)` says which of n possible steps is next; without it, the first: trials in order."""

    scheduler: TrialScheduler
    fates: Mapping[str, Fate]
    slots: int = 1
    most_alive: int | None = None
    """How many trials the searcher wants to have that are not over."""
    pick: Callable[[int], int] = lambda n: 0
    completes_stopped: bool = False
    """Whether the scheduler hears that a trial is over that it has stopped itself."""
    calls: list[Call] = field(default_factory=list)
    ended: dict[str, str] = field(default_factory=dict)
    """How each trial ended, in that order."""
    num_reports: dict[str, int] = field(default_factory=dict)

    def __post_init__(self):
        self._to_add = [*self.fates]
        self._waiting = []
        self._running = []
        self._paused = []
        self._said_no_more = False

    def play(self):
        while len(self.ended) < len(self.fates) or not self._said_no_more:
            steps = self._steps()
            if steps:
                steps[self.pick(len(steps))]()
            else:
                before = len(self._paused)
                self._call("on_idle")
                assert len(self._paused) < before, f"deadlock: {self._paused} wait, {self._to_add} are to come"
        return self

    @property
    def decisions(self):
        return [each.answer for each in self.calls]

    def _steps(self):
        alive = len(self._waiting) + len(self._running) + len(self._paused)
        steps = []
        if len(self._running) < self.slots and self._waiting:
            steps.append(self._start)
        if self._to_add and (self.most_alive is None or alive < self.most_alive):
            steps.append(self._add)
        if not self._to_add and not self._said_no_more:
            steps.append(self._say_no_more)
        steps += [lambda trial_id=trial_id: self._step(trial_id) for trial_id in self._running]
        return steps

    def _add(self):
        trial_id = self._to_add.pop(0)
        self.num_reports[trial_id] = 0
        self._waiting.append(trial_id)
        self._call("on_trial_add", trial_id)

    def _say_no_more(self):
        self._said_no_more = True
        self._call("on_no_more_trials")

    def _start(self):
        chosen = self.scheduler.choose([Trial(trial_id, {}) for trial_id in self._waiting])
        assert chosen is not None
        self._waiting.remove(chosen.trial_id)
        self._running.append(chosen.trial_id)
        self._call("on_trial_begin", chosen.trial_id)

    def _step(self, trial_id):
        fate = self.fates[trial_id]
        if self.num_reports[trial_id] < len(fate.reports):
            result = fate.reports[self.num_reports[trial_id]]
            self.num_reports[trial_id] += 1
            self._call("on_trial_result", trial_id, result)
        else:
            self._end(trial_id, "failed" if fate.fails else "returned")
            self._call("on_trial_error" if fate.fails else "on_trial_complete", trial_id)

    def _end(self, trial_id, how):
        assert trial_id not in self.ended, f"{trial_id} ends twice"
        for trials in (self._waiting, self._running, self._paused):
            if trial_id in trials:
                trials.remove(trial_id)
        self.ended[trial_id] = how

    def _call(self, method, trial_id=None, result=None):
        answer = call(self.scheduler, method, trial_id, result)
        self.calls.append(Call(method, trial_id, result, answer))
        for action in answer:
            match action:
                case Stop(other):
                    self._end(other, "stopped")
                    if self.completes_stopped:
                        self._call("on_trial_complete", other)
                case Pause(other):
                    self._running.remove(other)
                    self._paused.append(other)
                case Resume(other):
                    self._paused.remove(other)
                    self._waiting.append(other)
                case _:
                    raise AssertionError(f"{action} is not for these schedulers")


def replay(scheduler, calls, rename=str, change=dict):
    """What a new scheduler answers to the same calls, with other names of trials or other results."""
    return [
        call(scheduler, each.method, each.trial_id and rename(each.trial_id), each.result and change(each.result))
        for each in calls
    ]


def negate(result):
    return {k: -v if k == "loss" else v for k, v in result.items()}


def without_reasons(decisions):
    return [[(type(action).__name__, action.trial_id) for action in answer] for answer in decisions]


UNUSUAL = [math.nan, math.inf, -math.inf, 10**400, -(10**400)]


@st.composite
def fates(draw, most=14, longest=12):
    """Trials that report any values, skip iterations, leave the metric out, end early or fail."""
    number, most_reports = draw(st.integers(0, most)), draw(st.integers(0, longest))
    chance = random.Random(draw(st.integers(0, 2**32)))
    return {f"{trial:05d}": _draw_fate(chance, most_reports) for trial in range(number)}


def _draw_fate(chance, most_reports):
    time = 0
    reports = []
    for _ in range(chance.randint(0, most_reports)):
        time += chance.choice([1, 1, 1, 2, 5, 0.5])
        value = chance.choice([chance.randint(0, 1), chance.randint(-3, 3), chance.uniform(-1, 1)])
        if chance.random() < 0.2:
            value = chance.choice(UNUSUAL)
        result = {"training_iteration": time, "loss": value}
        if chance.random() < 0.1:
            result.pop(chance.choice(["loss", "training_iteration"]))
        reports.append(result)
    return Fate(reports, chance.random() < 0.3)


@st.composite
def searches(draw, make):
    """Any search, played in any order."""
    return Search(
        make(),
        draw(fates()),
        slots=draw(st.integers(1, 5)),
        most_alive=draw(st.one_of(st.none(), st.integers(1, 6))),
        pick=random.Random(draw(st.integers(0, 2**32))).randrange,
        completes_stopped=draw(st.booleans()),
    ).play()
