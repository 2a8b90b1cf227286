"""Encodes configurations and search spaces as plain JSON, and back.

Plain values are kept as they are, tuples become `{"$tuple": ...}`, and dicts with keys other than plain text become
`{"$items": ...}`. In a configuration, an object is stored as its path in the search space, and the same space restores
it; nothing is ever pickled. In the description of a space, objects and functions are stored by name, which is enough to
detect a difference but not to rebuild the space.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import re
from collections.abc import Callable
from typing import Any

from paceline._core.plain_values import from_plain, to_plain
from paceline.tune.space import domains, tree
from paceline.tune.space.tree import Option, Path, encode_path, format_path

SCALARS = (type(None), bool, int, float, str)


@dataclasses.dataclass(frozen=True)
class LostObject:
    """Placeholder for an object that a stored configuration cannot restore."""

    name: str

    def __repr__(self) -> str:
        return f"<{self.name}>"


def encode_config(value: Any, find: Callable[[Any], Path | None], path: Path = ()) -> Any:
    """Encode `value` in plain form; `find` returns the path of an object in the space."""
    kind = type(value)
    if kind in SCALARS:
        return to_plain(value, format_path(path, "config"))
    if kind in (list, tuple) or (kind is dict and all(type(key) in tree.KEY_TYPES for key in value)):
        pairs = value.items() if kind is dict else enumerate(value)
        items = [(key, encode_config(item, find, (*path, key))) for key, item in pairs]
        return _encode_container(kind.__name__, items, format_path(path, "config"))
    place = find(value)
    if place is not None:
        return {"$space": encode_path(place), "is": object_name(value)}
    try:
        return to_plain(value, format_path(path, "config"))  # A numpy scalar or a subclass of str.
    except (TypeError, ValueError):
        return {"$lost": object_name(value)}


def decode_config(value: Any, look_up: Callable[[Path], Any] | None) -> Any:
    """Decode the result of `encode_config`. Without `look_up`, objects become `LostObject`."""

    def decode_object(value: dict[str, Any], path: Path) -> Any:
        if "$lost" not in value and look_up is not None:
            return _find_space_object(value, look_up, path)
        name = str(value.get("$lost", value.get("is", "")))
        if look_up is None:
            return LostObject(name)
        raise ValueError(
            f"cannot restore {format_path(path, 'config')}: the object of {name} is not in param_space\n\n"
            "hint: let sample_from return a plain value such as a number or a name, or use tune.choice for objects"
        )

    return _decode_containers(value, decode_object)


def _decode_containers(value: Any, decode_marked: Callable[[dict[str, Any], Path], Any], path: Path = ()) -> Any:
    """Undo `_encode_container`; other dicts with a key that starts with `$` are passed to `decode_marked`."""
    if isinstance(value, list):
        return [_decode_containers(item, decode_marked, (*path, index)) for index, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    if "$tuple" in value:
        return tuple(_decode_containers(value["$tuple"], decode_marked, path))
    if "$number" in value:
        return from_plain(value)
    if "$items" not in value and _is_marked(value):
        return decode_marked(value, path)
    items = ((from_plain(key), item) for key, item in value["$items"]) if "$items" in value else value.items()
    return {key: _decode_containers(item, decode_marked, (*path, key)) for key, item in items}


def _is_marked(value: dict[str, Any]) -> bool:
    return any(key.startswith("$") for key in value)


def find_lost_objects(value: Any) -> list[str]:
    """Return the names of the objects that a stored value cannot restore."""
    if isinstance(value, dict) and "$lost" in value:
        return [value["$lost"]]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [name for item in items for name in find_lost_objects(item)]


def _encode_container(kind: str, items: list[tuple[Any, Any]], path: str) -> Any:
    if kind == "list":
        return [item for _, item in items]
    if kind == "tuple":
        return {"$tuple": [item for _, item in items]}
    if all(type(key) is str and not key.startswith("$") for key, _ in items):
        return {to_plain(key, path): item for key, item in items}
    return {"$items": [[to_plain(key, path), item] for key, item in items]}


def object_name(value: Any) -> str:
    """Return an object's name, which is the same in every process."""
    if isinstance(value, enum.Enum):
        return f"{_qualified_name(type(value))}.{value.name}"
    if isinstance(getattr(value, "__qualname__", None), str):
        return _qualified_name(value)
    # Objects whose repr is a name, such as torch.float32, use that; containers may be large, so their repr is not made.
    text = repr(value) if not hasattr(type(value), "__len__") else ""
    return text if re.fullmatch(r"[A-Za-z_][\w.]{,100}", text) else _qualified_name(type(value))


