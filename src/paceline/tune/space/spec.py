"""What a function of `sample_from` is shown: the other values, made when they are looked at.

So that the order of the parameters does not matter, a value that is itself made by a function is made the moment
another one looks at it; functions that look at each other in a circle are told so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.tune.space.chance import Chance, global_generators
from paceline.tune.space.domains import Domain
from paceline.tune.space.tree import Made, told


@dataclass(frozen=True)
class Pending:
    """Stands in a configuration for a value that is not made yet."""

    node: Made


class Filling:
    """The making of one configuration's values."""

    def __init__(self, config: Any, key: tuple[int | str, ...], check: Callable[[Any, Made], None]) -> None:
        """`key` names the randomness of the functions; `check` raises for a value that is not to be one."""
        self._config = config
        self._key = key
        self._check = check
        self._made: dict[str, Any] = {}
        self._being_made: list[Made] = []

    def filled(self) -> Any:
        """The configuration with every value made."""
        return self.unwrapped(self._config)

    def made(self, node: Made) -> Any:
        if node.key in self._made:
            return self._made[node.key]
        if node in self._being_made:
            circle = [*self._being_made[self._being_made.index(node) :], node]
            raise ValueError(
                f"the sample_from functions of a search space need each other: "
                f"{' needs '.join(told(one.path) for one in circle)}\n\n"
                "hint: a function may look at any value but its own and those that are made from it"
            )
        self._being_made.append(node)
        try:
            with global_generators(Chance(*self._key, node.key)):
                value = self.unwrapped(node.domain.func(Spec(self, self._config)))
        except Exception as error:
            error.add_note(f"in the sample_from function of {told(node.path)}")
            raise
        finally:
            self._being_made.pop()
        _check_drawn(value, node)
        self._check(value, node)
        self._made[node.key] = value
        return value

    def seen(self, value: Any) -> Any:
        """A value as a function is shown it."""
        if isinstance(value, Pending):
            return self.seen(self.made(value.node))
        if type(value) is dict:
            return Config(self, value)
        if type(value) in (list, tuple):
            return Items(self, value) if _has_pending(value) else type(value)(map(self.seen, value))
        return value

    def unwrapped(self, value: Any) -> Any:
        """A value, or what a function was shown of it, as a value of its own."""
        if isinstance(value, Config | Items):
            value = value._values
        if isinstance(value, Pending):
            return self.unwrapped(self.made(value.node))
        if type(value) is dict:
            return {key: self.unwrapped(item) for key, item in value.items()}
        if type(value) in (list, tuple):
            return type(value)(map(self.unwrapped, value))
        return value


class Config(Mapping[Any, Any]):
    """Values by key, or by attribute."""

    def __init__(self, filling: Filling, values: dict[Any, Any]) -> None:
        self._filling = filling
        self._values = values

    def __getitem__(self, key: Any) -> Any:
        if key not in self._values:
            raise KeyError(f"no {key!r} among the values: there is {_listed(self._values)}")
        return self._filling.seen(self._values[key])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in self._values:
            raise AttributeError(f"no {name!r} among the values: there is {_listed(self._values)}")
        return self[name]

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"<the values of {_listed(self._values)}>"


class Spec(Config):
    """All the values: `spec.config.lr` and `spec["lr"]` are the same."""

    @property
    def config(self) -> Config:
        return Config(self._filling, self._values)

    def __getitem__(self, key: Any) -> Any:
        return self.config if key == "config" and key not in self._values else super().__getitem__(key)


class Items(Sequence[Any]):
    """A list or tuple that has values in it which are not made yet."""

    def __init__(self, filling: Filling, values: list[Any] | tuple[Any, ...]) -> None:
        self._filling = filling
        self._values = values

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self._filling.seen(value) for value in self._values[index]]
        return self._filling.seen(self._values[index])

    def __len__(self) -> int:
        return len(self._values)


def _has_pending(value: Any) -> bool:
    if type(value) is dict:
        return any(map(_has_pending, value.values()))
    if type(value) in (list, tuple):
        return any(map(_has_pending, value))
    return isinstance(value, Pending)


def _check_drawn(value: Any, node: Made) -> None:
    if isinstance(value, Domain):
        raise ValueError(
            f"the sample_from function of {told(node.path)} returned {value}: it has to return a value\n\n"
            "hint: draw it in the function with random or numpy.random, which are seeded for it"
        )
    if type(value) is dict:
        value = [*value.values()]
    if type(value) in (list, tuple):
        for item in value:
            _check_drawn(item, node)


def _listed(values: dict[Any, Any]) -> str:
    return ", ".join(map(repr, values)) or "none"
