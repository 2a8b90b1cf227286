"""The base of searchers that ask an optimization library: `HyperOptSearch`, `AxSearch` and others.

A library sees a flat list of parameters, each a number from 0 to 1 or one of some options; this module converts them
from and to the domains of the space: logarithms, integers and steps. It is also asked for parameters of options that
were not chosen, which are ignored. What it was asked and told is kept: a library is restored by asking and telling it
the same again.
"""

from __future__ import annotations

import contextlib
import logging
import math
import random
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, ClassVar

from paceline._core.arguments import bad_value, check_choice, check_int, is_finite_number
from paceline._core.plain_values import get_metric
from paceline.tune.search.searcher import Names, Searcher, check_points
from paceline.tune.space.domains import (
    Categorical,
    Domain,
    Float,
    Grid,
    Integer,
    KeyedRandom,
    Normal,
    seed_global_generators,
)
from paceline.tune.space.space import Space
from paceline.tune.space.tree import SpaceParameter, format_path

log = logging.getLogger("paceline")

Picks = dict[str, Any]
"""By name: a number of the domain, or the index of an option."""


@dataclass(frozen=True)
class LibraryParameter:
    """A parameter as a library sees it: an option, or a number from 0 to 1."""

    name: str
    domain: Domain

    @property
    def num_options(self) -> int:
        """The number of options; 0 for a number."""
        return len(self.domain.categories) if isinstance(self.domain, Categorical) else 0

    def from_unit(self, unit: float) -> Any:
        if isinstance(self.domain, Normal):
            value = NormalDist(self.domain.mean, self.domain.sd).inv_cdf(min(max(float(unit), 1e-9), 1 - 1e-9))
            return self.domain.nearest(math.exp(value) if self.domain.log else value)
        low, high, log_scale = self._bounds
        unit = min(max(float(unit), 0.0), 1.0)
        value = math.exp(low + unit * (high - low)) if log_scale else low + unit * (high - low)
        if isinstance(self.domain, Float) and self.domain.q is None:
            return min(max(value, self.domain.lower), self.domain.upper)
        return self.domain.nearest(round(value) if self.domain.q is None else value)

    def to_unit(self, picked: float) -> float:
        if isinstance(self.domain, Normal):
            if self.domain.log:
                picked = math.log(picked) if picked > 0 else -math.inf
            return NormalDist(self.domain.mean, self.domain.sd).cdf(picked)
        low, high, log_scale = self._bounds
        value = math.log(picked) if log_scale else picked
        return min(max((value - low) / (high - low), 0.0), 1.0) if high > low else 0.5

    @property
    def _bounds(self) -> tuple[float, float, bool]:
        """The range of the number; that of integers and steps is half a step wider, so that all are equally wide."""
        domain = self.domain
        assert isinstance(domain, Float | Integer)
        low, high = float(domain.first), float(domain.last)
        if isinstance(domain, Integer) or domain.q is not None:
            half = (domain.q or 1) / 2
            low, high = max(low - half, low / 2) if domain.log else low - half, high + half
        return (math.log(low), math.log(high), True) if domain.log else (low, high, False)


