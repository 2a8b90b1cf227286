"""A search space as plain JSON: to make it again, and to see whether another one is the same.

Objects and functions cannot be written down; they are named, which is enough to tell a difference but not to make the
space again.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from paceline._core.plain import plain, unplain
from paceline.tune.space import primitives
from paceline.tune.space.domains import Categorical
from paceline.tune.space.stored import SCALARS, contained, is_same_name, name_of
from paceline.tune.space.tree import Drawn, Fixed, Group, Made, Node, told


def described(node: Node) -> Any:
    """The space in plain form."""
    match node:
        case Fixed():
            return _value(node.value, told(node.path))
        case Group():
            items = [(key, described(child)) for key, child in zip(node.keys, node.children, strict=True)]
            return contained(node.kind, items, told(node.path))
        case Made():
            return {"$domain": "sample_from", "function": name_of(node.domain.func)}
        case Drawn():
            name, arguments = node.domain.call
            if isinstance(node.domain, Categorical):
                return {"$domain": name, "options": [described(option) for option in node.options]}
            return {"$domain": name, "arguments": [plain(argument) for argument in arguments]}


def param_space_of(plain_space: Any) -> Any:
    """What to make the space again from. Raises `ValueError` where it has objects or functions."""
    objects: list[str] = []
    space = _made(plain_space, "param_space", objects)
    if objects:
        raise ValueError(
            f"the search space cannot be made again from its description: {'; '.join(objects)}\n\n"
            "hint: pass param_space again"
        )
    return space


def differences(before: Any, now: Any, path: str = "param_space") -> list[str]:
    """What is not the same in two descriptions, a line each."""
    if json.dumps(before) == json.dumps(now):
        return []
    if isinstance(before, list) and isinstance(now, list):
        return _by_index(before, now, path, "[{}]")
    if not isinstance(before, dict) or not isinstance(now, dict):
        return [f"{path} was {_text(before)} and is now {_text(now)}"]
    if not _is_marked(before) and not _is_marked(now):
        return _by_key(before, now, path)
    if _is_marked(before) and _is_marked(now):
        if "options" in before and "options" in now and before["$domain"] == now["$domain"]:
            return _by_index(before["options"], now["options"], path, "(option {})", before, now)
        if _is_same_object(before, now):
            was, has = before.get("fields", {}), now.get("fields", {})
            return [line for name in was for line in differences(was[name], has.get(name), f"{path}.{name}")]
        if "$tuple" in before and "$tuple" in now:
            return _by_index(before["$tuple"], now["$tuple"], path, "[{}]", before, now)
    return [f"{path} was {_text(before)} and is now {_text(now)}"]


def _by_key(before: dict[str, Any], now: dict[str, Any], path: str) -> list[str]:
    found = [f"{path}[{key!r}] was {_text(before[key])} and is gone" for key in before if key not in now]
    found += [f"{path}[{key!r}] is new: {_text(now[key])}" for key in now if key not in before]
    for key in before:
        if key in now:
            found += differences(before[key], now[key], f"{path}[{key!r}]")
    both_in_order = [key for key in before if key in now], [key for key in now if key in before]
    if not found and both_in_order[0] != both_in_order[1] and "grid_search" in json.dumps(now):
        found.append(f"{path} has its keys in another order, which is the order of its grid_search")
    return found


def _by_index(
    before: list[Any], now: list[Any], path: str, step: str, whole_before: Any = None, whole_now: Any = None
) -> list[str]:
    if len(before) != len(now):
        return [f"{path} was {_text(whole_before or before)} and is now {_text(whole_now or now)}"]
    pairs = enumerate(zip(before, now, strict=True))
    return [line for index, (a, b) in pairs for line in differences(a, b, path + step.format(index))]


def _value(value: Any, path: str) -> Any:
    if type(value) in SCALARS:
        return plain(value, path)
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return {"$object": name_of(value)}
    fields = {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    told_fields = {name: _value(item, f"{path}.{name}") for name, item in fields.items()}
    return {"$object": name_of(value), "fields": told_fields}


def _made(value: Any, path: str, objects: list[str]) -> Any:
    if isinstance(value, list):
        return [_made(item, f"{path}[{index}]", objects) for index, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    if "$tuple" in value:
        return tuple(_made(value["$tuple"], path, objects))
    if "$items" in value:
        return {unplain(key): _made(item, f"{path}[{key!r}]", objects) for key, item in value["$items"]}
    if "$number" in value:
        return unplain(value)
    if "$object" in value or ("function" in value and "$domain" in value):
        what = f"is {value['$object']}" if "$object" in value else f"is a sample_from of {value['function']}"
        objects.append(f"{path} {what}")
        return None
    if "$domain" in value:
        make = getattr(primitives, value["$domain"])
        if "options" in value:
            options = enumerate(value["options"])
            return make([_made(option, f"{path}(option {index})", objects) for index, option in options])
        return make(*map(unplain, value["arguments"]))
    return {key: _made(item, f"{path}[{key!r}]", objects) for key, item in value.items()}


def _is_same_object(before: dict[str, Any], now: dict[str, Any]) -> bool:
    for key in ("$object", "function"):
        if key in before and key in now:
            return is_same_name(before[key], now[key])
    return False


def _is_marked(value: dict[str, Any]) -> bool:
    return any(key.startswith("$") for key in value)


def _text(value: Any) -> str:
    """A description for a person."""
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    if not isinstance(value, dict):
        return repr(value)
    if "$tuple" in value:
        return f"({', '.join(map(_text, value['$tuple']))})"
    if "$items" in value:
        return "{" + ", ".join(f"{unplain(key)!r}: {_text(item)}" for key, item in value["$items"]) + "}"
    if "$number" in value:
        return repr(unplain(value))
    if "$object" in value:
        fields = value.get("fields")
        inside = ", ".join(f"{name}={_text(item)}" for name, item in fields.items()) if fields else ""
        return f"{value['$object']}({inside})" if fields else str(value["$object"])
    if "function" in value and "$domain" in value:
        return f"sample_from({value['function']})"
    if "$domain" in value:
        arguments = _text(value["options"]) if "options" in value else ", ".join(map(_text, value["arguments"]))
        return f"{value['$domain']}({arguments})"
    return "{" + ", ".join(f"{key!r}: {_text(item)}" for key, item in value.items()) + "}"
