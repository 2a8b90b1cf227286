"""Summarizes a search in text: counts, configurations, the best trial, how it ended. Pure: a search in, text out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from paceline._core.arguments import flatten_dict
from paceline._view import formatting
from paceline._view.formatting import format_count
from paceline.tune.driver.search_state import Search
from paceline.tune.results import scopes
from paceline.tune.results.report_history import ADDED_METRICS
from paceline.tune.trial import Trial

_LOOP = "train_loop_config/"
_ONE_LINE = 100
_MAX_NAMED = 5


@dataclass(frozen=True)
class TrialCounts:
    running: int = 0
    waiting: int = 0
    paused: int = 0
    finished: int = 0
    stopped: int = 0
    failed: int = 0

    def __str__(self) -> str:
        counts = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return ", ".join(f"{number} {name}" for name, number in counts.items() if number) or "none yet"


@dataclass(frozen=True)
class Leader:
    """The trial with the best last value of the metric: the result of `get_best_result()`."""

    trial: Trial
    value: float


def count_trials(trials: Iterable[Trial]) -> TrialCounts:
    return TrialCounts(**Counter(map(format_state, trials)))


def format_state(trial: Trial) -> str:
    """Format a trial's state; an ended trial finished by itself, was stopped, or failed."""
    if trial.status == "TERMINATED":
        return "stopped" if trial.why else "finished"
    return {"RUNNING": "running", "PENDING": "waiting", "PAUSED": "paused", "ERROR": "failed"}[trial.status]


def find_leader(search: Search) -> Leader | None:
    """Return the best trial; None if there is no metric or no trial has reported it."""
    if search.metric is None or search.mode is None:
        return None
    scored = (
        (trial, value)
        for trial in search.trials.values()
        if (last := scopes.get_metric_value(trial.last_result, search.metric)) is not None
        and (value := scopes.score_values([last], "last", search.mode, only_finite=True)) is not None
    )
    best = scopes.select_best(scored, search.mode)
    return Leader(*best) if best is not None else None


def find_varied_parameters(trials: Iterable[Trial]) -> frozenset[str]:
    """Return the parameters in which trials differ; all of them if there is one trial or no difference."""
    first: dict[str, Any] | None = None
    differing: set[str] = set()
    names: dict[str, None] = {}
    for trial in trials:
        config = flatten_parameters(trial.config)
        names |= dict.fromkeys(config)
        if first is None:
            first = config
        elif config is not first:
            differing |= config.keys() ^ first.keys()
            differing |= {name for name in config.keys() & first.keys() if not _is_equal(config[name], first[name])}
    return frozenset(differing or names)


def flatten_parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten a configuration: `model/layers`; parameters of `train_loop_config` keep their own names."""
    return {name.removeprefix(_LOOP): value for name, value in flatten_dict(config).items()}


def format_config(config: Mapping[str, Any], only: frozenset[str] | None = None) -> str:
    parameters = flatten_parameters(config)
    return " ".join(
        f"{name}={formatting.value(value)}" for name, value in parameters.items() if only is None or name in only
    )


def format_metrics(result: Mapping[str, Any], metric: str | None) -> str:
    """Format the metric alone if there is one, else everything that was reported."""
    if metric is not None:
        value = scopes.get_metric_value(result, metric)
        return f"{metric}={formatting.value(value)}" if value is not None else f"no {metric}"
    own = flatten_dict({name: value for name, value in result.items() if name not in ADDED_METRICS})
    return formatting.truncate(", ".join(f"{name}={formatting.value(value)}" for name, value in own.items()), _ONE_LINE)


def trial_ran_s(search: Search, trial: Trial, now: float) -> float:
    """How long a trial's runs were active, by the wall clock."""
    record = search.trial_records[trial.trial_id]
    return record.ran_s + (max(0.0, now - record.started_at) if record.started_at is not None else 0.0)


def format_ending(search: Search, name: str, uri: str, elapsed_s: float) -> list[str]:
    """Format the final message: the outcome, the best configuration and where it is stored, and the failures."""
    trials = search.trials.values()
    is_over = "finished" if search.is_complete else "has stopped"
    why = f" ({search.why})" if search.why else ""
    took = f"after {formatting.duration(elapsed_s)}, {format_count(len(trials), 'trial')}"
    lines = [f"search {name} {is_over}{why} {took}: {count_trials(trials)}", *_format_best(search, uri)]
    lines += _format_failures([trial for trial in trials if trial.status == "ERROR"], search, uri)
    if not search.is_complete:
        lines.append("run the script again with the same name to continue")
    return lines


def _format_best(search: Search, uri: str) -> list[str]:
    best = find_leader(search)
    if best is None:
        missing = f"no trial reported a finite {search.metric}" if search.metric else "no best trial without a metric"
        return [f"{missing}; all trials: {uri}"]
    trial, value = best.trial, formatting.value(best.value)
    lines = [f"best: trial {trial.label}, {search.metric}={value} at iteration {trial.iteration}"]
    config = repr(dict(trial.config))
    if len(config) <= _ONE_LINE:
        lines.append(f"  config      {config}")
    else:
        lines += [f"  config      {key!r}: {value!r}" for key, value in trial.config.items()]
    if trial.checkpoint is not None:
        lines.append(f"  checkpoint  {uri}/{trial.checkpoint.run}/{trial.checkpoint.name}")
    lines.append(f"  directory   {uri}/{search.trial_records[trial.trial_id].run}")
    return lines


def _format_failures(failed: list[Trial], search: Search, uri: str) -> list[str]:
    """Group the failed trials by error."""
    by_error: dict[str, list[Trial]] = {}
    for trial in failed:
        by_error.setdefault(formatting.first_line(trial.why), []).append(trial)
    lines = []
    for error, trials in list(by_error.items())[:_MAX_NAMED]:
        named = ", ".join(trial.label for trial in trials[:_MAX_NAMED])
        more = f" and {len(trials) - _MAX_NAMED} more" if len(trials) > _MAX_NAMED else ""
        logs = f"{uri}/{search.trial_records[trials[0].trial_id].run}/logs"
        who = f"trial {named}" if len(trials) == 1 else f"{len(trials)} trials ({named}{more})"
        lines.append(f"failed: {who}: {error}; see {logs}")
    if len(by_error) > _MAX_NAMED:
        lines.append(f"failed: trials with {len(by_error) - _MAX_NAMED} other errors; see results.errors")
    return lines


def _is_equal(one: Any, other: Any) -> bool:
    if one is other:
        return True
    try:
        return bool(one == other)
    except Exception:  # noqa: BLE001
        return False
