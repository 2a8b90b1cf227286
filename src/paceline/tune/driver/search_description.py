"""Describes a search's settings in plain form for its journal.

Enough to resume the search, and to detect that a script requests something else under the same name.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Mapping
from typing import Any

from paceline._core.plain_values import from_plain, to_plain
from paceline._storage.run_location import RunLocation
from paceline.train.driver.code_fingerprint import fingerprint_code
from paceline.train.driver.run_metadata import describe_code_changes
from paceline.train.trainer import DataParallelTrainer
from paceline.tune.driver.events import SearchStarted, decode_raw
from paceline.tune.driver.search_storage import load_past_events
from paceline.tune.schedulers.scheduler import TrialScheduler
from paceline.tune.search.names import SEARCHER_MODULES
from paceline.tune.search.searcher import Searcher
from paceline.tune.space.space import Space
from paceline.tune.space.space_codec import rebuild_param_space
from paceline.tune.trainables.wrapping import as_wrapped
from paceline.tune.tune_config import TuneConfig

_BUILT_IN = "paceline.tune."


def describe_search(space: Space, config: TuneConfig, trainable: Any) -> dict[str, Any]:
    return {
        "code": _fingerprint_trainable(trainable),
        "space": space.describe(),
        "search_alg": _describe_component(config.search_alg),
        "scheduler": _describe_component(config.scheduler),
        "max_concurrent_trials": config.max_concurrent_trials,
        "time_budget_s": config.budget_s,
    }


def find_changes_of_search(previous: SearchStarted, config: TuneConfig, trainable: Any, name: str) -> list[str]:
    """Describe what changed, beside the space, since the search was last started."""
    was = decode_raw(previous.described)
    changes = describe_code_changes(was.get("code"), _fingerprint_trainable(trainable), previous.trainable, name)
    for field in ("metric", "mode"):
        before, now = getattr(previous, field), getattr(config, field)
        if before != now:
            changes.append(f"TuneConfig({field}) changed since the last run: it was {before!r} and is {now!r}")
    return changes


def _fingerprint_trainable(trainable: Any) -> dict[str, Any]:
    trainable = as_wrapped(trainable).trainable
    if not isinstance(trainable, DataParallelTrainer):
        return fingerprint_code(trainable)
    function, config = trainable.train_loop_per_worker, trainable.train_loop_config
    return fingerprint_code(functools.partial(function, **{str(key): value for key, value in (config or {}).items()}))


def find_changes_of_space(space: Space, before: Any) -> list[str]:
    return list(space.find_differences(before["space"]))


def check_same_space(space: Space, before: Any) -> None:
    """Raise if the space differs from the one the search was started with."""
    if differences := find_changes_of_space(space, before):
        listed = "\n".join(f"  {difference}" for difference in differences)
        raise ValueError(
            f"param_space changed since the search was started:\n{listed}\n\n"
            "hint: use another name, or the former space"
        )


class PreviousSearch:
    """The settings of a search when it was last started."""

    def __init__(self, location: RunLocation) -> None:
        self._last = [event for event in load_past_events(location) if isinstance(event, SearchStarted)][-1]
        self._described: dict[str, Any] = decode_raw(self._last.described)

    def param_space(self) -> Mapping[str, Any]:
        space: Mapping[str, Any] = rebuild_param_space(self._described["space"])
        return space

    def tune_config(self) -> TuneConfig:
        return TuneConfig(
            metric=self._last.metric,
            mode=self._last.mode,
            num_samples=self._last.num_samples,
            seed=self._last.seed,
            max_concurrent_trials=self._described["max_concurrent_trials"],
            time_budget_s=self._described["time_budget_s"],
            search_alg=_rebuild_component("search_alg", self._described["search_alg"], Searcher),
            scheduler=_rebuild_component("scheduler", self._described["scheduler"], TrialScheduler),
        )


def _describe_component(component: Any) -> Any:
    """Describe a built-in class and its arguments, as far as they have a plain form."""
    if component is None:
        return None
    kind = type(component)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if not name.startswith(_BUILT_IN):
        return {"class": name}
    arguments = {}
    try:
        for parameter in inspect.signature(kind).parameters.values():
            value = getattr(component, parameter.name)
            if value is not parameter.default:
                arguments[parameter.name] = _argument_to_plain(value)
    except (TypeError, ValueError):
        return {"class": name}
    return {"class": name, "arguments": arguments}


def _argument_to_plain(value: Any) -> Any:
    if isinstance(value, Searcher | TrialScheduler):
        described = _describe_component(value)
        if "arguments" not in described:
            raise ValueError(f"{described['class']} has no plain form")
        return {"made": described}
    try:
        return {"plain": to_plain(value)}
    except (TypeError, ValueError):  # The value may contain domains.
        space = Space({"value": value}).describe()
        rebuild_param_space(space)
        return {"space": space}


def _rebuild_component(argument: str, described: Any, base: type[Any] | tuple[type[Any], ...]) -> Any:
    if described is None:
        return None
    name = described["class"]
    kind = _find_built_in_class(name, base) if "arguments" in described else None
    if kind is not None:
        return kind(**{each: _rebuild_argument(argument, value) for each, value in described["arguments"].items()})
    raise ValueError(
        f"cannot recreate {argument}={name.rpartition('.')[2]} from the stored search\n\n"
        f"hint: use Tuner.restore(path, trainable, tune_config=TuneConfig({argument}=..., ...))"
    )


def _rebuild_argument(argument: str, described: Any) -> Any:
    if "made" in described:
        return _rebuild_component(argument, described["made"], (Searcher, TrialScheduler))
    if "plain" in described:
        return from_plain(described["plain"])
    return rebuild_param_space(described["space"])["value"]


def _find_built_in_class(name: str, base: type[Any] | tuple[type[Any], ...]) -> Any:
    """Look up a built-in class by name. Nothing else is ever imported on the word of stored data."""
    own_module = (SEARCHER_MODULES[name.rpartition(".")[2]],) if name.rpartition(".")[2] in SEARCHER_MODULES else ()
    for package in (*own_module, "paceline.tune.schedulers", "paceline.tune.search"):
        kind = getattr(importlib.import_module(package), name.rpartition(".")[2], None)
        # By the class alone: classes have moved between modules of this package.
        if isinstance(kind, type) and issubclass(kind, base) and name.startswith(_BUILT_IN):
            return kind
    return None
