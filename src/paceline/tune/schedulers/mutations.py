"""How a clone's hyperparameters differ from its donor's. Pure: all randomness comes from the given `KeyedRandom`.

Each parameter is resampled from its source or perturbed: a number by a factor, an option to a neighboring one.
Perturbed values stay inside their domain or list.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from paceline._core.arguments import bad_value, is_finite_number
from paceline.tune.space.domains import (
    Categorical,
    Domain,
    Float,
    Function,
    Grid,
    Integer,
    KeyedRandom,
    Normal,
    seed_global_generators,
)

Path = tuple[str, ...]
Parameters = tuple[tuple[Path, "Parameter"], ...]
MISSING = object()


class Parameter(Protocol):
    def draw(self, chance: KeyedRandom) -> Any:
        """Draw a value from the parameter's source."""

    def perturb(self, value: Any, factor: float, chance: KeyedRandom) -> Any:
        """Perturb a value; return `MISSING` if it cannot be perturbed."""


@dataclass(frozen=True)
class OptionParameter:
    values: tuple[Any, ...]

    def draw(self, chance: KeyedRandom) -> Any:
        return self.values[chance.draw_below(len(self.values))]

    def perturb(self, value: Any, factor: float, chance: KeyedRandom) -> Any:
        at = _find_option(self.values, value)
        if at is None:
            return MISSING
        beside = [other for other in (at - 1, at + 1) if 0 <= other < len(self.values)]
        return self.values[beside[chance.draw_below(len(beside))]] if beside else value


@dataclass(frozen=True)
class IntervalParameter:
    domain: Float | Integer | Normal

    def draw(self, chance: KeyedRandom) -> Any:
        return self.domain.pick(chance)

    def perturb(self, value: Any, factor: float, chance: KeyedRandom) -> Any:
        if not is_finite_number(value):
            return MISSING
        moved = self.domain.nearest(value * factor)
        step = self.domain.q if self.domain.q is not None else isinstance(self.domain, Integer)
        if moved == value and step:
            # Less than half a step would never have an effect.
            moved = self.domain.nearest(value + math.copysign(step, value * factor - value))
        return moved


@dataclass(frozen=True)
class FunctionParameter:
    """Drawn by a user's function, which knows what is allowed."""

    func: Callable[[], Any]

    def draw(self, chance: KeyedRandom) -> Any:
        with seed_global_generators(chance):
            value = self.func()
        # A numpy scalar becomes a plain number in the journal, so convert it from the start.
        return value.item() if hasattr(value, "item") and getattr(value, "shape", None) == () else value

    def perturb(self, value: Any, factor: float, chance: KeyedRandom) -> Any:
        if not is_finite_number(value):
            return MISSING
        if isinstance(value, float):
            return value * factor
        moved = round(value * factor)
        if moved == value:
            moved += int(math.copysign(1, value * factor - value))
        # A count must not become 0, where it would stay forever.
        return moved if moved * value > 0 else value


@dataclass(frozen=True)
class ConfigChange:
    path: Path
    before: Any
    after: Any
    is_drawn: bool = False

    def __str__(self) -> str:
        drawn = " (drawn anew)" if self.is_drawn else ""
        before = f"{format_value(self.before)} -> " if self.before is not MISSING else ""
        return f"{'/'.join(self.path)} {before}{format_value(self.after)}{drawn}"


