"""Matches given full or partial configurations to a search space."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline._core.arguments import bad_value
from paceline.tune.space.tree import DrawnNode, FixedNode, FunctionNode, GroupNode, Path, SpaceNode


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
