"""Encodes a configuration as plain JSON, and back.

Plain values are kept as they are, tuples become `{"$tuple": ...}`, and dicts with keys other than plain text become
`{"$items": ...}`. An object is stored as its path in the search space, and the same space restores it; nothing is ever
pickled.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Callable
from typing import Any

from paceline._core.plain_values import from_plain, to_plain
from paceline.tune.space.tree import KEY_TYPES, Option, Path, format_path

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
    if kind is dict and all(type(key) in KEY_TYPES for key in value):
        items = [(key, encode_config(item, find, (*path, key))) for key, item in value.items()]
        return encode_container("dict", items, format_path(path, "config"))
    if kind in (list, tuple):
        items = [(index, encode_config(item, find, (*path, index))) for index, item in enumerate(value)]
        return encode_container(kind.__name__, items, format_path(path, "config"))
    place = find(value)
    if place is not None:
        steps = [{"option": step.index} if isinstance(step, Option) else step for step in place]
        return {"$space": steps, "is": object_name(value)}
    try:
        return to_plain(value, format_path(path, "config"))  # A numpy scalar or a subclass of str.
    except (TypeError, ValueError):
        return {"$lost": object_name(value)}


def decode_config(value: Any, look_up: Callable[[Path], Any] | None, path: Path = ()) -> Any:
    """Decode the result of `encode_config`. Without `look_up`, objects become `LostObject`."""
    if isinstance(value, list):
        return [decode_config(item, look_up, (*path, index)) for index, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    if "$tuple" in value:
        return tuple(decode_config(value["$tuple"], look_up, path))
    if "$items" in value:
        return {from_plain(key): decode_config(item, look_up, (*path, key)) for key, item in value["$items"]}
    if "$number" in value:
        return from_plain(value)
    if "$lost" in value or ("$space" in value and look_up is None):
        return _decode_lost(value, look_up, path)
    if "$space" in value:
        return _decode_space_object(value, look_up, path)
    return {key: decode_config(item, look_up, (*path, key)) for key, item in value.items()}


def find_lost_objects(value: Any) -> list[str]:
    """Return the names of the objects that a stored value cannot restore."""
    if isinstance(value, dict) and "$lost" in value:
        return [value["$lost"]]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [name for item in items for name in find_lost_objects(item)]


def encode_container(kind: str, items: list[tuple[Any, Any]], path: str) -> Any:
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


def is_same_name(one: str, other: str) -> bool:
    """Whether two names refer to one object; names from a script have no module until it is imported."""
    return one == other or one.endswith(f".{other}") or other.endswith(f".{one}")


def _qualified_name(value: Any) -> str:
    module = getattr(value, "__module__", None)
    return value.__qualname__ if module in (None, "builtins", "__main__") else f"{module}.{value.__qualname__}"


def _decode_lost(value: dict[str, Any], look_up: Callable[[Path], Any] | None, path: Path) -> LostObject:
    name = str(value.get("$lost", value.get("is", "")))
    if look_up is None:
        return LostObject(name)
    raise ValueError(
        f"cannot restore {format_path(path, 'config')}: the object of {name} is not in param_space\n\n"
        "hint: let sample_from return a plain value such as a number or a name, or use tune.choice for objects"
    )


def _decode_space_object(value: dict[str, Any], look_up: Callable[[Path], Any] | None, path: Path) -> Any:
    assert look_up is not None
    place = tuple(Option(step["option"]) if isinstance(step, dict) else step for step in value["$space"])
    try:
        restored = look_up(place)
        now = object_name(restored)
    except LookupError:
        restored, now = None, "no object"
    if not is_same_name(now, value["is"]):
        raise ValueError(
            f"cannot restore {format_path(path, 'config')}: {format_path(place)} was {value['is']}, and param_space "
            f"now has {now} there\n\nhint: use the param_space that the search was started with"
        )
    return restored
