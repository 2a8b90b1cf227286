"""Finds the libraries a trial's function uses, so that they are imported once, before its processes fork.

Importing torch takes seconds, which each trial would pay again.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

from paceline.train.backend import is_installed

FORKABLE = ("numpy", "pandas", "scipy", "sklearn", "torch")
"""Libraries known to survive a fork after import."""


def find_preloads(function: Any) -> tuple[str, ...]:
    """Return the forkable libraries that a function uses: as a module, through a name from it, or in an import."""
    found = {name for each in _iter_functions(function) for name in _iter_top_level_modules(each)}
    return tuple(name for name in FORKABLE if name in found and (name in sys.modules or is_installed(name)))


def _iter_functions(function: Any) -> Iterator[types.FunctionType]:
    """Iterate over the function, the methods of a class, and the functions it calls in the same module."""
    waiting, seen = [function], set()
    while waiting:
        each = waiting.pop()
        each = getattr(each, "__func__", each)
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, type):
            waiting += [value for value in vars(each).values() if isinstance(value, types.FunctionType)]
        elif isinstance(each, types.FunctionType):
            yield each
            named = (each.__globals__.get(name) for name in _iter_names(each.__code__))
            waiting += [value for value in named if getattr(value, "__module__", None) == each.__module__]
        elif not isinstance(each, types.ModuleType) and callable(each):
            waiting += [getattr(each, "func", None), vars(type(each)).get("__call__")]  # A partial; a callable.


def _iter_top_level_modules(function: types.FunctionType) -> Iterator[str]:
    for name in _iter_names(function.__code__):
        yield name.partition(".")[0]  # An import inside the function.
        value = function.__globals__.get(name)
        told = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
        if isinstance(told, str):
            yield told.partition(".")[0]


def _iter_names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _iter_names(constant)
