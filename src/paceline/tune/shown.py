"""A search in words: counts, configurations, the best trial, how it ended. Pure: a search in, text out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from paceline._view import words
from paceline._view.words import counted
from paceline.train.result import flat
from paceline.tune import scopes
from paceline.tune.drive.state import Search
from paceline.tune.history import FILLED
from paceline.tune.trial import Trial

_LOOP = "train_loop_config/"
_ONE_LINE = 100
_NAMED = 5


@dataclass(frozen=True)
class Counts:
    """How many trials of a search are in which state."""

    running: int = 0
    waiting: int = 0
    paused: int = 0
    finished: int = 0
    stopped: int = 0
    failed: int = 0

    @property
    def over(self) -> int:
        return self.finished + self.stopped + self.failed

    def __str__(self) -> str:
        told = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return ", ".join(f"{number} {name}" for name, number in told.items() if number) or "none yet"


@dataclass(frozen=True)
class Leader:
    """The trial whose last value of the metric is the best: what `get_best_result()` gives."""

    trial: Trial
    value: float


def counts(trials: Iterable[Trial]) -> Counts:
    found = {"running": 0, "waiting": 0, "paused": 0, "finished": 0, "stopped": 0, "failed": 0}
    for trial in trials:
        found[state(trial)] += 1
    return Counts(**found)


def state(trial: Trial) -> str:
    """For a person: one that is over finished by itself, was stopped, or failed."""
    if trial.status == "TERMINATED":
        return "stopped" if trial.why else "finished"
    return {"RUNNING": "running", "PENDING": "waiting", "PAUSED": "paused", "ERROR": "failed"}[trial.status]


def leader(search: Search) -> Leader | None:
    """None where there is no metric, or nobody has reported it."""
    if search.metric is None or search.mode is None:
        return None
    scored = (
        (trial, value)
        for trial in search.trials.values()
        if (last := scopes.value_of(trial.last_result, search.metric)) is not None
        and (value := scopes.score([last], "last", search.mode, only_finite=True)) is not None
    )
    best = scopes.best(scored, search.mode)
    return Leader(*best) if best is not None else None


def varied(trials: Iterable[Trial]) -> frozenset[str]:
    """The parameters in which trials differ; all, where there is one trial or no difference."""
    first: dict[str, Any] | None = None
    differing: set[str] = set()
    names: dict[str, None] = {}
    for trial in trials:
        config = parameters(trial.config)
        names |= dict.fromkeys(config)
        if first is None:
            first = config
        elif config is not first:
            differing |= config.keys() ^ first.keys()
            differing |= {name for name in config.keys() & first.keys() if not _same(config[name], first[name])}
    return frozenset(differing or names)


def parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration under one name for each parameter: `model/layers`, and those of a train function by their own."""
    found = flat({str(name): value for name, value in config.items()})
    return {name.removeprefix(_LOOP): value for name, value in found.items()}


def config_text(config: Mapping[str, Any], only: frozenset[str] | None = None) -> str:
    shown = parameters(config)
    return " ".join(f"{name}={words.value(value)}" for name, value in shown.items() if only is None or name in only)


def metrics_text(result: Mapping[str, Any], metric: str | None) -> str:
    """The metric alone where there is one, else what was reported."""
    if metric is not None:
        value = scopes.value_of(result, metric)
        return f"{metric}={words.value(value)}" if value is not None else f"no {metric}"
    own = flat({name: value for name, value in result.items() if name not in FILLED})
    return words.cut(", ".join(f"{name}={words.value(value)}" for name, value in own.items()), _ONE_LINE)


def ran_s(search: Search, trial: Trial, now: float) -> float:
    """How long a trial's runs were under way, by the wall clock."""
    standing = search.standing[trial.trial_id]
    return standing.ran_s + (max(0.0, now - standing.began_at) if standing.began_at is not None else 0.0)


def ending(search: Search, name: str, uri: str, elapsed_s: float) -> list[str]:
    """What is said at the end: how it went, the best configuration and where it is, what failed."""
    trials = search.trials.values()
    is_over = "is complete" if search.is_complete else "has stopped"
    why = f" ({search.why})" if search.why else ""
    took = f"after {words.duration(elapsed_s)}, {counted(len(trials), 'trial')}"
    lines = [f"search {name} {is_over}{why} {took}: {counts(trials)}", *_best(search, uri)]
    lines += _failed([trial for trial in trials if trial.status == "ERROR"], search, uri)
    if not search.is_complete:
        lines.append("run the script again with the same name to continue")
    return lines


def _best(search: Search, uri: str) -> list[str]:
    best = leader(search)
    if best is None:
        if search.metric is None:
            return [f"no metric was given to compare trials by; all of them: {uri}"]
        return [f"no trial has reported {search.metric} as a finite number; all of them: {uri}"]
    trial, metric = best.trial, search.metric
    assert metric is not None
    lines = [f"best: trial {trial.trial_id}, {metric}={words.value(best.value)} at iteration {trial.iteration}"]
    config = repr(dict(trial.config))
    if len(config) <= _ONE_LINE:
        lines.append(f"  config      {config}")
    else:
        lines += [f"  config      {key!r}: {value!r}" for key, value in trial.config.items()]
    if trial.checkpoint is not None:
        lines.append(f"  checkpoint  {uri}/{trial.checkpoint.run}/{trial.checkpoint.name}")
    lines.append(f"  directory   {uri}/{search.standing[trial.trial_id].run}")
    return lines


def _failed(failed: list[Trial], search: Search, uri: str) -> list[str]:
    """By what they failed with."""
    by_error: dict[str, list[Trial]] = {}
    for trial in failed:
        by_error.setdefault(words.first_line(trial.why), []).append(trial)
    lines = []
    for error, trials in list(by_error.items())[:_NAMED]:
        named = ", ".join(trial.trial_id for trial in trials[:_NAMED])
        more = f" and {len(trials) - _NAMED} more" if len(trials) > _NAMED else ""
        logs = f"{uri}/{search.standing[trials[0].trial_id].run}/logs"
        who = f"trial {named}" if len(trials) == 1 else f"{len(trials)} trials ({named}{more})"
        lines.append(f"failed: {who}: {error}; see {logs}")
    if len(by_error) > _NAMED:
        lines.append(f"failed: trials with {len(by_error) - _NAMED} other errors; see results.errors")
    return lines


def _same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    try:
        return bool(one == other)
    except Exception:  # noqa: BLE001  values of the user's own, such as arrays, which have no one answer
        return False
