"""What Ray and Paceline have in the modules named in the input: names, parameters, members, as JSON.

The packages named on the command line are listed too.

A program: it runs in a process of its own, since frameworks are replaced in it by empty ones. What is read are names
and signatures of Ray's and of ours; TensorFlow, Lightning and their like would only take ten seconds to import, and
Horovod is not installed.
"""

import enum
import importlib
import importlib.machinery
import inspect
import json
import logging
import pkgutil
import sys
import types
import warnings
from typing import Any

HIDDEN = "an object"
EMPTY = ("horovod", "keras", "lightgbm", "lightning", "pytorch_lightning", "tensorflow", "transformers", "xgboost")
BUILT_IN = {name for base in (object, Exception, dict, tuple, list, str, enum.Enum) for name in dir(base)}


class Empty(types.ModuleType):
    """A module in which every name is an empty class, and every submodule is one like it."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self.__version__ = "3.0.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name.islower():
            return importlib.import_module(f"{self.__name__}.{name}")
        made = type(name, (), {"__module__": self.__name__, "DISTRIBUTED": name})
        setattr(self, name, made)
        return made


class Finder:
    """Finds the empty modules."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.partition(".")[0] not in EMPTY:
            return None
        return importlib.machinery.ModuleSpec(name, self, origin="empty", is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: Any) -> types.ModuleType:
        return Empty(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def public(module: types.ModuleType) -> list[str]:
    """What it exports, or, where it does not say, what it defines."""
    said = getattr(module, "__all__", None)
    if said is not None:
        return [name for name in said if not name.startswith("_")]
    names = [name for name in dir(module) if not name.startswith("_")]
    return [name for name in names if getattr(getattr(module, name), "__module__", None) == module.__name__]


def parameters(thing: Any) -> dict[str, str] | None:
    """Their defaults, as text: empty where there is none."""
    try:
        found = [*inspect.signature(thing).parameters.values()]
    except (TypeError, ValueError):
        return None
    if inspect.isclass(thing) and any(p.kind is p.VAR_KEYWORD for p in found):
        # What it does not name itself it hands on to the class that it is made of.
        for own in (vars(base)["__init__"] for base in thing.__mro__[:-1] if "__init__" in vars(base)):
            more = inspect.signature(own).parameters.values()
            found += more
            if not any(p.kind is p.VAR_KEYWORD for p in more):
                break
    named = [p for p in reversed(found) if p.name != "self" and not p.name.startswith("_")]
    return {p.name: _default(p.default) for p in named if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}


def _default(value: Any) -> str:
    if value is inspect.Parameter.empty:
        return ""
    if isinstance(value, list | tuple):
        return repr(list(value)) if value else "nothing"
    if value is None or value == {} or type(value).__name__ == "_HAS_DEFAULT_FACTORY_CLASS":
        return "nothing"
    if isinstance(value, bool | int | float | str | bytes | enum.Enum):
        return repr(value)
    return HIDDEN


def members(cls: type, package: str) -> dict[str, dict[str, str] | None]:
    """Methods with their parameters; other attributes with none. What it has of a framework's class is left out."""
    if issubclass(cls, enum.Enum):
        return dict.fromkeys(cls.__members__)
    found: dict[str, dict[str, str] | None] = {}
    for name in dir(cls):
        owner = next((base for base in cls.__mro__ if name in vars(base)), None)
        if name.startswith("_") or name in BUILT_IN or owner is None or not owner.__module__.startswith(package):
            continue
        value = inspect.getattr_static(cls, name)
        method = isinstance(value, staticmethod | classmethod) or inspect.isfunction(value)
        found[name] = parameters(getattr(cls, name)) if method else None
        if found[name] is not None and inspect.isfunction(value) and name not in vars(object):
            first = next(iter(inspect.signature(value).parameters), None)
            (found[name] or {}).pop(first or "", None)
    fields = [name for name in getattr(cls, "__dataclass_fields__", {}) if not name.startswith("_")]
    return {**dict.fromkeys(fields), **found}


def described(thing: Any, package: str) -> dict[str, Any]:
    if not inspect.isclass(thing):
        return {"parameters": parameters(thing) if callable(thing) else None}
    plain = issubclass(thing, enum.Enum | BaseException)
    return {"parameters": None if plain else parameters(thing), "members": members(thing, package)}


def surface(name: str, wanted: list[str]) -> dict[str, Any] | None:
    """The public names of a module and those that are wanted of it; None where there is no such module."""
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name is not None and name.startswith(missing.name):
            return None
        raise
    names = dict.fromkeys([*public(module), *(one for one in wanted if hasattr(module, one))])
    package = name.partition(".")[0]
    return {one: described(getattr(module, one), package) for one in names}


def modules(package: str) -> list[str]:
    """Those in a package that are not private."""
    found = pkgutil.iter_modules(importlib.import_module(package).__path__)
    return sorted(module.name for module in found if not module.name.startswith("_"))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    sys.meta_path.insert(0, Finder())  # type: ignore[arg-type]
    asked: dict[str, list[str]] = json.load(sys.stdin)
    found: dict[str, Any] = {name: surface(name, wanted) for name, wanted in asked.items()}
    found["modules"] = {package: modules(package) for package in sys.argv[1:]}
    json.dump(found, sys.stdout)
