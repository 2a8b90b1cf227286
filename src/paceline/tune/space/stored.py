"""A configuration as plain JSON, and back.

Plain values are kept as they are, tuples as `{"$tuple": ...}`, dicts whose keys are not all plain text as
`{"$items": ...}`. An object is kept as the place in the space that it comes from, so that the same space gives it
back; nothing is ever pickled.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Callable
from typing import Any

from paceline._core.plain import plain, unplain
from paceline.tune.space.tree import KEY_TYPES, Option, Path, told

SCALARS = (type(None), bool, int, float, str)


@dataclasses.dataclass(frozen=True)
class Lost:
    """Stands for an object that a stored configuration cannot give back."""

    name: str

    def __repr__(self) -> str:
        return f"<{self.name}>"


def stored(value: Any, find: Callable[[Any], Path | None], path: Path = ()) -> Any:
    """`value` in plain form; `find` gives the place of an object in the space."""
    kind = type(value)
    if kind in SCALARS:
        return plain(value, told(path, "config"))
    if kind is dict and all(type(key) in KEY_TYPES for key in value):
        items = [(key, stored(item, find, (*path, key))) for key, item in value.items()]
        return contained("dict", items, told(path, "config"))
    if kind in (list, tuple):
        items = [(index, stored(item, find, (*path, index))) for index, item in enumerate(value)]
        return contained(kind.__name__, items, told(path, "config"))
    place = find(value)
    if place is not None:
        steps = [{"option": step.index} if isinstance(step, Option) else step for step in place]
        return {"$space": steps, "is": name_of(value)}
    try:
        return plain(value, told(path, "config"))  # A number of numpy, a subclass of str.
    except (TypeError, ValueError):
        return {"$lost": name_of(value)}


def restored(value: Any, look_up: Callable[[Path], Any] | None, path: Path = ()) -> Any:
    """The value that `stored` was given. Without `look_up`, objects are `Lost`."""
    if isinstance(value, list):
        return [restored(item, look_up, (*path, index)) for index, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    if "$tuple" in value:
        return tuple(restored(value["$tuple"], look_up, path))
    if "$items" in value:
        return {unplain(key): restored(item, look_up, (*path, key)) for key, item in value["$items"]}
    if "$number" in value:
        return unplain(value)
    if "$lost" in value or ("$space" in value and look_up is None):
        return _lost(value, look_up, path)
    if "$space" in value:
        return _found(value, look_up, path)
    return {key: restored(item, look_up, (*path, key)) for key, item in value.items()}


def lost_in(value: Any) -> list[str]:
    """The names of the objects that a stored value cannot give back."""
    if isinstance(value, dict):
        return [value["$lost"]] if "$lost" in value else [name for item in value.values() for name in lost_in(item)]
    return [name for item in value for name in lost_in(item)] if isinstance(value, list) else []


def contained(kind: str, items: list[tuple[Any, Any]], path: str) -> Any:
    """A container of plain values in plain form."""
    if kind == "list":
        return [item for _, item in items]
    if kind == "tuple":
        return {"$tuple": [item for _, item in items]}
    if all(type(key) is str and not key.startswith("$") for key, _ in items):
        return {plain(key, path): item for key, item in items}
    return {"$items": [[plain(key, path), item] for key, item in items]}


def name_of(value: Any) -> str:
    """What an object is called: the same in every process."""
    if isinstance(value, enum.Enum):
        return f"{_qualified(type(value))}.{value.name}"
    if isinstance(getattr(value, "__qualname__", None), str):
        return _qualified(value)
    # Objects that write themselves as a name, such as torch.float32, are that name; large ones are not written at all.
    text = repr(value) if not hasattr(type(value), "__len__") else ""
    return text if re.fullmatch(r"[A-Za-z_][\w.]{,100}", text) else _qualified(type(value))


def is_same_name(one: str, other: str) -> bool:
    """Whether two names are those of one object; a script's own names have no module, until it is imported."""
    return one == other or one.endswith(f".{other}") or other.endswith(f".{one}")


def _qualified(value: Any) -> str:
    module = getattr(value, "__module__", None)
    return value.__qualname__ if module in (None, "builtins", "__main__") else f"{module}.{value.__qualname__}"


def _lost(value: dict[str, Any], look_up: Callable[[Path], Any] | None, path: Path) -> Lost:
    name = str(value.get("$lost", value.get("is", "")))
    if look_up is None:
        return Lost(name)
    raise ValueError(
        f"{told(path, 'config')} was an object of {name} that is not in param_space, so it cannot be had again\n\n"
        "hint: let sample_from return something plain, such as a number or a name, or choose among the objects with "
        "tune.choice"
    )


def _found(value: dict[str, Any], look_up: Callable[[Path], Any] | None, path: Path) -> Any:
    assert look_up is not None
    place = tuple(Option(step["option"]) if isinstance(step, dict) else step for step in value["$space"])
    try:
        found = look_up(place)
    except LookupError:
        raise ValueError(
            f"{told(path, 'config')} was {value['is']} of {told(place)}, and param_space has no object there now\n\n"
            "hint: give the param_space that the search was begun with"
        ) from None
    if not is_same_name(name_of(found), value["is"]):
        raise ValueError(
            f"{told(path, 'config')} was {value['is']} of {told(place)}, and param_space has {name_of(found)} there "
            "now\n\nhint: give the param_space that the search was begun with"
        )
    return found
