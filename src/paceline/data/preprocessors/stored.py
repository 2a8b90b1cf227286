"""Values as JSON and back, without pickle: what a preprocessor was given and what it has learnt.

Numbers, strings, lists and dicts with string keys are written as they are. Everything else is an object with the key
`$` that says what it is: nan, tuples, bytes, dates, dicts with other keys, arrays, data types, categories, and
functions, which are kept by the name they can be imported by. Reading one imports its module: nothing else is run.
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

_KIND = "$"
_READABLE = 256
_TIMES: dict[str, type[Any]] = {"datetime": datetime.datetime, "date": datetime.date, "time": datetime.time}
"""A datetime is a date as well, so it comes first."""


def as_json(value: Any, path: str = "value") -> Any:
    """`value` as JSON can hold it; what cannot be kept is refused by its path."""
    if value is None or isinstance(value, bool | str):
        return str(value) if isinstance(value, str) else value
    if isinstance(value, np.generic) and not isinstance(value, np.datetime64 | np.timedelta64):
        return as_json(value.item(), path)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {_KIND: "float", "value": repr(float(value))}
    if isinstance(value, list):
        return [as_json(item, f"{path}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, Mapping):
        return _mapping(value, path)
    return _special(value, path)


def from_json(value: Any) -> Any:
    """The value that `as_json` was given."""
    if isinstance(value, list):
        return [from_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    if _KIND not in value:
        return {name: from_json(item) for name, item in value.items()}
    kind = value[_KIND]
    if kind not in _READERS:
        raise ValueError(f"{kind!r} is no kind of value that is stored here: it may come from a later release")
    return _READERS[kind](value)


def importable_name(thing: Any, path: str) -> str:
    """`module:qualname` of a function or class, if that leads to it in another process too."""
    module, name = thing.__module__, thing.__qualname__
    where = "is a lambda" if "<lambda>" in name else "is defined in a function" if "<" in name else ""
    if not where and module == "__main__":
        where = "is defined in the script that is run"
    if not where and imported(f"{module}:{name}") is not thing:
        where = f"is not what {module}:{name} is"
    if where:
        raise ValueError(
            f"{path} cannot be stored: {name!r} {where}, and could not be imported when it is loaded\n\n"
            "hint: put it at the top of a module of its own, with a name"
        )
    return f"{module}:{name}"


def imported(name: str) -> Any:
    """What an importable name leads to."""
    module, _, qualname = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in qualname.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"{name!r} cannot be imported: {error}\n\n"
            "hint: what was stored names a function or class of yours; its module has to be found here too"
        ) from error
    return found


def _function(value: dict[str, Any]) -> FunctionType:
    found = imported(value["value"])
    if not isinstance(found, FunctionType):
        raise ValueError(f"{value['value']!r} is no function that was written in Python")
    return found


def _mapping(value: Mapping[Any, Any], path: str) -> Any:
    counter = isinstance(value, Counter)
    if not counter and all(isinstance(name, str) for name in value) and _KIND not in value:
        return {name: as_json(item, f"{path}[{name!r}]") for name, item in value.items()}
    items = [[as_json(name, path), as_json(item, f"{path}[{name!r}]")] for name, item in value.items()]
    return {_KIND: "counter" if counter else "dict", "items": items}


def _special(value: Any, path: str) -> Any:
    if isinstance(value, tuple):
        return {_KIND: "tuple", "items": [as_json(item, f"{path}[{index}]") for index, item in enumerate(value)]}
    if isinstance(value, bytes):
        return {_KIND: "bytes", "value": base64.b64encode(value).decode()}
    if isinstance(value, np.ndarray):
        return {_KIND: "array", "dtype": value.dtype.name, "shape": list(value.shape), **_content(value, path)}
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return {_KIND: "dtype", "value": np.dtype(value).name}
    if isinstance(value, Decimal):
        return {_KIND: "decimal", "value": str(value)}
    for name, kind in _TIMES.items():
        if isinstance(value, kind):
            return {_KIND: name, "value": value.isoformat()}
    if type(value).__name__ == "CategoricalDtype":
        categories = None if value.categories is None else as_json(value.categories.tolist(), path)
        return {_KIND: "categories", "items": categories, "ordered": bool(value.ordered)}
    if value is float or value is int or value is bool:
        return {_KIND: "dtype", "value": np.dtype(value).name}
    if isinstance(value, FunctionType):
        return {_KIND: "function", "value": importable_name(value, path)}
    raise TypeError(
        f"{path} is a {type(value).__name__}, which cannot be stored without pickle: {value!r:.100}\n\n"
        "hint: numbers, strings, bytes, dates, lists, tuples, dicts, arrays and functions of modules can"
    )


def _content(array: Any, path: str) -> dict[str, Any]:
    """A few values as a person can read them; many numbers as their bytes, the lowest first."""
    if array.dtype.kind in "biuf" and array.size > _READABLE:
        ordered = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        return {"bytes": base64.b64encode(ordered.data).decode()}
    return {"items": [as_json(item, path) for item in array.reshape(-1).tolist()]}


def _array(value: dict[str, Any]) -> Any:
    dtype = np.dtype(value["dtype"])
    if "bytes" in value:
        flat = np.frombuffer(base64.b64decode(value["bytes"]), dtype.newbyteorder("<")).astype(dtype)
    else:
        flat = np.array(from_json(value["items"]), dtype=dtype)
    return flat.reshape(value["shape"])


def categories_of(categories: list[Any] | None, ordered: bool = False) -> Any:
    """A `pandas.CategoricalDtype`."""
    try:
        import pandas
    except ModuleNotFoundError:
        raise ImportError('categories need pandas, which is missing\n\nhint: pip install "paceline[pandas]"') from None
    return pandas.CategoricalDtype(categories, ordered=ordered)


def _categories(value: dict[str, Any]) -> Any:
    return categories_of(from_json(value["items"]), value["ordered"])


def _items(value: dict[str, Any]) -> dict[Any, Any]:
    return {from_json(name): from_json(item) for name, item in value["items"]}


_READERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "float": lambda value: float(value["value"]),
    "tuple": lambda value: tuple(from_json(value["items"])),
    "dict": _items,
    "counter": lambda value: Counter(_items(value)),
    "bytes": lambda value: base64.b64decode(value["value"]),
    "array": _array,
    "dtype": lambda value: np.dtype(value["value"]),
    "decimal": lambda value: Decimal(value["value"]),
    "categories": _categories,
    "function": _function,
    "datetime": lambda value: datetime.datetime.fromisoformat(value["value"]),
    "date": lambda value: datetime.date.fromisoformat(value["value"]),
    "time": lambda value: datetime.time.fromisoformat(value["value"]),
}
