"""The argument of a `sample_from` function: the other values, computed on access.

The order of the parameters does not matter: a value that is itself made by a function is computed when another function
accesses it. Circular access raises an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.tune.space.domains import Domain, KeyedRandom, seed_global_generators
from paceline.tune.space.tree import FunctionNode, format_path


@dataclass(frozen=True)
class PendingValue:
    """Placeholder in a configuration for a value that is not computed yet."""

    node: FunctionNode


@dataclass(eq=False)
class ConfigFiller:
    """Computes the values of one configuration."""

    _config: Any
    _key: tuple[int | str, ...]
    """Seeds the functions' randomness."""
    _check: Callable[[Any, FunctionNode], None]
    """Raises for a value that is not allowed."""
    _computed: dict[str, Any] = field(default_factory=dict)
    _computing: list[FunctionNode] = field(default_factory=list)

    def compute_value(self, node: FunctionNode) -> Any:
        if node.key in self._computed:
            return self._computed[node.key]
        if node in self._computing:
            circle = [*self._computing[self._computing.index(node) :], node]
            raise ValueError(
                f"the sample_from functions of param_space need each other: "
                f"{' needs '.join(format_path(one.path) for one in circle)}\n\n"
                "hint: a function must not use its own value or values made from it"
            )
        self._computing.append(node)
        try:
            with seed_global_generators(KeyedRandom(*self._key, node.key)):
                value = self.unwrap_value(node.domain.func(SampleSpec(self, self._config)))
        except Exception as error:
            error.add_note(f"in the sample_from function of {format_path(node.path)}")
            raise
        finally:
            self._computing.pop()
        if drawn := next((leaf for leaf in _iter_leaves(value) if isinstance(leaf, Domain)), None):
            raise ValueError(
                f"the sample_from function of {format_path(node.path)} must return a value, got {drawn}\n\n"
                "hint: draw it in the function with random or numpy.random, which are seeded"
            )
        self._check(value, node)
        self._computed[node.key] = value
        return value

    def wrap_value(self, value: Any) -> Any:
        """Wrap a value for access by a function."""
        if isinstance(value, PendingValue):
            return self.wrap_value(self.compute_value(value.node))
        if type(value) is dict:
            return Config(self, value)
        if type(value) in (list, tuple):
            has_pending = any(isinstance(leaf, PendingValue) for leaf in _iter_leaves(value))
            return SpecItems(self, value) if has_pending else type(value)(map(self.wrap_value, value))
        return value

    def unwrap_value(self, value: Any) -> Any:
        """Return the plain value behind what a function was given."""
        if isinstance(value, Config | SpecItems):
            value = value._values
        if isinstance(value, PendingValue):
            return self.unwrap_value(self.compute_value(value.node))
        if type(value) is dict:
            return {key: self.unwrap_value(item) for key, item in value.items()}
        if type(value) in (list, tuple):
            return type(value)(map(self.unwrap_value, value))
        return value


@dataclass(frozen=True, eq=False, repr=False)
class Config(Mapping[Any, Any]):
    """Values by key, or by attribute."""

    _filler: ConfigFiller
    _values: dict[Any, Any]

    def __getitem__(self, key: Any) -> Any:
        if key not in self._values:
            raise KeyError(f"unknown name {key!r}; the values are {_format_keys(self._values)}")
        return self._filler.wrap_value(self._values[key])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in self._values:
            raise AttributeError(f"unknown name {name!r}; the values are {_format_keys(self._values)}")
        return self[name]

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"<the values of {_format_keys(self._values)}>"


class SampleSpec(Config):
    """All values: `spec.config.lr` and `spec["lr"]` are the same."""

    @property
    def config(self) -> Config:
        return Config(self._filler, self._values)

    def __getitem__(self, key: Any) -> Any:
        return self.config if key == "config" and key not in self._values else super().__getitem__(key)


@dataclass(frozen=True, eq=False, repr=False)
class SpecItems(Sequence[Any]):
    """A list or tuple with values that are not computed yet."""

    _filler: ConfigFiller
    _values: list[Any] | tuple[Any, ...]

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self._filler.wrap_value(value) for value in self._values[index]]
        return self._filler.wrap_value(self._values[index])

    def __len__(self) -> int:
        return len(self._values)


def _iter_leaves(value: Any) -> Iterator[Any]:
    if type(value) in (dict, list, tuple):
        for item in value.values() if type(value) is dict else value:
            yield from _iter_leaves(item)
    else:
        yield value


def _format_keys(values: dict[Any, Any]) -> str:
    return ", ".join(map(repr, values)) or "none"