def _is_same_name(one: str, other: str) -> bool:
    """Whether two names refer to one object; names from a script have no module until it is imported."""
    return one == other or one.endswith(f".{other}") or other.endswith(f".{one}")


def _qualified_name(value: Any) -> str:
    module = getattr(value, "__module__", None)
    return value.__qualname__ if module in (None, "builtins", "__main__") else f"{module}.{value.__qualname__}"


def _find_space_object(value: dict[str, Any], look_up: Callable[[Path], Any], path: Path) -> Any:
    place = tuple(Option(step["option"]) if isinstance(step, dict) else step for step in value["$space"])
    try:
        restored = look_up(place)
        now = object_name(restored)
    except LookupError:
        restored, now = None, "no object"
    if not _is_same_name(now, value["is"]):
        raise ValueError(
            f"cannot restore {format_path(path, 'config')}: {format_path(place)} was {value['is']}, and param_space "
            f"now has {now} there\n\nhint: use the param_space that the search was started with"
        )
    return restored


def describe_node(node: tree.SpaceNode) -> Any:
    match node:
        case tree.FixedNode():
            return _describe_value(node.value, format_path(node.path))
        case tree.GroupNode():
            items = [(key, describe_node(child)) for key, child in zip(node.keys, node.children, strict=True)]
            return _encode_container(node.kind, items, format_path(node.path))
        case tree.FunctionNode():
            return {"$domain": "sample_from", "function": object_name(node.domain.func)}
        case tree.DrawnNode():
            name, arguments = node.domain.call
            if isinstance(node.domain, domains.Categorical):
                return {"$domain": name, "options": [describe_node(option) for option in node.options]}
            return {"$domain": name, "arguments": [to_plain(argument) for argument in arguments]}


def rebuild_param_space(plain_space: Any) -> Any:
    """Return the `param_space` of a description. Raises `ValueError` if it has objects or functions."""
    objects: list[str] = []

    def rebuild_marked(value: dict[str, Any], path: Path) -> Any:
        if "$object" in value or "function" in value:
            what = f"is {value['$object']}" if "$object" in value else f"is a sample_from of {value['function']}"
            objects.append(f"{format_path(path)} {what}")
            return None
        make = getattr(domains, value["$domain"])
        if "options" not in value:
            return make(*map(from_plain, value["arguments"]))
        options = enumerate(value["options"])
        return make([_decode_containers(option, rebuild_marked, (*path, Option(index))) for index, option in options])

    space = _decode_containers(plain_space, rebuild_marked)
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
    (kind, step, items), (kind_now, _, items_now) = map(_split_items, (before, now))
    if kind and kind == kind_now and len(items) == len(items_now):
        pairs = enumerate(zip(items, items_now, strict=True))
        return [line for index, (a, b) in pairs for line in find_differences(a, b, path + step.format(index))]
    if isinstance(before, dict) and isinstance(now, dict) and _is_marked(before) == _is_marked(now):
        if not _is_marked(before):
            return _compare_dicts(before, now, path)
        if _is_same_object(before, now):
            was, has = before.get("fields", {}), now.get("fields", {})
            return [line for name in was for line in find_differences(was[name], has.get(name), f"{path}.{name}")]
    return [f"{path} was {_format_description(before)} and is now {_format_description(now)}"]


def _split_items(value: Any) -> tuple[str, str, list[Any]]:
    """Return the kind of a list, tuple or choice, how the path to an item is written, and the items."""
    match value:
        case list():
            return "list", "[{}]", value
        case {"$tuple": items}:
            return "tuple", "[{}]", items
        case {"$domain": name, "options": options}:
            return name, "(option {})", options
    return "", "", []


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


def _describe_value(value: Any, path: str) -> Any:
    if type(value) in SCALARS:
        return to_plain(value, path)
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return {"$object": object_name(value)}
    fields = {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    described = {name: _describe_value(item, f"{path}.{name}") for name, item in fields.items()}
    return {"$object": object_name(value), "fields": described}


def _is_same_object(before: dict[str, Any], now: dict[str, Any]) -> bool:
    for key in ("$object", "function"):
        if key in before and key in now:
            return _is_same_name(before[key], now[key])
    return False


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
