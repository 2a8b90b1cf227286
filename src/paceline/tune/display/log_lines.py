"""Formats a search as lines of text, one per event, for output that is not a terminal.

A thousand quick trials would print thousands of lines. So there is a budget: a burst, then a rate per second. Lines
over the budget are dropped and summarized every few seconds. Improvements and failures have priority.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from paceline._view import formatting
from paceline._view.formatting import format_count
from paceline.tune.display import search_summary
from paceline.tune.driver import events
from paceline.tune.driver.search_state import Search
from paceline.tune.results import scopes
from paceline.tune.trial import Trial

_CONFIG_WIDTH = 120
SUMMARY_S = 5.0
"""How often the dropped lines are summarized."""


class LineBudget:
    """A rate limit: a burst, then a number of lines per second."""

    def __init__(self, burst: float, per_s: float) -> None:
        self._burst = self._budget = burst
        self._per_s = per_s
        self._at: float | None = None

    def take(self, now: float) -> bool:
        since = now - self._at if self._at is not None else 0.0
        self._at = now
        self._budget = min(self._burst, self._budget + since * self._per_s)
        if self._budget < 1:
            return False
        self._budget -= 1
        return True


class SearchLogLines:
    """Formats the events of a search as lines; `now` is any monotonic clock."""

    def __init__(self, name: str, uri: str, verbosity: int) -> None:
        self._name = name
        self._uri = uri
        self._is_verbose = verbosity >= 2
        self._ordinary = LineBudget(40, 1.0)
        self._notable = LineBudget(40, 0.5)
        """For failures and new best results."""
        self._num_dropped = 0
        self._summed_at: float | None = None
        self._best: float | None = None
        self._configs: dict[str, Mapping[str, Any]] = {}
        self._paused: set[str] = set()

    def format_event(self, event: events.Event, search: Search, now: float) -> list[str]:
        """Format an event that has been applied to `search`."""
        if self._summed_at is None:
            self._summed_at = now
        match event:
            case events.SearchStarted():
                for earlier in search.trials.values():
                    self._is_new_best(earlier, search)  # Trials of earlier drivers.
                return [self._format_search_started(event, search)]
            case events.SearchEnded(at=at):
                return search_summary.format_ending(search, self._name, self._uri, search.elapsed_s(at))
            case events.NoMoreTrials(why=why) if why:
                return [f"search {self._name} ends early: {formatting.first_line(why)}"]
            case events.TrialMade() | events.NoMoreTrials() | events.SearchIdle() | events.TrialChosen():
                return []
            case events.TrialRetried() | events.CallbackStatesSaved():
                return []
            case events.TrialReported(trial=trial):
                return [self._format_trial_reported(search.trials[trial])] if self._is_verbose else []
            case events.TrialSaved(trial=trial, name=name):
                return [f"trial {search.trials[trial].label} saved {name}"] if self._is_verbose else []
            case events.TrialEnded(trial=trial, ending=ending):
                self._configs[trial] = search.trials[trial].config
                leads = self._is_new_best(search.trials[trial], search)
                if ending == "paused":
                    self._paused.add(trial)
                if ending in ("interrupted", "paused") and not self._is_verbose:
                    return []  # It resumes: not worth a line each time when many trials take turns.
                budget = self._notable if ending == "failed" or leads else self._ordinary
                return self._within_budget(budget, now, lambda: self._format_trial_ended(event, search, leads))
            case events.TrialBegan(trial=trial):
                is_its_turn = trial in self._paused and not self._is_verbose
                self._paused.discard(trial)
                # No line for a clone either: the one about its cloning was just printed.
                if is_its_turn or search.trial_records[trial].initial is not None:
                    return []
                return self._within_budget(self._ordinary, now, lambda: self._format_trial_began(search, trial))
            case events.TrialCloned():
                return self._within_budget(self._ordinary, now, lambda: self._format_trial_cloned(event, search))
            case events.TrialCloneSkipped(trial=trial, why=why):
                return [f"trial {search.trials[trial].label} continues unchanged: {why}"]
            case events.TrialReset(trial=trial, run=run, why=why) if why:
                return [f"trial {search.trials[trial].label} moves to {run}: {why}"]
            case events.TrialReset(trial=trial):
                line = f"trial {search.trials[trial].label} will run again"
                return self._within_budget(self._ordinary, now, lambda: line)

    def format_summary(self, search: Search, now: float) -> list[str]:
        """Return one line about the dropped lines, if it is due."""
        if self._summed_at is None or now - self._summed_at < SUMMARY_S:
            return []
        self._summed_at = now
        if not self._num_dropped:
            return []
        self._num_dropped = 0
        counts = search_summary.count_trials(search.trials.values())
        return [f"{format_count(len(search.trials), 'trial')}: {counts}{_format_best(search)}"]

    def _within_budget(self, budget: LineBudget, now: float, line: Callable[[], str]) -> list[str]:
        if self._is_verbose or budget.take(now):
            return [line()]
        self._num_dropped += 1
        return []

    def _format_search_started(self, event: events.SearchStarted, search: Search) -> str:
        if search.num_drivers == 1:
            return f"search {self._name} started: {event.trainable}, num_samples={event.num_samples}, in {self._uri}"
        counts = search_summary.count_trials(search.trials.values())
        return f"search {self._name} resumed: {format_count(len(search.trials), 'trial')}, {counts}, in {self._uri}"

    def _format_trial_began(self, search: Search, trial_id: str) -> str:
        trial, record = search.trials[trial_id], search.trial_records[trial_id]
        config = formatting.truncate(search_summary.format_config(trial.config), _CONFIG_WIDTH)
        if record.num_starts == 1:
            return f"trial {trial.label} started: {config}" if config else f"trial {trial.label} started"
        if trial.checkpoint is None:
            return f"trial {trial.label} starts over"
        return f"trial {trial.label} resumed from {trial.checkpoint.name}, iteration {trial.checkpoint.iteration}"

    def _format_trial_reported(self, trial: Trial) -> str:
        result = trial.last_result or {}
        return f"trial {trial.label}, iteration {trial.iteration}: {search_summary.format_metrics(result, None)}"

    def _format_trial_ended(self, event: events.TrialEnded, search: Search, leads: bool) -> str:
        trial = search.trials[event.trial]
        took = formatting.duration(search.trial_records[event.trial].ran_s)
        why = formatting.first_line(event.why)
        match event.ending:
            case "failed":
                return f"trial {trial.label} failed at iteration {trial.iteration}: {why}"
            case "interrupted":
                return f"trial {trial.label} was interrupted at iteration {trial.iteration}"
            case "paused":
                return f"trial {trial.label} paused at iteration {trial.iteration}{': ' if why else ''}{why}"
        reached = (
            search_summary.format_metrics(trial.last_result, search.metric) if trial.last_result else "nothing reported"
        )
        how = "finished" if event.ending == "returned" else f"stopped at iteration {trial.iteration} ({why})"
        after = f" after {format_count(trial.iteration, 'iteration')}" if event.ending == "returned" else ""
        return f"trial {trial.label} {how}{after}, {took}: {reached}{', the best so far' if leads else ''}"

    def _is_new_best(self, trial: Trial, search: Search) -> bool:
        """Whether a finished trial is better than all before it."""
        if search.metric is None or search.mode is None or not trial.is_over:
            return False
        value = scopes.get_metric_value(trial.last_result, search.metric)
        if value is None or not math.isfinite(value):
            return False
        is_best = self._best is None or scopes.is_better(value, self._best, search.mode)
        self._best = value if is_best else self._best
        return is_best

    def _format_trial_cloned(self, event: events.TrialCloned, search: Search) -> str:
        before = search_summary.flatten_parameters(self._configs.get(event.trial, {}))
        after = search_summary.flatten_parameters(search.trials[event.trial].config)
        changed = " ".join(
            f"{name}={formatting.value(before[name])}→{formatting.value(value)}"
            for name, value in after.items()
            if name in before and before[name] != value
        )
        changes = f": {formatting.truncate(changed, _CONFIG_WIDTH)}" if changed else ""
        clone, donor = search.trials[event.trial].label, search.trials[event.donor].label
        return f"trial {clone} cloned from trial {donor} at iteration {event.saved.iteration}{changes}"


def _format_best(search: Search) -> str:
    best = search_summary.find_leader(search)
    if best is None:
        return ""
    config = formatting.truncate(search_summary.format_config(best.trial.config), _CONFIG_WIDTH)
    return f"; best is trial {best.trial.label}, {search.metric}={formatting.value(best.value)}: {config}"