class LibrarySearch(Searcher):
    """Base of searchers that ask a library. Subclasses implement `_create`, `_ask` and `_tell`."""

    _takes_normals: ClassVar[bool] = False
    """Whether the library can search numbers without bounds."""

    def __init__(
        self,
        space: Mapping[str, Any] | Any = None,
        metric: str | None = None,
        mode: str | None = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        evaluated_rewards: Sequence[float] | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(metric, mode)
        check_choice("mode", mode, ("min", "max", None))
        check_int("seed", seed, optional=True)
        self.space = space
        self.points_to_evaluate = points_to_evaluate
        self.evaluated_rewards = evaluated_rewards
        self._seed = seed
        self._points = check_points(points_to_evaluate)
        if evaluated_rewards is not None and len(evaluated_rewards) != len(self._points):
            expected = f"one reward for each of the {len(self._points)} points_to_evaluate"
            raise bad_value("evaluated_rewards", expected, evaluated_rewards)
        self._parsed: Space | None = None
        self._places: dict[str, SpaceParameter] = {}
        self._parameters: tuple[LibraryParameter, ...] = ()
        self._constants: dict[str, Any] = {}
        self._num_trials: int | None = None
        """How many trials there will be, if known."""
        self._is_created = False
        self._num_asked = 0
        self._live: dict[str, Picks] = {}
        self._history: list[list[Any]] = []
        """What the library was asked and told, in order."""
        self._state_to_restore: dict[str, Any] | None = None
        if space is not None:
            self._set_space(space, "space")

    # What subclasses implement. All numbers are from 0 to 1, and a loss is to be minimized.

    def _create(self, parameters: tuple[LibraryParameter, ...], seed: int) -> None:
        """Create the library's optimizer."""
        raise NotImplementedError

    def _ask(self, trial_id: str) -> Mapping[str, Any] | None:
        """Ask for numbers from 0 to 1 and indexes of options, by name; None: not before another trial has ended."""
        raise NotImplementedError

    def _tell(self, trial_id: str, units: dict[str, Any], loss: float | None, budget: float) -> None:
        """Report the loss of a trial, None if it failed. It may be one that was never asked for."""
        raise NotImplementedError

    # The interface of searchers.

    def set_search_properties(self, metric: Names, mode: Names, config: Mapping[str, Any], **spec: Any) -> bool:
        if self._is_created:
            return False
        if self._parsed is None:
            self._set_space(config, "param_space")
        elif config:
            given = Space(config)
            if given.domains():
                name = type(self).__name__
                raise ValueError(
                    f"{name} has a space and Tuner has a param_space: only one of them can be searched\n\n"
                    "hint: leave out one of the two"
                )
            self._constants = dict(config)
        self.metric = metric if self.metric is None else self.metric
        self.mode = mode if self.mode is None else self.mode
        if self._seed is None:
            self._seed = spec.get("seed")
        num_samples = spec.get("num_samples")
        self._num_trials = num_samples if num_samples is not None and num_samples > 0 else None
        return True

    def suggest(self, trial_id: str) -> dict[str, Any] | None:
        self._ensure_created()
        point = None
        if self.evaluated_rewards is None and self._num_asked < len(self._points):
            point = self._points[self._num_asked]
        known, function_values = self._parse(point) if point is not None else ({}, {})
        picks = self._ask_picks(trial_id, known)
        if picks is None:
            return None
        assert self._parsed is not None
        number, seed = self._num_asked - 1, self._seed or 0
        config = self._parsed.assemble_config(lambda place: picks[place.name], number, seed, function_values)
        return {**self._constants, **config}

    def rebuild(self, trial_id: str, config: Mapping[str, Any]) -> None:
        self._ensure_created()
        own = {key: value for key, value in config.items() if key not in self._constants}
        try:
            known = self._parse(own)[0]
        except ValueError as problem:
            log.warning("%s learns nothing from trial %s: %s", type(self).__name__, trial_id, problem)
            return
        self._ask_picks(trial_id, known)

    def on_trial_complete(self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False) -> None:
        picks = self._live.pop(trial_id, None)
        if picks is None:
            return
        loss = None if error else self._get_loss(result)
        if loss is None and result and not error:
            log.warning("trial %s did not report a number for %s, so the search learns nothing", trial_id, self.metric)
        self._tell_picks(trial_id, picks, loss, _get_budget(result))

    def add_evaluated_point(
        self,
        parameters: Mapping[str, Any],
        value: float,
        error: bool = False,
        pruned: bool = False,
        intermediate_values: Sequence[float] | None = None,
    ) -> None:
        """Learn from a configuration that was evaluated elsewhere; one that was `pruned` teaches nothing."""
        self._ensure_created()
        known = self._parse(parameters)[0]
        if missing := [each.name for each in self._parameters if self._is_needed(each.name, known)]:
            raise bad_value("an evaluated point", f"a full configuration, with {missing[0]}", dict(parameters))
        loss = None if error else self._get_loss({str(self.metric): value})
        if not pruned:
            self._tell_picks(f"evaluated_{len(self._history)}", known, loss, 1.0)

    def get_state(self) -> dict[str, Any]:
        self._ensure_created()
        return {"seed": self._seed, "history": [list(entry) for entry in self._history]}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take over what another searcher of this class has learned. The space must be passed to this one again."""
        self._state_to_restore = state

    def _set_space(self, space: Any, name: str) -> None:
        if not isinstance(space, Mapping | Domain):
            expected = "a dict of the domains of paceline.tune"
            raise bad_value(name, expected, space, 'use {"lr": tune.loguniform(1e-5, 1e-1)}')
        parsed = Space(space)
        for place in parsed.domains().values():
            kinds = (Float, Integer, Categorical, *((Normal,) if self._takes_normals else ()))
            if not isinstance(place.domain, kinds) or isinstance(place.domain, Grid):
                what = "a grid_search" if isinstance(place.domain, Grid) else str(place.domain)
                raise ValueError(
                    f"{format_path(place.path, name)} is {what}, which {type(self).__name__} does not support\n\n"
                    "hint: use tune.choice or tune.uniform with sensible bounds, or leave out the search_alg"
                )
        self._parsed = parsed
        self._places = {place.name: place for place in parsed.domains().values()}
        self._parameters = tuple(LibraryParameter(place.name, place.domain) for place in self._places.values())

    def _ensure_created(self) -> None:
        if self._is_created:
            return
        name = type(self).__name__
        if not self._parameters:
            hint = 'pass Tuner a param_space such as {"lr": tune.loguniform(1e-5, 1e-1)}'
            raise ValueError(f"{name} has no parameters to search for\n\nhint: {hint}")
        if not isinstance(self.metric, str) or self.mode not in ("min", "max"):
            raise ValueError(
                f"{name} needs a metric and a mode, got metric={self.metric!r}, mode={self.mode!r}\n\n"
                "hint: use TuneConfig(metric='loss', mode='min')"
            )
        state, self._state_to_restore = self._state_to_restore, None
        if state is not None:
            self._seed = state["seed"]
        self._seed = random.SystemRandom().getrandbits(31) if self._seed is None else self._seed
        self._is_created = True
        with _calling_library(self._seed, "create"):
            self._create(self._parameters, self._seed)
        if state is not None:
            self._replay(state["history"])
        elif self.evaluated_rewards is not None:
            for point, reward in zip(self._points, self.evaluated_rewards, strict=True):
                self.add_evaluated_point(point, reward)

    def _replay(self, history: list[list[Any]]) -> None:
        for kind, trial_id, picks, *told in history:
            if kind == "ask":
                self._ask_picks(trial_id, picks)
            else:
                self._live.pop(trial_id, None)
                self._tell_picks(trial_id, picks, *told)

    def _ask_picks(self, trial_id: str, known: Picks) -> Picks | None:
        assert self._seed is not None
        with _calling_library(self._seed, "ask", self._num_asked):
            asked = self._ask(trial_id)
        if asked is None:
            return None
        self._num_asked += 1
        picks = {
            each.name: int(asked[each.name]) if each.num_options else each.from_unit(asked[each.name])
            for each in self._parameters
        }
        self._live[trial_id] = {**picks, **known}
        self._history.append(["ask", trial_id, self._live[trial_id]])
        return self._live[trial_id]

    def _tell_picks(self, trial_id: str, picks: Picks, loss: float | None, budget: float) -> None:
        self._history.append(["tell", trial_id, picks, loss, budget])
        assert self._seed is not None
        units = {}
        for each in self._parameters:
            # A parameter of an option that was not chosen has no value: any is as good.
            picked = picks.get(each.name, 0 if each.num_options else each.from_unit(0.5))
            units[each.name] = picked if each.num_options else each.to_unit(picked)
        with _calling_library(self._seed, "tell", len(self._history)):
            self._tell(trial_id, units, loss, budget)

    def _parse(self, config: Mapping[str, Any]) -> tuple[Picks, Mapping[Any, Any]]:
        assert self._parsed is not None
        point = self._parsed.parse_point(config, "points_to_evaluate")
        names = {place.path: name for name, place in self._places.items()}
        return {names[path]: pick for path, pick in point.picks.items()}, point.function_values

    def _is_needed(self, name: str, known: Picks) -> bool:
        """Whether a configuration lacks a parameter: one whose conditions hold."""
        names = {place.path: name for name, place in self._places.items()}
        conditions = self._places[name].condition
        return name not in known and all(known.get(names[path]) == option for path, option in conditions)

    def _get_loss(self, result: Mapping[str, Any] | None) -> float | None:
        value = get_metric(dict(result or {}), str(self.metric))
        if not is_finite_number(value):
            return None
        return float(value) if self.mode == "min" else -float(value)


@contextlib.contextmanager
def _calling_library(*key: int | str) -> Iterator[None]:
    """Seed the global generators for a call, and ignore warnings, which are about what the user cannot change.

    Warning filters are process-wide: use it only in the driver's thread.
    """
    with warnings.catch_warnings(), seed_global_generators(KeyedRandom(*key)):
        warnings.simplefilter("ignore")
        yield


def _get_budget(result: Mapping[str, Any] | None) -> float:
    iteration = (result or {}).get("training_iteration")
    return float(iteration) if is_finite_number(iteration) else 1.0