@dataclass(frozen=True)
class Mutations:
    parameters: Parameters
    resample_probability: float = 0.25
    factors: tuple[float, ...] = (1.2, 0.8)

    def mutate_config(
        self, config: Mapping[str, Any], chance: KeyedRandom
    ) -> tuple[dict[str, Any], list[ConfigChange]]:
        """Return another configuration and the changes in it."""
        after = copy_config(config)
        changes = []
        for path, parameter in self.parameters:
            before = get_at_path(after, path)
            is_resampled = chance.draw_unit() < self.resample_probability
            factor = self.factors[chance.draw_below(len(self.factors))]
            value = MISSING if is_resampled or before is MISSING else parameter.perturb(before, factor, chance)
            is_drawn = value is MISSING
            if is_drawn:
                value = parameter.draw(chance)
            set_at_path(after, path, value)
            changes.append(ConfigChange(path, before, value, is_drawn and before is not MISSING))
        return after, changes

    def fill_missing(self, config: Mapping[str, Any], chance: KeyedRandom) -> dict[str, Any]:
        """Draw the parameters that a configuration lacks."""
        after = copy_config(config)
        for path, parameter in self.parameters:
            if get_at_path(after, path) is MISSING:
                set_at_path(after, path, parameter.draw(chance))
        return after


def parse_parameters(spec: Mapping[str, Any]) -> Parameters:
    if not isinstance(spec, Mapping):
        raise bad_value("hyperparam_mutations", "a dict with the options of each hyperparameter", spec)
    leaves = iter_leaves(spec, "hyperparam_mutations")
    return tuple((path, _parse_parameter(value, argument)) for path, argument, value in leaves)


def iter_leaves(spec: Mapping[str, Any], argument: str, above: Path = ()) -> Iterator[tuple[Path, str, Any]]:
    """Iterate over the hyperparameters in nested dicts: their path, their name for messages, and their value."""
    for key, value in spec.items():
        if not isinstance(key, str):
            raise bad_value(f"the keys of {argument}", "strings", key)
        path = (*above, key)
        if isinstance(value, Mapping):
            yield from iter_leaves(value, argument, path)
        else:
            yield path, f"{argument}[{'/'.join(path)!r}]", value


def _parse_parameter(value: Any, where: str) -> Parameter:
    match value:
        case Grid() | Function():
            raise ValueError(
                f"{where} must be something to draw from again, got {value}\n\n"
                "hint: use a list of options, a domain such as tune.uniform(0, 1), or a function without arguments"
            )
        case Categorical(categories=options):
            return OptionParameter(_check_options(options, where))
        case Float() | Integer() | Normal():
            return IntervalParameter(value)
        case list() | tuple():
            return OptionParameter(_check_options(value, where))
    if callable(value) and not isinstance(value, Domain):
        return FunctionParameter(value)
    allowed = "a list of options, a domain such as tune.uniform(0, 1), a function without arguments, or a dict of these"
    raise bad_value(where, allowed, value)


def _check_options(values: Sequence[Any], where: str) -> tuple[Any, ...]:
    if not values:
        raise ValueError(f"{where} must have at least one option")
    for value in values:
        if isinstance(value, Domain):
            raise ValueError(f"the options of {where} must be plain values, got {value}")
    return tuple(values)


def copy_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Copy dicts and lists; share everything else, which may be large or not copyable."""
    return {
        key: copy_config(value) if isinstance(value, dict) else copy.copy(value) if isinstance(value, list) else value
        for key, value in config.items()
    }


def get_at_path(config: Mapping[str, Any], path: Path) -> Any:
    value: Any = config
    for key in path:
        if not isinstance(value, Mapping) or key not in value:
            return MISSING
        value = value[key]
    return value


def set_at_path(config: dict[str, Any], path: Path, value: Any) -> None:
    for key in path[:-1]:
        if not isinstance(config.get(key), dict):
            config[key] = {}
        config = config[key]
    config[path[-1]] = value


def format_value(value: Any) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _find_option(values: tuple[Any, ...], value: Any) -> int | None:
    for at, option in enumerate(values):
        if option is value:
            return at
    for at, option in enumerate(values):
        # True equals 1 but is not a number here; tuples become lists in the journal.
        if isinstance(option, bool) == isinstance(value, bool) and _tuples_to_lists(option) == _tuples_to_lists(value):
            return at
    return None


def _tuples_to_lists(value: Any) -> Any:
    return [_tuples_to_lists(item) for item in value] if isinstance(value, list | tuple) else value
