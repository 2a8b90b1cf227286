"""Configurations that were given, or parts of them, found again in a search space."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.tune.space.tree import Drawn, Fixed, Group, Made, Node, Path


@dataclass(frozen=True)
class Point:
    """What a configuration sets of a space."""

    picked: Mapping[Path, Any]
    """Numbers and indexes of options, by the paths of their domains."""
    made: Mapping[Path, Any]
    """Values that stand in for those of `sample_from` functions."""


def point_of(tree: Node, config: Any, name: str) -> Point:
    """What a configuration sets. Raises `ValueError` with the path, which begins with `name`, of what is not there."""
    if not isinstance(config, Mapping):
        raise ValueError(f"{name}={config!r} is not a dict of values")
    return _matched(tree, dict(config), name, Point({}, {}))


def _matched(node: Node, value: Any, name: str, point: Point) -> Point:
    """`point` with what `value` sets at a node."""
    match node:
        case Fixed():
            if not is_same(node.value, value):
                raise ValueError(f"{name}={value!r} is not what it is in param_space: {node.value!r}")
            return point
        case Made():
            return Point(point.picked, {**point.made, node.path: value})
        case Group(kind="dict"):
            return _matched_keys(node, value, name, point)
        case Group():
            if not isinstance(value, list | tuple) or len(value) != len(node.children):
                raise ValueError(f"{name}={value!r} is not a {node.kind} of {len(node.children)}, as in param_space")
            for index, child in enumerate(node.children):
                point = _matched(child, value[index], f"{name}[{index}]", point)
            return point
        case Drawn() if node.options:
            return _matched_option(node, value, name, point)
        case Drawn():
            if not node.domain.contains(value):
                raise ValueError(f"{name}={value!r} is not in {node.domain}")
            return Point({**point.picked, node.path: node.domain.nearest(value)}, point.made)


def _matched_keys(node: Group, value: Any, name: str, point: Point) -> Point:
    if not isinstance(value, Mapping):
        raise ValueError(f"{name}={value!r} is not a dict, as in param_space")
    children = dict(zip(node.keys, node.children, strict=True))
    for key, item in value.items():
        if key not in children:
            raise ValueError(
                f"{name}[{key!r}] is not in param_space, which has {', '.join(map(repr, children)) or 'nothing'} there"
            )
        point = _matched(children[key], item, f"{name}[{key!r}]", point)
    return point


def _matched_option(node: Drawn, value: Any, name: str, point: Point) -> Point:
    for index, option in enumerate(node.options):
        try:
            found = _matched(option, value, name, point)
        except ValueError:
            continue  # Not this option; where it is none of them that is said below.
        return Point({**found.picked, node.path: index}, found.made)
    raise ValueError(f"{name}={value!r} is not an option of {node.domain}")


def is_same(a: Any, b: Any) -> bool:
    """Whether two values are the same to a person: 1 and 1.0 are, 1 and True are not."""
    if a is b:
        return True
    if isinstance(a, bool) != isinstance(b, bool):
        return False
    try:
        return (a == b) is True or ((a != a) is True and (b != b) is True)
    except (TypeError, ValueError, AttributeError, RuntimeError):
        return False  # An object that compares with its own kind only.
