"""Describes a search space as plain JSON, to rebuild it and to compare it with another.

Objects and functions are stored by name, which is enough to detect a difference but not to rebuild the space.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from paceline._core.plain_values import from_plain, to_plain
from paceline.tune.space import domains
from paceline.tune.space.config_codec import SCALARS, encode_container, is_same_name, object_name
from paceline.tune.space.domains import Categorical
from paceline.tune.space.tree import DrawnNode, FixedNode, FunctionNode, GroupNode, SpaceNode, format_path


def describe_node(node: SpaceNode) -> Any:
    match node:
        case FixedNode():
            return _describe_value(node.value, format_path(node.path))
        case GroupNode():
            items = [(key, describe_node(child)) for key, child in zip(node.keys, node.children, strict=True)]
            return encode_container(node.kind, items, format_path(node.path))
        case FunctionNode():
            return {"$domain": "sample_from", "function": object_name(node.domain.func)}
        case DrawnNode():
            name, arguments = node.domain.call
            if isinstance(node.domain, Categorical):
                return {"$domain": name, "options": [describe_node(option) for option in node.options]}
            return {"$domain": name, "arguments": [to_plain(argument) for argument in arguments]}


def rebuild_param_space(plain_space: Any) -> Any:
    """Return the `param_space` of a description. Raises `ValueError` if it has objects or functions."""
    objects: list[str] = []
    space = _rebuild_value(plain_space, "param_space", objects)
    if objects:
        raise ValueError(
            f"cannot rebuild the search space from its description: {'; '.join(objects)}\n\n"
            "hint: pass param_space again"
        )
    return space


def find_differences(before: Any, now: Any, path: str = "param_space") -> list[str]:
    """List the differences between two descriptions, one line each."""
    if json.dumps(before) == json.dumps(now):
        return []
    if isinstance(before, list) and isinstance(now, list):
        return _compare_lists(before, now, path, "[{}]", before, now)
    are_dicts = isinstance(before, dict) and isinstance(now, dict)
    if are_dicts and not _is_marked(before) and not _is_marked(now):
        return _compare_dicts(before, now, path)
    if are_dicts and _is_marked(before) and _is_marked(now):
        if "options" in before and "options" in now and before["$domain"] == now["$domain"]:
            return _compare_lists(before["options"], now["options"], path, "(option {})", before, now)
        if _is_same_object(before, now):
            was, has = before.get("fields", {}), now.get("fields", {})
            return [line for name in was for line in find_differences(was[name], has.get(name), f"{path}.{name}")]
        if "$tuple" in before and "$tuple" in now:
            return _compare_lists(before["$tuple"], now["$tuple"], path, "[{}]", before, now)
    return [_format_change(path, before, now)]


def _format_change(path: str, before: Any, now: Any) -> str:
    return f"{path} was {_format_description(before)} and is now {_format_description(now)}"


def _compare_dicts(before: dict[str, Any], now: dict[str, Any], path: str) -> list[str]:
    changes = [
        f"{path}[{key!r}] was {_format_description(before[key])} and is gone" for key in before if key not in now
    ]
    changes += [f"{path}[{key!r}] is new: {_format_description(now[key])}" for key in now if key not in before]
    for key in before:
        if key in now:
            changes += find_differences(before[key], now[key], f"{path}[{key!r}]")
    both_in_order = [key for key in before if key in now], [key for key in now if key in before]
    if not changes and both_in_order[0] != both_in_order[1] and "grid_search" in json.dumps(now):
        changes.append(f"the keys of {path} changed their order, which is the order of its grid_search")
    return changes


def _compare_lists(
    before: list[Any], now: list[Any], path: str, step: str, node_before: Any, node_now: Any
) -> list[str]:
    if len(before) != len(now):
        return [_format_change(path, node_before, node_now)]
    pairs = enumerate(zip(before, now, strict=True))
    return [line for index, (a, b) in pairs for line in find_differences(a, b, path + step.format(index))]


def _describe_value(value: Any, path: str) -> Any:
    if type(value) in SCALARS:
        return to_plain(value, path)
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return {"$object": object_name(value)}
    fields = {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    described = {name: _describe_value(item, f"{path}.{name}") for name, item in fields.items()}
    return {"$object": object_name(value), "fields": described}


def _rebuild_value(value: Any, path: str, objects: list[str]) -> Any:
    if isinstance(value, list):
        return [_rebuild_value(item, f"{path}[{index}]", objects) for index, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    if "$tuple" in value:
        return tuple(_rebuild_value(value["$tuple"], path, objects))
    if "$items" in value:
        return {from_plain(key): _rebuild_value(item, f"{path}[{key!r}]", objects) for key, item in value["$items"]}
    if "$number" in value:
        return from_plain(value)
    if "$object" in value or ("function" in value and "$domain" in value):
        what = f"is {value['$object']}" if "$object" in value else f"is a sample_from of {value['function']}"
        objects.append(f"{path} {what}")
        return None
    if "$domain" in value:
        make = getattr(domains, value["$domain"])
        if "options" in value:
            options = enumerate(value["options"])
            return make([_rebuild_value(option, f"{path}(option {index})", objects) for index, option in options])
        return make(*map(from_plain, value["arguments"]))
    return {key: _rebuild_value(item, f"{path}[{key!r}]", objects) for key, item in value.items()}


def _is_same_object(before: dict[str, Any], now: dict[str, Any]) -> bool:
    for key in ("$object", "function"):
        if key in before and key in now:
            return is_same_name(before[key], now[key])
    return False


def _is_marked(value: dict[str, Any]) -> bool:
    return any(key.startswith("$") for key in value)


def _format_description(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_format_description, value))}]"
    if not isinstance(value, dict):
        return repr(value)
    if "$tuple" in value:
        return f"({', '.join(map(_format_description, value['$tuple']))})"
    if "$number" in value:
        return repr(from_plain(value))
    if "$object" in value:
        fields = value.get("fields", {})
        inside = ", ".join(f"{name}={_format_description(item)}" for name, item in fields.items())
        return f"{value['$object']}({inside})" if fields else str(value["$object"])
    if "function" in value and "$domain" in value:
        return f"sample_from({value['function']})"
    if "$domain" in value:
        options, arguments = value.get("options"), value.get("arguments", ())
        inside = ", ".join(map(_format_description, arguments)) if options is None else _format_description(options)
        return f"{value['$domain']}({inside})"
    items = ((from_plain(key), item) for key, item in value["$items"]) if "$items" in value else value.items()
    return "{" + ", ".join(f"{key!r}: {_format_description(item)}" for key, item in items) + "}"
