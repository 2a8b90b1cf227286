"""Converts values to JSON and back, without pickle: a preprocessor's arguments and what it has learned.

Numbers, strings, lists and dicts with string keys are written as they are. Everything else is an object whose key `$`
names its type: nan, tuples, bytes, dates, dicts with other keys, arrays, data types, categories, and functions, which
are stored by their importable name. Reading a function imports its module and runs nothing else.
"""

from __future__ import annotations

import base64
import datetime
import importlib
import math
from collections import Counter
from collections.abc import Callable, Mapping
from decimal import Decimal
from types import FunctionType
from typing import Any

import numpy as np

from paceline._core.lazy_imports import import_extra

_KIND = "$"
_READABLE = 256
_TIMES: dict[str, type[Any]] = {"datetime": datetime.datetime, "date": datetime.date, "time": datetime.time}
"""A datetime is also a date, so it comes first."""


def to_json_value(value: Any, path: str = "value") -> Any:
    """Convert a value to JSON. Unsupported values raise an error with their path."""
    if value is None or isinstance(value, bool | str):
        return str(value) if isinstance(value, str) else value
    if isinstance(value, np.generic) and not isinstance(value, np.datetime64 | np.timedelta64):
        return to_json_value(value.item(), path)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {_KIND: "float", "value": repr(float(value))}
    if isinstance(value, list):
        return [to_json_value(item, f"{path}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, Mapping):
        return _encode_mapping(value, path)
    return _encode_special(value, path)


def from_json_value(value: Any) -> Any:
    if isinstance(value, list):
        return [from_json_value(item) for item in value]
    if not isinstance(value, dict):
        return value
    if _KIND not in value:
        return {name: from_json_value(item) for name, item in value.items()}
    kind = value[_KIND]
    if kind not in _READERS:
        raise ValueError(f"unknown kind of value {kind!r}: it may come from a later release")
    return _READERS[kind](value)


def importable_name(thing: Any, path: str) -> str:
    """Return `module:qualname` of a function or class, if another process can import it."""
    module, name = thing.__module__, thing.__qualname__
    problem = "is a lambda" if "<lambda>" in name else "is defined in a function" if "<" in name else ""
    if not problem and module == "__main__":
        problem = "is defined in the main script"
    if not problem and import_by_name(f"{module}:{name}") is not thing:
        problem = f"is not the object at {module}:{name}"
    if problem:
        raise ValueError(
            f"{path} cannot be stored: {name!r} {problem}, so it cannot be imported again\n\n"
            "hint: define it with a name at the top level of a module"
        )
    return f"{module}:{name}"


def import_by_name(name: str) -> Any:
    module, _, qualname = name.partition(":")
    try:
        value: Any = importlib.import_module(module)
        for part in qualname.split("."):
            value = getattr(value, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"cannot import {name!r}: {error}\n\n"
            "hint: the stored preprocessor names a function or class of yours; its module must be importable here"
        ) from error
    return value


def _load_function(value: dict[str, Any]) -> FunctionType:
    function = import_by_name(value["value"])
    if not isinstance(function, FunctionType):
        raise ValueError(f"{value['value']!r} is not a Python function")
    return function


def _encode_mapping(value: Mapping[Any, Any], path: str) -> Any:
    counter = isinstance(value, Counter)
    if not counter and all(isinstance(name, str) for name in value) and _KIND not in value:
        return {name: to_json_value(item, f"{path}[{name!r}]") for name, item in value.items()}
    items = [[to_json_value(name, path), to_json_value(item, f"{path}[{name!r}]")] for name, item in value.items()]
    return {_KIND: "counter" if counter else "dict", "items": items}


def _encode_special(value: Any, path: str) -> Any:
    if isinstance(value, tuple):
        return {_KIND: "tuple", "items": [to_json_value(item, f"{path}[{index}]") for index, item in enumerate(value)]}
    if isinstance(value, bytes):
        return {_KIND: "bytes", "value": base64.b64encode(value).decode()}
    if isinstance(value, np.ndarray):
        content = _encode_array_content(value, path)
        return {_KIND: "array", "dtype": value.dtype.name, "shape": list(value.shape), **content}
    is_type = isinstance(value, type) and (issubclass(value, np.generic) or value in (float, int, bool))
    if is_type or isinstance(value, np.dtype):
        return {_KIND: "dtype", "value": np.dtype(value).name}
    if isinstance(value, Decimal):
        return {_KIND: "decimal", "value": str(value)}
    for name, kind in _TIMES.items():
        if isinstance(value, kind):
            return {_KIND: name, "value": value.isoformat()}
    if type(value).__name__ == "CategoricalDtype":
        categories = None if value.categories is None else to_json_value(value.categories.tolist(), path)
        return {_KIND: "categories", "items": categories, "ordered": bool(value.ordered)}
    if isinstance(value, FunctionType):
        return {_KIND: "function", "value": importable_name(value, path)}
    raise TypeError(
        f"{path} is a {type(value).__name__}, which cannot be stored without pickle: {value!r:.100}\n\n"
        "hint: numbers, strings, bytes, dates, lists, tuples, dicts, arrays and functions of modules can"
    )


def _encode_array_content(array: Any, path: str) -> dict[str, Any]:
    """Encode few values readably, and many numbers as little-endian bytes."""
    if array.dtype.kind in "biuf" and array.size > _READABLE:
        ordered = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        return {"bytes": base64.b64encode(ordered.data).decode()}
    return {"items": [to_json_value(item, path) for item in array.reshape(-1).tolist()]}


def _load_array(value: dict[str, Any]) -> Any:
    dtype = np.dtype(value["dtype"])
    if "bytes" in value:
        flat = np.frombuffer(base64.b64decode(value["bytes"]), dtype.newbyteorder("<")).astype(dtype)
    else:
        flat = np.array(from_json_value(value["items"]), dtype=dtype)
    return flat.reshape(value["shape"])


def make_categorical_dtype(categories: list[Any] | None, ordered: bool = False) -> Any:
    pandas = import_extra("pandas", "a column of categories")
    return pandas.CategoricalDtype(categories, ordered=ordered)


def _load_items(value: dict[str, Any]) -> dict[Any, Any]:
    return {from_json_value(name): from_json_value(item) for name, item in value["items"]}


_READERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "float": lambda value: float(value["value"]),
    "tuple": lambda value: tuple(from_json_value(value["items"])),
    "dict": _load_items,
    "counter": lambda value: Counter(_load_items(value)),
    "bytes": lambda value: base64.b64decode(value["value"]),
    "array": _load_array,
    "dtype": lambda value: np.dtype(value["value"]),
    "decimal": lambda value: Decimal(value["value"]),
    "categories": lambda value: make_categorical_dtype(from_json_value(value["items"]), value["ordered"]),
    "function": _load_function,
    "datetime": lambda value: datetime.datetime.fromisoformat(value["value"]),
    "date": lambda value: datetime.date.fromisoformat(value["value"]),
    "time": lambda value: datetime.time.fromisoformat(value["value"]),
}
