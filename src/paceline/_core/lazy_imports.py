"""Packages whose names are imported on first access.

Every worker pays again for what it imports, and the imports of a script delay the start of its workers.
"""

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def make_lazy_getattr(
    package: str, modules: Mapping[str, tuple[str, ...]], submodules: tuple[str, ...] = ()
) -> Callable[[str], Any]:
    """Return a package's `__getattr__` that imports each name from its module."""
    module_of = {name: module for module, names in modules.items() for name in names}

    def getattr_lazily(name: str) -> Any:
        if name in submodules:
            return importlib.import_module(f"{package}.{name}")
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(module_of[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return getattr_lazily
