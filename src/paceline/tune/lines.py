"""A search as lines of text, one for each thing that happened, for where there is no terminal.

A thousand quick trials would give thousands of lines. There is a budget of them, so many at once and then so many a
second: what goes beyond is left out, and summed up every few seconds. What improved or failed comes first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from paceline._view import words
from paceline._view.words import counted
from paceline.tune import scopes, shown
from paceline.tune.drive.events import (
    Event,
    NoMoreTrials,
    SearchEnded,
    SearchIdle,
    SearchStarted,
    TrialBegan,
    TrialCloned,
    TrialEnded,
    TrialMade,
    TrialReported,
    TrialReset,
    TrialSaved,
    TrialStayed,
)
from paceline.tune.drive.state import Search
from paceline.tune.trial import Trial

_CONFIG_WIDTH = 120
SUMMARY_S = 5.0
"""So often what was left out is summed up."""


class Budget:
    """So many at once, and then so many a second."""

    def __init__(self, at_once: float, per_s: float) -> None:
        self._at_once = self._left = at_once
        self._per_s = per_s
        self._at: float | None = None

    def take(self, now: float) -> bool:
        since = now - self._at if self._at is not None else 0.0
        self._at = now
        self._left = min(self._at_once, self._left + since * self._per_s)
        if self._left < 1:
            return False
        self._left -= 1
        return True


class Lines:
    """From what happens in a search to the lines to be said; `now` is any clock that goes on evenly."""

    def __init__(self, name: str, uri: str, verbosity: int) -> None:
        self._name = name
        self._uri = uri
        self._all = verbosity >= 2
        self._ordinary = Budget(40, 1.0)
        self._telling = Budget(40, 0.5)
        """For what failed, and for what is better than all before."""
        self._left_out = 0
        self._summed_at: float | None = None
        self._best: float | None = None
        self._configs: dict[str, Mapping[str, Any]] = {}
        self._paused: set[str] = set()

    def of(self, event: Event, search: Search, now: float) -> list[str]:
        """After an event took effect."""
        if self._summed_at is None:
            self._summed_at = now
        match event:
            case SearchStarted():
                for known in search.trials.values():
                    self._leads(known, search)  # Those of earlier drivers.
                return [self._started(event, search)]
            case SearchEnded(at=at):
                return shown.ending(search, self._name, self._uri, search.elapsed_s(at))
            case NoMoreTrials(why=why) if why:
                return [f"search {self._name} ends early: {words.first_line(why)}"]
            case TrialMade() | NoMoreTrials() | SearchIdle():
                return []
            case TrialReported(trial=trial):
                return [self._reported(search.trials[trial])] if self._all else []
            case TrialSaved(trial=trial, name=name):
                return [f"trial {trial} saved {name}"] if self._all else []
            case TrialEnded(trial=trial, ending=ending):
                self._configs[trial] = search.trials[trial].config
                leads = self._leads(search.trials[trial], search)
                if ending == "paused":
                    self._paused.add(trial)
                if ending in ("interrupted", "paused") and not self._all:
                    return []  # It goes on: with many that take turns, that is nothing to be told each time.
                budget = self._telling if ending == "failed" or leads else self._ordinary
                return self._within(budget, now, lambda: self._ended(event, search, leads))
            case TrialBegan(trial=trial):
                is_its_turn = trial in self._paused and not self._all
                self._paused.discard(trial)
                # Or that it goes on from another was said just now.
                if is_its_turn or search.standing[trial].initial is not None:
                    return []
                return self._within(self._ordinary, now, lambda: self._began(search, trial))
            case TrialCloned():
                return self._within(self._ordinary, now, lambda: self._cloned(event, search))
            case TrialStayed(trial=trial, why=why):
                return [f"trial {trial} goes on as it is: {why}"]
            case TrialReset(trial=trial, run=run, why=why) if why:
                return [f"trial {trial} is run in {run}: {why}"]
            case TrialReset(trial=trial):
                return self._within(self._ordinary, now, lambda: f"trial {trial} is to be run again")

    def tick(self, search: Search, now: float) -> list[str]:
        """What was left out, in one line, when it is time."""
        if self._summed_at is None or now - self._summed_at < SUMMARY_S:
            return []
        self._summed_at = now
        if not self._left_out:
            return []
        self._left_out = 0
        return [f"{counted(len(search.trials), 'trial')}: {shown.counts(search.trials.values())}{_best_text(search)}"]

    def _within(self, budget: Budget, now: float, line: Callable[[], str]) -> list[str]:
        if self._all or budget.take(now):
            return [line()]
        self._left_out += 1
        return []

    def _started(self, event: SearchStarted, search: Search) -> str:
        if search.num_drivers == 1:
            return f"search {self._name} begins: {event.trainable}, num_samples={event.num_samples}, in {self._uri}"
        left = shown.counts(search.trials.values())
        return f"search {self._name} continues: {counted(len(search.trials), 'trial')}, {left}, in {self._uri}"

    def _began(self, search: Search, trial_id: str) -> str:
        trial, standing = search.trials[trial_id], search.standing[trial_id]
        config = words.cut(shown.config_text(trial.config), _CONFIG_WIDTH)
        if standing.num_begun == 1:
            return f"trial {trial_id} began: {config}" if config else f"trial {trial_id} began"
        if trial.checkpoint is None:
            return f"trial {trial_id} begins once more"
        return f"trial {trial_id} goes on from {trial.checkpoint.name}, iteration {trial.checkpoint.iteration}"

    def _reported(self, trial: Trial) -> str:
        result = trial.last_result or {}
        return f"trial {trial.trial_id}, iteration {trial.iteration}: {shown.metrics_text(result, None)}"

    def _ended(self, event: TrialEnded, search: Search, leads: bool) -> str:
        trial = search.trials[event.trial]
        took = words.duration(search.standing[event.trial].ran_s)
        why = words.first_line(event.why)
        match event.ending:
            case "failed":
                return f"trial {event.trial} failed at iteration {trial.iteration}: {why}"
            case "interrupted":
                return f"trial {event.trial} was interrupted at iteration {trial.iteration}"
            case "paused":
                return f"trial {event.trial} paused at iteration {trial.iteration}{': ' if why else ''}{why}"
        reached = shown.metrics_text(trial.last_result, search.metric) if trial.last_result else "nothing reported"
        how = "finished" if event.ending == "returned" else f"stopped at iteration {trial.iteration} ({why})"
        after = f" after {counted(trial.iteration, 'iteration')}" if event.ending == "returned" else ""
        return f"trial {event.trial} {how}{after}, {took}: {reached}{', the best so far' if leads else ''}"

    def _leads(self, trial: Trial, search: Search) -> bool:
        """Whether a trial that is over is better than all before it."""
        if search.metric is None or search.mode is None or not trial.is_over:
            return False
        value = scopes.value_of(trial.last_result, search.metric)
        if value is None or not math.isfinite(value):
            return False
        if self._best is not None and not scopes.is_better(value, self._best, search.mode):
            return False
        self._best = value
        return True

    def _cloned(self, event: TrialCloned, search: Search) -> str:
        before = shown.parameters(self._configs.get(event.trial, {}))
        after = shown.parameters(search.trials[event.trial].config)
        changed = " ".join(
            f"{name}={words.value(before[name])}→{words.value(value)}"
            for name, value in after.items()
            if name in before and before[name] != value
        )
        what = f": {words.cut(changed, _CONFIG_WIDTH)}" if changed else ""
        return f"trial {event.trial} goes on from trial {event.donor} at iteration {event.saved.iteration}{what}"


def _best_text(search: Search) -> str:
    best = shown.leader(search)
    if best is None:
        return ""
    config = words.cut(shown.config_text(best.trial.config), _CONFIG_WIDTH)
    return f"; best is trial {best.trial.trial_id}, {search.metric}={words.value(best.value)}: {config}"
