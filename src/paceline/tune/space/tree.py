"""A search space as a tree of fixed, drawn and computed values, and how configurations match it.

Dicts, lists and tuples are traversed; any other object is passed on unchanged. A node is identified by its path: the
keys and indexes that lead to it, with an `Option` wherever the path enters an option of a choice.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from paceline._core.arguments import bad_value
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
    key: str = ""
    """The path as text; seeds its randomness."""
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


def encode_path(path: Path) -> list[Any]:
    return [{"option": step.index} if isinstance(step, Option) else step for step in path]


def _build_node(
    value: Any, path: Path, condition: Condition, choice: Path | None, around: tuple[int, ...]
) -> SpaceNode:
    """`choice` is the path of the enclosing random choice; `around` has the ids of the enclosing containers."""
    if isinstance(value, dict) and len(value) == 1:
        (key,) = value
        if key == "grid_search":
            if not isinstance(value[key], list | tuple):
                raise bad_value(format_path((*path, key)), "a list of values", value[key])
            if not value[key]:
                raise ValueError(f"{format_path(path)} is a grid_search without values")
            value = Grid(tuple(value[key]))
        elif isinstance(key, str) and difflib.get_close_matches(key, ["grid_search"], cutoff=0.8):
            raise ValueError(f"unknown key {key!r} in {format_path(path)}\n\nhint: use tune.grid_search([...])")
    if isinstance(value, Function):
        return FunctionNode(path, value, condition, json.dumps(encode_path(path)))
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
        return DrawnNode(path, domain, condition, json.dumps(encode_path(path)), (), 1)
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
    return DrawnNode(path, domain, condition, json.dumps(encode_path(path)), options, size)


def _grid_size(node: SpaceNode) -> int:
    return node.num_grid if isinstance(node, GroupNode | DrawnNode) else 1


_OTHER_SPACES = ("ray.tune.", "optuna.distributions.", "hyperopt.", "skopt.space.", "ConfigSpace.")
"""Modules of domains that are not ours."""


def _check_opaque(value: Any, path: Path) -> None:
    """Raise if an object that is not traversed contains a domain, or would have to be drawn by another library."""
    if getattr(value, "__module__", None) == Domain.__module__ and callable(value):
        name = getattr(value, "__name__", type(value).__name__)
        raise ValueError(f"{format_path(path)} is the function tune.{name} itself\n\nhint: call it: tune.{name}(...)")
    if f"{type(value).__module__}.".startswith(_OTHER_SPACES):
        raise ValueError(
            f"{format_path(path)} is a {type(value).__module__}.{type(value).__name__}, which would not be drawn\n\n"
            "hint: use a domain of paceline.tune, such as tune.uniform(0, 1)"
        )
    items: Any = ()
    if isinstance(value, Mapping):
        items = [*value.values(), *value.keys()]
    elif isinstance(value, list | tuple | set | frozenset):
        items = value
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        items = [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    for item in items:
        if isinstance(item, Domain):
            raise ValueError(
                f"{format_path(path)} is a {type(value).__name__} with {item} in it, which would not be drawn: only "
                "plain dicts, lists and tuples are searched for domains\n\n"
                "hint: use tune.choice or tune.grid_search with several of these objects as options"
            )


@dataclass(frozen=True)
class Point:
    """The values of a space that a configuration sets."""

    picks: Mapping[Path, Any]
    """Numbers and option indexes, by the paths of their domains."""
    function_values: Mapping[Path, Any]
    """Values that replace those of `sample_from` functions."""


def match_config(tree: SpaceNode, config: Any, name: str) -> Point:
    """Return what a configuration sets. Raises `ValueError` with the path, starting at `name`, of an unknown value."""
    if not isinstance(config, Mapping):
        raise bad_value(name, "a dict of values", config)
    return _match_node(tree, dict(config), name, Point({}, {}))


def _match_node(node: SpaceNode, value: Any, name: str, point: Point) -> Point:
    """Return `point` plus what `value` sets at a node."""
    match node:
        case FixedNode():
            if not is_same_value(node.value, value):
                raise bad_value(name, f"{node.value!r} as in param_space", value)
            return point
        case FunctionNode():
            return Point(point.picks, {**point.function_values, node.path: value})
        case GroupNode(kind="dict"):
            return _match_keys(node, value, name, point)
        case GroupNode():
            if not isinstance(value, list | tuple) or len(value) != len(node.children):
                raise bad_value(name, f"a {node.kind} of {len(node.children)} as in param_space", value)
            for index, child in enumerate(node.children):
                point = _match_node(child, value[index], f"{name}[{index}]", point)
            return point
        case DrawnNode() if node.options:
            return _match_option(node, value, name, point)
        case DrawnNode():
            if not node.domain.contains(value):
                raise bad_value(name, f"in {node.domain}", value)
            return Point({**point.picks, node.path: node.domain.nearest(value)}, point.function_values)


def _match_keys(node: GroupNode, value: Any, name: str, point: Point) -> Point:
    if not isinstance(value, Mapping):
        raise bad_value(name, "a dict as in param_space", value)
    children = dict(zip(node.keys, node.children, strict=True))
    for key, item in value.items():
        if key not in children:
            known = ", ".join(map(repr, children)) or "none"
            raise ValueError(f"{name}: unknown key {key!r}; the keys of param_space there are {known}")
        point = _match_node(children[key], item, f"{name}[{key!r}]", point)
    return point


def _match_option(node: DrawnNode, value: Any, name: str, point: Point) -> Point:
    for index, option in enumerate(node.options):
        try:
            matched = _match_node(option, value, name, point)
        except ValueError:
            continue  # Not this option; if none matches, that is reported below.
        return Point({**matched.picks, node.path: index}, matched.function_values)
    raise bad_value(name, f"an option of {node.domain}", value)


def is_same_value(a: Any, b: Any) -> bool:
    """Whether two values are equal to a person: 1 and 1.0 are, 1 and True are not."""
    if a is b:
        return True
    if isinstance(a, bool) != isinstance(b, bool):
        return False
    try:
        return (a == b) is True or ((a != a) is True and (b != b) is True)
    except (TypeError, ValueError, AttributeError, RuntimeError):
        return False  # The object can only be compared with its own kind.
