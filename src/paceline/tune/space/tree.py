"""A search space as a tree: what stays as it is, what is drawn, and what follows from the rest.

Dicts, lists and tuples are walked; every other object is a value that is handed on as it is. A place in the space is
named by its path: the keys and indexes that lead to it, with an `Option` where an option of a choice is entered.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from paceline.tune.space.domains import Categorical, Domain, Function, Grid


@dataclass(frozen=True)
class Option:
    """On a path, the step from a choice into one of its options."""

    index: int


Step = str | int | float | bool | None | Option
Path = tuple[Step, ...]
Condition = tuple[tuple[Path, int], ...]


@dataclass(frozen=True)
class Place:
    """A domain and where it is in the space."""

    path: Path
    domain: Domain
    condition: Condition = ()
    """The choices that must have been made for it to be drawn: their paths, and the index of the option."""
    name: str = ""
    """For a person, and unique in the space: `model/lr`."""

    @property
    def where(self) -> tuple[Any, ...]:
        """The keys and indexes that lead to its value in a configuration."""
        return tuple(step for step in self.path if not isinstance(step, Option))


@dataclass(frozen=True)
class Fixed:
    """A value that is the same in every trial."""

    path: Path
    value: Any


@dataclass(frozen=True)
class Group:
    """A dict, list or tuple."""

    path: Path
    kind: Literal["dict", "list", "tuple"]
    keys: tuple[Any, ...]
    children: tuple[Node, ...]
    num_grid: int

    def built(self, values: list[Any]) -> Any:
        """The container with these values in it."""
        if self.kind == "dict":
            return dict(zip(self.keys, values, strict=True))
        return values if self.kind == "list" else tuple(values)


@dataclass(frozen=True)
class Drawn:
    """A number, or one of several options."""

    path: Path
    domain: Domain
    condition: Condition
    key: str
    """The path as text, which names its randomness."""
    options: tuple[Node, ...]
    num_grid: int


@dataclass(frozen=True)
class Made:
    """What a function makes of the other values."""

    path: Path
    domain: Function
    condition: Condition
    key: str


Node = Fixed | Group | Drawn | Made

KEY_TYPES = (str, int, float, bool, type(None))


def tree_of(param_space: Any) -> Node:
    """The tree of a space. Raises `ValueError` with the path of what cannot be part of one."""
    return _node(param_space, (), (), None, ())


def num_grid(node: Node, chosen: Mapping[Path, int]) -> int:
    """How many combinations of the grids in a node there are, with some of their options chosen already."""
    match node:
        case Group(children=children):
            return math.prod(num_grid(child, chosen) for child in children) if chosen else node.num_grid
        case Drawn(path=path, domain=Grid(), options=options) if chosen:
            among = options if path not in chosen else [options[chosen[path]]]
            return sum(num_grid(option, chosen) for option in among)
        case Drawn(num_grid=number):
            return number
    return 1


def grid_options(node: Node, number: int, chosen: Mapping[Path, int]) -> Iterator[tuple[Path, int]]:
    """The options of the grids in a node in their number-th combination; the last grid changes fastest."""
    match node:
        case Group(children=children):
            for child in reversed(children):
                number, of_child = divmod(number, num_grid(child, chosen))
                yield from grid_options(child, of_child, chosen)
        case Drawn(path=path, domain=Grid(), options=options):
            if path not in chosen and node.num_grid == len(options):
                # No option has more than one combination of its own; there may be very many options.
                yield path, number
                yield from grid_options(options[number], 0, chosen)
                return
            among = [chosen[path]] if path in chosen else range(len(options))
            for index in among:
                if number < (count := num_grid(options[index], chosen)):
                    yield path, index
                    yield from grid_options(options[index], number, chosen)
                    return
                number -= count


def nodes(node: Node) -> Iterator[Node]:
    """A node and all inside it, in the order of the space; all options of a choice."""
    yield node
    inside = node.children if isinstance(node, Group) else node.options if isinstance(node, Drawn) else ()
    for child in inside:
        yield from nodes(child)


def told(path: Path, root: str = "param_space") -> str:
    """A path as a person would write it."""
    return root + "".join(f"(option {step.index})" if isinstance(step, Option) else f"[{step!r}]" for step in path)


def as_text(path: Path) -> str:
    return json.dumps([{"option": step.index} if isinstance(step, Option) else step for step in path])


def _node(value: Any, path: Path, condition: Condition, choice: Path | None, around: tuple[int, ...]) -> Node:
    """`choice` is the path of the random choice that this is inside of, and `around` the ids of the containers."""
    if isinstance(value, dict) and value.keys() == {"grid_search"} and isinstance(value["grid_search"], list | tuple):
        if not value["grid_search"]:
            raise ValueError(f"{told(path)} is a grid_search without values")
        value = Grid(tuple(value["grid_search"]))
    if isinstance(value, Function):
        return Made(path, value, condition, as_text(path))
    if isinstance(value, Domain):
        return _drawn(value, path, condition, choice, around)
    kind = type(value)
    if kind in (list, tuple) or (kind is dict and all(type(key) in KEY_TYPES for key in value)):
        return _group(value, path, condition, choice, around)
    _check_opaque(value, path)
    return Fixed(path, value)


def _group(
    value: dict[Any, Any] | list[Any] | tuple[Any, ...],
    path: Path,
    condition: Condition,
    choice: Path | None,
    around: tuple[int, ...],
) -> Group:
    if id(value) in around:
        raise ValueError(f"{told(path)} contains itself")
    inside = (*around, id(value))
    keys = tuple(value) if isinstance(value, dict) else tuple(range(len(value)))
    for key in keys:
        if isinstance(key, float) and not math.isfinite(key):
            raise ValueError(f"{told(path)} has the key {key!r}: keys have to be strings or finite numbers")
    values = value.values() if isinstance(value, dict) else value
    children = tuple(
        _node(child, (*path, key), condition, choice, inside) for key, child in zip(keys, values, strict=True)
    )
    name: Any = type(value).__name__
    return Group(path, name, keys, children, math.prod(map(_grid_size, children)))


def _drawn(domain: Domain, path: Path, condition: Condition, choice: Path | None, around: tuple[int, ...]) -> Drawn:
    if not isinstance(domain, Categorical):
        return Drawn(path, domain, condition, as_text(path), (), 1)
    is_grid = isinstance(domain, Grid)
    if is_grid and choice is not None:
        raise ValueError(
            f"{told(path)} is a grid_search inside an option of the choice at {told(choice)}: how many trials there "
            "are would depend on what is drawn\n\nhint: use choice for the inner one, or grid_search for the outer one"
        )
    if id(domain) in around:
        raise ValueError(f"{told(path)} contains itself")
    options = tuple(
        _node(
            option,
            (*path, Option(index)),
            (*condition, (path, index)),
            choice if is_grid else path,
            (*around, id(domain)),
        )
        for index, option in enumerate(domain.categories)
    )
    size = sum(map(_grid_size, options)) if is_grid else 1
    return Drawn(path, domain, condition, as_text(path), options, size)


def _grid_size(node: Node) -> int:
    return node.num_grid if isinstance(node, Group | Drawn) else 1


def _check_opaque(value: Any, path: Path) -> None:
    """An object is not looked into, so there must be nothing to draw in it."""
    inside: Any = ()
    if isinstance(value, Mapping):
        inside = [*value.values(), *value.keys()]
    elif isinstance(value, list | tuple | set | frozenset):
        inside = value
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        inside = [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    for item in inside:
        if isinstance(item, Domain):
            raise ValueError(
                f"{told(path)} is a {type(value).__name__} with {item} in it, where it would not be drawn: only plain "
                "dicts with keys such as strings, lists and tuples are looked into\n\n"
                "hint: let tune.choice or tune.grid_search have several of these objects as its options"
            )
