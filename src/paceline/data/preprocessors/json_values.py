"""Converts values to JSON and back, without pickle: a preprocessor's arguments and what it has learned.

Numbers, strings, lists and dicts with string keys are written as they are. Everything else is an object whose key `$`
names its type: nan, tuples, bytes, dates, dicts with other keys, arrays, data types, categories, and functions, which
are stored by their importable name. Reading imports nothing: it finds our own functions, and those that the caller
allows.
"""

from __future__ import annotations

import base64
import datetime
import importlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from types import FunctionType
from typing import Any

import numpy as np

from paceline._core.arguments import bad_value
from paceline._core.lazy_imports import import_extra

_KIND = "$"
_READABLE = 256
_TIMES: dict[str, type[Any]] = {"datetime": datetime.datetime, "date": datetime.date, "time": datetime.time}
"""A datetime is also a date, so it comes first."""

Functions = Mapping[str, Any]
"""The functions and classes that stored data may name, by `module:qualname`."""


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


def from_json_value(value: Any, functions: Functions | None = None) -> Any:
    """Convert back. Of functions, only those in `functions` are found."""
    if isinstance(value, list):
        return [from_json_value(item, functions) for item in value]
    if not isinstance(value, dict):
        return value
    if _KIND not in value:
        return {name: from_json_value(item, functions) for name, item in value.items()}
    kind = value[_KIND]
    if kind not in _READERS:
        raise ValueError(f"unknown kind of value {kind!r}: it may come from a later release")
    return _READERS[kind](value, functions or {})


def find_allowed(name: Any, functions: Functions) -> Any:
    """Return what stored data names, if it is allowed. Nothing is imported on the word of stored data."""
    if not isinstance(name, str) or name not in functions:
        raise ValueError(
            f"the stored preprocessor names {name!r}, which may not be loaded: it could be anything that Python can run"
            f"\n\nhint: if it is yours, import it and pass allowed_functions=[{str(name).replace(':', '.')}]"
        )
    return functions[name]


def name_functions(functions: Iterable[Any]) -> dict[str, Any]:
    """Return functions and classes by the names they are stored by."""
    named = list(functions)
    for function in named:
        if not isinstance(function, FunctionType | type):
            raise bad_value("allowed_functions", "a list of functions and classes", function)
    return {f"{function.__module__}:{function.__qualname__}": function for function in named}


def importable_name(thing: Any, path: str) -> str:
    """Return `module:qualname` of a function or class, if another process can import it."""
    module, name = thing.__module__, thing.__qualname__
    problem = "is a lambda" if "<lambda>" in name else "is defined in a function" if "<" in name else ""
    if not problem and module == "__main__":
        problem = "is defined in the main script"
    if not problem and _import_by_name(module, name) is not thing:
        problem = f"is not the object at {module}:{name}"
    if problem:
        raise ValueError(
            f"{path} cannot be stored: {name!r} {problem}, so it cannot be imported again\n\n"
            "hint: define it with a name at the top level of a module"
        )
    return f"{module}:{name}"


def _import_by_name(module: str, qualname: str) -> Any:
    try:
        value: Any = importlib.import_module(module)
        for part in qualname.split("."):
            value = getattr(value, part)
    except (ImportError, AttributeError, ValueError):
        return None
    return value


def _load_function(value: dict[str, Any], functions: Functions) -> FunctionType:
    function = find_allowed(value["value"], functions)
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


def _load_array(value: dict[str, Any], functions: Functions) -> Any:
    dtype = np.dtype(value["dtype"])
    if "bytes" in value:
        flat = np.frombuffer(base64.b64decode(value["bytes"]), dtype.newbyteorder("<")).astype(dtype)
    else:
        flat = np.array(from_json_value(value["items"], functions), dtype=dtype)
    return flat.reshape(value["shape"])


def make_categorical_dtype(categories: list[Any] | None, ordered: bool = False) -> Any:
    pandas = import_extra("pandas", "a column of categories")
    return pandas.CategoricalDtype(categories, ordered=ordered)


def _load_items(value: dict[str, Any], functions: Functions) -> dict[Any, Any]:
    return {from_json_value(name, functions): from_json_value(item, functions) for name, item in value["items"]}


def _load_categories(value: dict[str, Any], functions: Functions) -> Any:
    return make_categorical_dtype(from_json_value(value["items"], functions), value["ordered"])


_READERS: dict[str, Callable[[dict[str, Any], Functions], Any]] = {
    "float": lambda value, _: float(value["value"]),
    "tuple": lambda value, functions: tuple(from_json_value(value["items"], functions)),
    "dict": _load_items,
    "counter": lambda value, functions: Counter(_load_items(value, functions)),
    "bytes": lambda value, _: base64.b64decode(value["value"]),
    "array": _load_array,
    "dtype": lambda value, _: np.dtype(value["value"]),
    "decimal": lambda value, _: Decimal(value["value"]),
    "categories": _load_categories,
    "function": _load_function,
    "datetime": lambda value, _: datetime.datetime.fromisoformat(value["value"]),
    "date": lambda value, _: datetime.date.fromisoformat(value["value"]),
    "time": lambda value, _: datetime.time.fromisoformat(value["value"]),
}
