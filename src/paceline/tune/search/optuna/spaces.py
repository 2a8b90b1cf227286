"""The spaces that `OptunaSearch` supports: paceline's own domains, Optuna's distributions, or a function.

Each builds the configuration that an Optuna trial suggests, parameter by parameter, and finds the parameters of a given
configuration. A parameter is named by its path, `model/lr`; a conditional one is suggested only if its condition holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, Protocol, Self

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from paceline._core.arguments import bad_value, flatten_dict, is_number
from paceline._core.plain_values import to_plain
from paceline.tune.search.optuna.samplers import silence_optuna, unsilence_optuna
from paceline.tune.space.domains import Categorical, Domain, Float, Grid, Integer
from paceline.tune.space.space import Space as ParamSpace
from paceline.tune.space.tree import Path, Point, SpaceParameter, format_path

_SIMPLE = (type(None), bool, int, float, str)


class OptunaSpace(Protocol):
    has_parameters: bool = True
    """Whether there is anything to search for."""

    def __deepcopy__(self, memo: Any) -> Self:
        """Stay shared when the searcher is copied: options are the user's own objects, and some cannot be copied."""
        return self

    def suggest(self, trial: optuna.Trial, point: Mapping[str, Any], seed: int) -> dict[str, Any]:
        """Return the configuration of a trial; `point` is the point it starts from, if any."""

    def parse_point(self, point: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters set by a full or partial configuration. Raises `ValueError` for unknown ones."""

    def find_parameters(self, config: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return all parameters of a configuration; None if it is not from this space."""


def parse_space(space: Any, name: str) -> OptunaSpace:
    if isinstance(space, Mapping) and any(isinstance(value, BaseDistribution) for value in space.values()):
        return DistributionSpace(space)
    if isinstance(space, Mapping | Domain):
        tree: Any = space  # A choice among whole configurations is a space too.
        return DomainSpace(ParamSpace(tree), name)
    if callable(space):
        return DefineByRunSpace(space)
    allowed = "a dict of paceline's domains or Optuna's distributions, or a function of an Optuna trial"
    raise bad_value(name, allowed, space, 'use {"lr": tune.loguniform(1e-5, 1e-1)}')


class DomainSpace(OptunaSpace):
    """A space of paceline's own domains.

    Domains without an Optuna distribution are translated: floats with a step become the number of steps from zero;
    options that are objects, or not all different, become their index.
    """

    def __init__(self, space: ParamSpace, name: str) -> None:
        self._space = space
        self._places = space.domains()
        self.has_parameters = bool(self._places)
        for place in self._places.values():
            _check_searchable(place, name)

    def suggest(self, trial: optuna.Trial, point: Mapping[str, Any], seed: int) -> dict[str, Any]:
        function_values = self._point(point).function_values if point else {}
        return self._space.assemble_config(
            lambda place: _suggest_parameter(trial, place), trial.number, seed, function_values
        )

    def parse_point(self, point: Mapping[str, Any]) -> dict[str, Any]:
        return self._to_parameters(self._point(point).picks)

    def find_parameters(self, config: Mapping[str, Any]) -> dict[str, Any] | None:
        try:
            picked = self._point(config).picks
        except ValueError:
            return None  # It may be from another space; the caller reports that.
        for place in self._places.values():
            if place.path not in picked and all(picked.get(path) == index for path, index in place.condition):
                return None
        return self._to_parameters(picked)

    def _to_parameters(self, picked: Mapping[Path, Any]) -> dict[str, Any]:
        return {self._places[path].name: _to_optuna_value(self._places[path], at) for path, at in picked.items()}

    def _point(self, config: Mapping[str, Any]) -> Point:
        return self._space.parse_point(config, "points_to_evaluate")

    def __str__(self) -> str:
        return "{" + ", ".join(f"{place.name}: {place.domain}" for place in self._places.values()) + "}"


class DefineByRunSpace(OptunaSpace):
    """A function that suggests through a trial, and may return further values. `a/b` is `b` in the dict `a`."""

    def __init__(self, function: Callable[[Any], Mapping[str, Any] | None]) -> None:
        self._function = function

    def suggest(self, trial: optuna.Trial, point: Mapping[str, Any], seed: int) -> dict[str, Any]:
        constants = self._call_function(trial)  # First: it suggests the parameters.
        return nest_config({**trial.params, **constants})

    def parse_point(self, point: Mapping[str, Any]) -> dict[str, Any]:
        return {**flatten_dict(point), **point}

    def find_parameters(self, config: Mapping[str, Any]) -> dict[str, Any] | None:
        trial = optuna.trial.FixedTrial({**flatten_dict(config), **config})
        try:
            with silence_optuna():
                self._call_function(trial)
        except ValueError:
            return None  # A parameter is missing; an error of the function itself recurs when it suggests.
        return {**trial.params}

    def _call_function(self, trial: Any) -> Mapping[str, Any]:
        with unsilence_optuna():
            constants = self._function(trial)
        if constants is not None and not isinstance(constants, Mapping):
            raise ValueError(f"the space function must return a dict of constants or None, got {constants!r:.200}")
        return constants or {}

    def __str__(self) -> str:
        return getattr(self._function, "__qualname__", repr(self._function))


class DistributionSpace(DefineByRunSpace):
    """A dict of Optuna's distributions and constants. `a/b` is `b` in the dict `a`."""

    def __init__(self, space: Mapping[str, Any]) -> None:
        self._space = dict(space)
        for key, value in self._space.items():
            if not isinstance(key, str):
                raise bad_value("the keys of space", "strings", key)
            if isinstance(value, Domain):
                raise ValueError(
                    f"space mixes Optuna's distributions with a domain of paceline: space[{key!r}] is {value}"
                )
        self._names = [name for name, value in self._space.items() if isinstance(value, BaseDistribution)]

    def _call_function(self, trial: Any) -> Mapping[str, Any]:
        for name in self._names:
            _suggest_by_distribution(trial, name, self._space[name])
        return {name: value for name, value in self._space.items() if name not in self._names}

    def parse_point(self, point: Mapping[str, Any]) -> dict[str, Any]:
        flat = super().parse_point(point)
        names = {*self._space, *flatten_dict(self._space)}
        unknown = [name for name in flatten_dict(point) if name not in names]
        if unknown:
            known = ", ".join(self._space)
            raise ValueError(f"unknown name {unknown[0]!r} in points_to_evaluate; the parameters are {known}")
        parameters = {name: flat[name] for name in self._names if name in flat}
        for name, value in parameters.items():
            if not _contains_value(self._space[name], value):
                raise bad_value(f"points_to_evaluate: {name}", f"in {self._space[name]}", value)
        return parameters

    def __str__(self) -> str:
        return str(self._space)


def nest_config(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Turn `{"a/b": 1}` into `{"a": {"b": 1}}`."""
    config: dict[str, Any] = {}
    for name, value in flat.items():
        *around, last = name.split("/")
        inside = config
        for key in around:
            inside = inside.setdefault(key, {})
            if not isinstance(inside, dict):
                raise ValueError(f"the parameter {name!r} is inside {key!r}, which is a parameter itself")
        if isinstance(inside.get(last), dict):
            raise ValueError(f"the parameter {name!r} contains other parameters")
        inside[last] = value
    return config


def is_same_config(a: Any, b: Any) -> bool:
    """Whether two configurations are equal; one may come from storage, where tuples are lists."""
    try:
        return bool(to_plain(dict(a)) == to_plain(dict(b)))
    except (TypeError, ValueError):
        return bool(a == b)


def _check_searchable(place: SpaceParameter, name: str) -> None:
    what, instead = str(place.domain), "tune.uniform with sensible bounds"
    if isinstance(place.domain, Grid):
        what, instead = "a grid_search", "tune.choice"
    elif isinstance(place.domain, Float | Integer | Categorical):
        return
    raise ValueError(
        f"{format_path(place.path, name)} is {what}, which Optuna does not support\n\n"
        f"hint: use {instead}, or leave out the search_alg"
    )


def _suggest_parameter(trial: optuna.Trial, place: SpaceParameter) -> Any:
    """Suggest a number of the domain, or the index of an option."""
    name, domain = place.name, place.domain
    match domain:
        case Float(q=None):
            return trial.suggest_float(name, domain.lower, domain.upper, log=domain.log)
        case Float(q=float(step)):
            first, last = _count_steps(domain.first, step), _count_steps(domain.last, step)
            return domain.nearest(float(trial.suggest_int(name, first, last, log=domain.log) * Fraction(repr(step))))
        case Integer(q=int(step), log=True):
            return trial.suggest_int(name, domain.first // step, domain.last // step, log=True) * step
        case Integer():
            return trial.suggest_int(name, domain.first, domain.last, step=domain.q or 1, log=domain.log)
        case Categorical():
            if _are_plain_options(domain.categories):
                return domain.categories.index(trial.suggest_categorical(name, domain.categories))
            return trial.suggest_categorical(name, range(len(domain.categories)))
    raise AssertionError(f"{domain} was checked before")


def _to_optuna_value(place: SpaceParameter, picked: Any) -> Any:
    """Convert a number of the domain, or the index of an option, to Optuna's value."""
    domain = place.domain
    if isinstance(domain, Float) and domain.q is not None:
        return _count_steps(picked, domain.q)
    if isinstance(domain, Integer) and domain.q is not None and domain.log:
        return picked // domain.q
    if isinstance(domain, Categorical) and _are_plain_options(domain.categories):
        return domain.categories[picked]
    return picked


def _count_steps(value: float, step: float) -> int:
    return round(Fraction(repr(value)) / Fraction(repr(step)))


def _are_plain_options(options: tuple[Any, ...]) -> bool:
    """Whether Optuna can store and distinguish them; to it 1 and True are equal, and nan is not equal to itself."""
    if any(type(option) not in _SIMPLE or option != option for option in options):
        return False
    return len({*options}) == len(options)


def _suggest_by_distribution(trial: optuna.Trial, name: str, distribution: BaseDistribution) -> Any:
    match distribution:
        case FloatDistribution(low=low, high=high, step=step, log=log):
            return trial.suggest_float(name, low, high, step=step, log=log)
        case IntDistribution(low=low, high=high, step=step, log=log):
            return trial.suggest_int(name, low, high, step=step, log=log)
        case CategoricalDistribution():
            return trial.suggest_categorical(name, distribution.choices)
    raise ValueError(f"space[{name!r}] must be a float, int or categorical distribution, got {distribution!r}")


def _contains_value(distribution: BaseDistribution, value: Any) -> bool:
    if isinstance(distribution, CategoricalDistribution):
        return any(value is choice or value == choice for choice in distribution.choices)
    if isinstance(distribution, FloatDistribution | IntDistribution):
        return is_number(value) and distribution.low <= value <= distribution.high
    return True
