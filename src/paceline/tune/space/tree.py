"""A search space as a tree: fixed values, drawn values, and values computed from the others.

Dicts, lists and tuples are traversed; any other object is passed on unchanged. A node is identified by its path: the
keys and indexes that lead to it, with an `Option` wherever the path enters an option of a choice.
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
    """The step of a path from a choice into one of its options."""

    index: int


Step = str | int | float | bool | None | Option
Path = tuple[Step, ...]
Condition = tuple[tuple[Path, int], ...]
Container = dict[Any, Any] | list[Any] | tuple[Any, ...]


@dataclass(frozen=True)
class SpaceParameter:
    """A domain and its path in the space."""

    path: Path
    domain: Domain
    condition: Condition = ()
    """The choices required for it to be drawn: their paths, and the option index."""
    name: str = ""
    """Display name, unique in the space: `model/lr`."""

    @property
    def config_keys(self) -> tuple[Any, ...]:
        """The keys and indexes that lead to its value in a configuration."""
        return tuple(step for step in self.path if not isinstance(step, Option))


@dataclass(frozen=True)
class FixedNode:
    """A value that is the same in every trial."""

    path: Path
    value: Any


@dataclass(frozen=True)
class GroupNode:
    """A dict, list or tuple."""

    path: Path
    kind: Literal["dict", "list", "tuple"]
    keys: tuple[Any, ...]
    children: tuple[SpaceNode, ...]
    num_grid: int

    def build_container(self, values: list[Any]) -> Any:
        if self.kind == "dict":
            return dict(zip(self.keys, values, strict=True))
        return values if self.kind == "list" else tuple(values)


@dataclass(frozen=True)
class DrawnNode:
    """A number, or one of several options."""

    path: Path
    domain: Domain
    condition: Condition
    key: str
    """The path as text; seeds its randomness."""
    options: tuple[SpaceNode, ...]
    num_grid: int


@dataclass(frozen=True)
class FunctionNode:
    """A value that a function computes from the others."""

    path: Path
    domain: Function
    condition: Condition
    key: str


SpaceNode = FixedNode | GroupNode | DrawnNode | FunctionNode

KEY_TYPES = (str, int, float, bool, type(None))


def build_tree(param_space: Any) -> SpaceNode:
    """Build the tree of a space. Raises `ValueError` with the path of an invalid value."""
    return _build_node(param_space, (), (), None, ())


def count_grid(node: SpaceNode, chosen: Mapping[Path, int]) -> int:
    """Count the combinations of the grids in a node, given the options chosen so far."""
    match node:
        case GroupNode(children=children):
            return math.prod(count_grid(child, chosen) for child in children) if chosen else node.num_grid
        case DrawnNode(path=path, domain=Grid(), options=options) if chosen:
            among = options if path not in chosen else [options[chosen[path]]]
            return sum(count_grid(option, chosen) for option in among)
        case DrawnNode(num_grid=number):
            return number
    return 1


def iter_grid_options(node: SpaceNode, number: int, chosen: Mapping[Path, int]) -> Iterator[tuple[Path, int]]:
    """Iterate over the grid options of a node in combination `number`; the last grid changes fastest."""
    match node:
        case GroupNode(children=children):
            for child in reversed(children):
                number, of_child = divmod(number, count_grid(child, chosen))
                yield from iter_grid_options(child, of_child, chosen)
        case DrawnNode(path=path, domain=Grid(), options=options):
            if path not in chosen and node.num_grid == len(options):
                # Shortcut: there may be very many options, and here each has only one combination.
                yield path, number
                yield from iter_grid_options(options[number], 0, chosen)
                return
            among = [chosen[path]] if path in chosen else range(len(options))
            for index in among:
                if number < (count := count_grid(options[index], chosen)):
                    yield path, index
                    yield from iter_grid_options(options[index], number, chosen)
                    return
                number -= count


def iter_nodes(node: SpaceNode) -> Iterator[SpaceNode]:
    """Iterate over a node and all its descendants, in the order of the space; includes all options of a choice."""
    yield node
    inside = node.children if isinstance(node, GroupNode) else node.options if isinstance(node, DrawnNode) else ()
    for child in inside:
        yield from iter_nodes(child)


def format_path(path: Path, root: str = "param_space") -> str:
    """Format a path as a person would write it."""
    return root + "".join(f"(option {step.index})" if isinstance(step, Option) else f"[{step!r}]" for step in path)


def encode_path(path: Path) -> str:
    return json.dumps([{"option": step.index} if isinstance(step, Option) else step for step in path])


def _build_node(
    value: Any, path: Path, condition: Condition, choice: Path | None, around: tuple[int, ...]
) -> SpaceNode:
    """`choice` is the path of the enclosing random choice; `around` has the ids of the enclosing containers."""
    if isinstance(value, dict) and value.keys() == {"grid_search"} and isinstance(value["grid_search"], list | tuple):
        if not value["grid_search"]:
            raise ValueError(f"{format_path(path)} is a grid_search without values")
        value = Grid(tuple(value["grid_search"]))
    if isinstance(value, Function):
        return FunctionNode(path, value, condition, encode_path(path))
    if isinstance(value, Domain):
        return _build_drawn(value, path, condition, choice, around)
    if type(value) in (list, tuple) or (type(value) is dict and all(type(key) in KEY_TYPES for key in value)):
        return _build_group(value, path, condition, choice, around)
    _check_opaque(value, path)
    return FixedNode(path, value)


def _build_group(
    value: Container, path: Path, condition: Condition, choice: Path | None, around: tuple[int, ...]
) -> GroupNode:
    if id(value) in around:
        raise ValueError(f"{format_path(path)} contains itself")
    inside = (*around, id(value))
    keys = tuple(value) if isinstance(value, dict) else tuple(range(len(value)))
    for key in keys:
        if isinstance(key, float) and not math.isfinite(key):
            raise ValueError(f"the keys of {format_path(path)} must be strings or finite numbers, got {key!r}")
    values = value.values() if isinstance(value, dict) else value
    children = tuple(
        _build_node(child, (*path, key), condition, choice, inside) for key, child in zip(keys, values, strict=True)
    )
    name: Any = type(value).__name__
    return GroupNode(path, name, keys, children, math.prod(map(_grid_size, children)))


def _build_drawn(
    domain: Domain, path: Path, condition: Condition, choice: Path | None, around: tuple[int, ...]
) -> DrawnNode:
    if not isinstance(domain, Categorical):
        return DrawnNode(path, domain, condition, encode_path(path), (), 1)
    is_grid = isinstance(domain, Grid)
    if is_grid and choice is not None:
        raise ValueError(
            f"{format_path(path)} is a grid_search inside an option of the choice at {format_path(choice)}, "
            "so the number of trials would be random\n\n"
            "hint: use choice for the inner one, or grid_search for the outer one"
        )
    if id(domain) in around:
        raise ValueError(f"{format_path(path)} contains itself")
    enclosing, inside = choice if is_grid else path, (*around, id(domain))
    options = tuple(
        _build_node(option, (*path, Option(index)), (*condition, (path, index)), enclosing, inside)
        for index, option in enumerate(domain.categories)
    )
    size = sum(map(_grid_size, options)) if is_grid else 1
    return DrawnNode(path, domain, condition, encode_path(path), options, size)


def _grid_size(node: SpaceNode) -> int:
    return node.num_grid if isinstance(node, GroupNode | DrawnNode) else 1


def _check_opaque(value: Any, path: Path) -> None:
    """Raise if an object that is not traversed contains a domain."""
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
                f"{format_path(path)} is a {type(value).__name__} with {item} in it, which would not be drawn: only "
                "plain dicts, lists and tuples are searched for domains\n\n"
                "hint: use tune.choice or tune.grid_search with several of these objects as options"
            )
