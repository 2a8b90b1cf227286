"""Saves the state of a scheduler or searcher to a JSON file, and restores it. Nothing in the file can run code.

The state is what an object keeps in its private attributes; its arguments are given to the new one anew. It is made of
plain values, containers and this package's own dataclasses. Shared objects stay shared.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
from collections import deque
from pathlib import Path
from typing import Any

from paceline._core.arguments import bad_value

_CONTAINERS: dict[str, type[Any]] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset, "deque": deque}
_SCALARS = (type(None), bool, int, float, str)


def save_state(component: Any, path: str | os.PathLike[str]) -> None:
    save_plain(component, get_private_state(component), path)


def restore_state(component: Any, path: str | os.PathLike[str]) -> None:
    set_private_state(component, load_plain(component, path))


def save_plain(component: Any, state: Any, path: str | os.PathLike[str]) -> None:
    """Write a state in plain form, with the name of its class."""
    target = Path(path)
    beside = target.with_name(f"{target.name}.tmp")
    beside.write_text(json.dumps({"class": type(component).__name__, "state": state}))
    beside.replace(target)


def load_plain(component: Any, path: str | os.PathLike[str]) -> Any:
    saved = json.loads(Path(path).read_text())
    if saved["class"] != type(component).__name__:
        raise bad_value(f"the state in {os.fspath(path)}", f"one of {type(component).__name__}", saved["class"])
    return saved["state"]


def get_private_state(component: Any) -> dict[str, Any]:
    """Return the private attributes in plain form, but for those that are made from the arguments.

    Of a class of the user's, which may keep its state anywhere, all attributes.
    """
    is_own = type(component).__module__.startswith("paceline.")
    encoder = _StateEncoder()
    state: dict[str, Any] = {}
    for name, value in vars(component).items():
        if (name.startswith("_") or not is_own) and name not in component.unsaved:
            try:
                state[name] = encoder.encode(value)
            except TypeError as problem:
                raise TypeError(
                    f"cannot save {type(component).__name__}: its attribute {name} contains {problem}\n\n"
                    "hint: override save() and restore()"
                ) from None
    return state


def set_private_state(component: Any, state: dict[str, Any]) -> None:
    decoder = _StateDecoder()
    for name, value in state.items():
        object.__setattr__(component, name, decoder.decode(value))


class _StateEncoder:
    """Numbers each container and dataclass when it first occurs, and refers to it by that number afterwards."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._kept: list[Any] = []  # So that no id is used again.

    def encode(self, value: Any) -> Any:
        if type(value) in _SCALARS:
            return value
        if id(value) in self._numbers:
            return {"again": self._numbers[id(value)]}
        number = self._numbers[id(value)] = len(self._kept)
        self._kept.append(value)
        kind = type(value)
        if kind is dict:
            pairs = [[self.encode(key), self.encode(item)] for key, item in value.items()]
            return {"kind": "dict", "number": number, "items": pairs}
        if kind.__name__ in _CONTAINERS and kind is _CONTAINERS[kind.__name__]:
            return {"kind": kind.__name__, "number": number, "items": [self.encode(item) for item in value]}
        if dataclasses.is_dataclass(value) and kind.__module__.startswith("paceline.tune."):
            fields = {each.name: self.encode(getattr(value, each.name)) for each in dataclasses.fields(value)}
            return {"kind": f"{kind.__module__}:{kind.__qualname__}", "number": number, "fields": fields}
        raise TypeError(f"a {kind.__name__}, which has no plain form")


class _StateDecoder:
    def __init__(self) -> None:
        self._made: dict[int, Any] = {}

    def decode(self, plain: Any) -> Any:
        if not isinstance(plain, dict):
            return plain
        if "again" in plain:
            return self._made[plain["again"]]
        kind, number = plain["kind"], plain["number"]
        if kind == "dict":
            made = self._made[number] = {}
            made.update({self.decode(key): self.decode(item) for key, item in plain["items"]})
        elif kind in _CONTAINERS:
            items = [self.decode(item) for item in plain["items"]]
            made = self._made[number] = _CONTAINERS[kind](items)
        else:
            made = self._made[number] = _find_dataclass(kind).__new__(_find_dataclass(kind))
            for name, value in plain["fields"].items():
                object.__setattr__(made, name, self.decode(value))
        return made


def _find_dataclass(kind: str) -> Any:
    """Look up a dataclass of this package. Nothing else is ever imported on the word of a file."""
    module, _, name = kind.partition(":")
    if module.startswith("paceline.tune."):
        found = getattr(importlib.import_module(module), name, None)
        if isinstance(found, type) and dataclasses.is_dataclass(found):
            return found
    raise ValueError(f"the state refers to {kind!r}, which is no dataclass of paceline.tune")
