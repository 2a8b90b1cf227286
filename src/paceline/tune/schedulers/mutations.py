"""How the hyperparameters of a clone differ from its donor's. Pure: what is drawn comes from the `Chance` given.

Each parameter is drawn anew from where it came from, or moved a little: a number by a factor, an option to the one
beside it. Whatever is moved stays inside its domain or list.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from paceline.tune.space.chance import Chance, global_generators
from paceline.tune.space.domains import Categorical, Domain, Float, Function, Grid, Integer, Normal

Path = tuple[str, ...]
Parameters = tuple[tuple[Path, "Parameter"], ...]
MISSING = object()


class Parameter(Protocol):
    def drawn(self, chance: Chance) -> Any:
        """A value from where the parameter comes from."""
        ...

    def moved(self, value: Any, factor: float, chance: Chance) -> Any:
        """The value a little off; `MISSING` where it is none that can be moved."""
        ...


@dataclass(frozen=True)
class Options:
    values: tuple[Any, ...]

    def drawn(self, chance: Chance) -> Any:
        return self.values[chance.below(len(self.values))]

    def moved(self, value: Any, factor: float, chance: Chance) -> Any:
        at = _index(self.values, value)
        if at is None:
            return MISSING
        beside = [other for other in (at - 1, at + 1) if 0 <= other < len(self.values)]
        return self.values[beside[chance.below(len(beside))]] if beside else value


@dataclass(frozen=True)
class Interval:
    domain: Float | Integer | Normal

    def drawn(self, chance: Chance) -> Any:
        return self.domain.pick(chance)

    def moved(self, value: Any, factor: float, chance: Chance) -> Any:
        if not _is_number(value):
            return MISSING
        moved = self.domain.nearest(value * factor)
        step = self.domain.q if self.domain.q is not None else isinstance(self.domain, Integer)
        if moved == value and step:
            # Less than half a step would never get anywhere.
            moved = self.domain.nearest(value + math.copysign(step, moved_by(value, factor)))
        return moved


@dataclass(frozen=True)
class Made:
    """By a function of the user, who knows what is allowed."""

    func: Callable[[], Any]

    def drawn(self, chance: Chance) -> Any:
        with global_generators(chance):
            value = self.func()
        # One of numpy's numbers is a plain one in the journal, and so it is from the beginning.
        return value.item() if hasattr(value, "item") and getattr(value, "shape", None) == () else value

    def moved(self, value: Any, factor: float, chance: Chance) -> Any:
        if not _is_number(value):
            return MISSING
        if isinstance(value, float):
            return value * factor
        moved = round(value * factor)
        if moved == value:
            moved += int(math.copysign(1, moved_by(value, factor)))
        # A whole number that counts something does not become nothing, where it would stay for ever.
        return moved if moved * value > 0 else value


def moved_by(value: float, factor: float) -> float:
    return value * factor - value


@dataclass(frozen=True)
class Change:
    path: Path
    before: Any
    after: Any
    is_drawn: bool = False

    def __str__(self) -> str:
        drawn = " (drawn anew)" if self.is_drawn else ""
        before = f"{shown(self.before)} -> " if self.before is not MISSING else ""
        return f"{'/'.join(self.path)} {before}{shown(self.after)}{drawn}"


@dataclass(frozen=True)
class Mutations:
    parameters: Parameters
    resample_probability: float = 0.25
    factors: tuple[float, ...] = (1.2, 0.8)

    def mutated(self, config: Mapping[str, Any], chance: Chance) -> tuple[dict[str, Any], list[Change]]:
        """Another configuration, and what is different in it."""
        after = copied(config)
        changes = []
        for path, parameter in self.parameters:
            before = at_path(after, path)
            again, factor = chance.unit() < self.resample_probability, self.factors[chance.below(len(self.factors))]
            value = MISSING if again or before is MISSING else parameter.moved(before, factor, chance)
            is_drawn = value is MISSING
            if is_drawn:
                value = parameter.drawn(chance)
            put(after, path, value)
            changes.append(Change(path, before, value, is_drawn and before is not MISSING))
        return after, changes

    def completed(self, config: Mapping[str, Any], chance: Chance) -> dict[str, Any]:
        """The configuration with what it lacks drawn."""
        after = copied(config)
        for path, parameter in self.parameters:
            if at_path(after, path) is MISSING:
                put(after, path, parameter.drawn(chance))
        return after


def parameters_of(
    spec: Mapping[str, Any], argument: str = "hyperparam_mutations"
) -> tuple[tuple[Path, Parameter], ...]:
    """What a user wrote, checked."""
    if not isinstance(spec, Mapping):
        raise ValueError(f"{argument}={spec!r} is not a dict of what each hyperparameter may become")
    return tuple(_parameters(spec, (), argument))


def _parameters(spec: Mapping[str, Any], above: Path, argument: str) -> Iterator[tuple[Path, Parameter]]:
    for key, value in spec.items():
        where = f"{argument}[{'/'.join((*above, str(key)))!r}]"
        if not isinstance(key, str):
            raise ValueError(f"{argument} has the key {key!r}: the keys of a configuration are texts")
        if isinstance(value, Mapping):
            yield from _parameters(value, (*above, key), argument)
        else:
            yield (*above, key), _parameter(value, where)


def _parameter(value: Any, where: str) -> Parameter:
    match value:
        case Grid() | Function():
            raise ValueError(
                f"{where}={value} is not something to draw from again\n\n"
                "hint: give a list of options, a domain such as tune.uniform(0, 1), or a function without arguments"
            )
        case Categorical(categories=options):
            return Options(_options(options, where))
        case Float() | Integer() | Normal():
            return Interval(value)
        case list() | tuple():
            return Options(_options(value, where))
    if callable(value) and not isinstance(value, Domain):
        return Made(value)
    raise ValueError(
        f"{where}={value!r} is not allowed: it has to be a list of options, a domain such as tune.uniform(0, 1), "
        "a function without arguments, or a dict of these"
    )


def _options(values: Sequence[Any], where: str) -> tuple[Any, ...]:
    if not values:
        raise ValueError(f"{where} is empty: give at least one option")
    for value in values:
        if isinstance(value, Domain):
            raise ValueError(f"{where} has {value} among its options: a mutation is one of plain values")
    return tuple(values)


def copied(config: Mapping[str, Any]) -> dict[str, Any]:
    """Dicts and lists anew; what else lies in them is shared, for it may be large or not to be copied."""
    return {key: _copied(value) for key, value in config.items()}


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return copy.copy(value) if isinstance(value, list) else value


def at_path(config: Mapping[str, Any], path: Path) -> Any:
    value: Any = config
    for key in path:
        if not isinstance(value, Mapping) or key not in value:
            return MISSING
        value = value[key]
    return value


def put(config: dict[str, Any], path: Path, value: Any) -> None:
    for key in path[:-1]:
        if not isinstance(config.get(key), dict):
            config[key] = {}
        config = config[key]
    config[path[-1]] = value


def shown(value: Any) -> str:
    """A value in a sentence."""
    if isinstance(value, float):
        return f"{value:.4g}"
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _index(values: tuple[Any, ...], value: Any) -> int | None:
    for at, option in enumerate(values):
        if option is value:
            return at
    for at, option in enumerate(values):
        # True is 1, and is no number here; a tuple that was in the journal has become a list.
        if isinstance(option, bool) == isinstance(value, bool) and _plain(option) == _plain(value):
            return at
    return None


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
