"""Packages whose names are loaded when they are first asked for.

What a worker imports is paid for again and again, and what a script imports delays the start of its workers.
"""

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def on_demand(
    package: str, homes: Mapping[str, tuple[str, ...]], submodules: tuple[str, ...] = ()
) -> Callable[[str], Any]:
    """A package's `__getattr__` that finds each name in the module that is its home."""
    home_of = {name: home for home, names in homes.items() for name in names}

    def find(name: str) -> Any:
        if name in submodules:
            return importlib.import_module(f"{package}.{name}")
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(home_of[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return find
