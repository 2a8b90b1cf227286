"""What the journal of a search keeps of how it was asked for, in plain form.

Enough to go on with it, and to notice that a script asks for something else under the same name.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from paceline._core.plain import plain, unplain
from paceline._storage.home import Home
from paceline.tune.drive.book import past_of
from paceline.tune.drive.events import SearchStarted, unraw
from paceline.tune.made import Made
from paceline.tune.schedulers.scheduler import TrialScheduler
from paceline.tune.search.searcher import Searcher
from paceline.tune.space.described import param_space_of
from paceline.tune.space.space import Space
from paceline.tune.tune_config import TuneConfig

_BUILT_IN = "paceline.tune."


def described(space: Space, config: TuneConfig) -> dict[str, Any]:
    return {
        "space": space.described(),
        "search_alg": _described(config.search_alg),
        "scheduler": _described(config.scheduler),
        "max_concurrent_trials": config.max_concurrent_trials,
        "time_budget_s": config.budget_s,
    }


def check_same(space: Space, before: Any) -> None:
    """Refuse a space that is another one than the search was begun with."""
    differences = space.differences(before["space"])
    if differences:
        listed = "\n".join(f"  {difference}" for difference in differences)
        raise ValueError(
            f"param_space is not the one that this search was begun with:\n{listed}\n\n"
            "hint: give the search another name, or its former space"
        )


class Before:
    """How a search was asked for the last time."""

    def __init__(self, home: Home) -> None:
        starts = [event for event in past_of(home) if isinstance(event, SearchStarted)]
        self._last = starts[-1]
        self._described: dict[str, Any] = unraw(self._last.described)

    def param_space(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = param_space_of(self._described["space"])
        return found

    def tune_config(self) -> TuneConfig:
        return TuneConfig(
            metric=self._last.metric,
            mode=self._last.mode,
            num_samples=self._last.num_samples,
            seed=self._last.seed,
            max_concurrent_trials=self._described["max_concurrent_trials"],
            time_budget_s=self._described["time_budget_s"],
            search_alg=_made_again("search_alg", self._described["search_alg"], Searcher),
            scheduler=_made_again("scheduler", self._described["scheduler"], TrialScheduler),
        )


def _described(given: Any) -> Any:
    """A class of ours and what it was called with, as far as that has a plain form."""
    if given is None:
        return None
    kind = type(given)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if not name.startswith(_BUILT_IN):
        return {"class": name}
    args, kwargs = given.made_with
    called = inspect.signature(kind).bind(*args, **kwargs).arguments
    try:
        return {"class": name, "arguments": {argument: _plain(value) for argument, value in called.items()}}
    except (TypeError, ValueError):
        return {"class": name}


def _plain(value: Any) -> Any:
    if isinstance(value, Searcher | TrialScheduler):
        told = _described(value)
        if "arguments" not in told:
            raise ValueError(f"{told['class']} has no plain form")
        return {"made": told}
    try:
        return {"plain": plain(value)}
    except (TypeError, ValueError):  # There may be domains in it.
        space = Space({"value": value}).described()
        param_space_of(space)
        return {"space": space}


def _made_again(argument: str, told: Any, base: type[Any]) -> Any:
    if told is None:
        return None
    name = told["class"]
    if "arguments" in told:
        made = _built_in(name, base)
        if made is not None:
            return made(**{each: _value(argument, value) for each, value in told["arguments"].items()})
    raise ValueError(
        f"the search was begun with {argument}={name.rpartition('.')[2]}, of which too little is kept\n\n"
        f"hint: Tuner.restore(path, trainable, tune_config=TuneConfig({argument}=..., ...))"
    )


def _value(argument: str, told: Any) -> Any:
    if "made" in told:
        return _made_again(argument, told["made"], Made)
    return unplain(told["plain"]) if "plain" in told else param_space_of(told["space"])["value"]


def _built_in(name: str, base: type[Any]) -> Any:
    """A class of ours by its name. Nothing else is ever imported because storage says so."""
    import importlib

    for package in ("paceline.tune.schedulers", "paceline.tune.search", "paceline.tune.search.optuna"):
        module = importlib.import_module(package)
        kind = getattr(module, name.rpartition(".")[2], None)
        if isinstance(kind, type) and issubclass(kind, base) and f"{kind.__module__}.{kind.__qualname__}" == name:
            return kind
    return None
