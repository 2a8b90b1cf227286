"""Makes a worker's `__main__` stand in for the user's script.

Functions and classes of the script reach a worker as bytes and still claim to be defined in `__main__`. Code that looks
up their globals there, such as `pickle` and `torch.compile`, finds them.
"""

import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any


def expose_script_globals(function: Callable[..., Any]) -> None:
    """Let `__main__` have the globals of the function's script, as far as they were sent along."""
    while (inner := _inner_function(function)) is not None:
        function = inner
    scope = getattr(function, "__globals__", None)
    main: Any = sys.modules["__main__"]
    if isinstance(scope, dict) and scope.get("__name__") == "__main__" and scope is not vars(main):
        main.__getattr__ = _ScriptNames(scope)


def _inner_function(function: Any) -> Any:
    """The function that this one calls, if it is a partial or an object of ours that names it."""
    if isinstance(function, functools.partial):
        return function.func
    return getattr(function, "inner_function", None) if not hasattr(function, "__globals__") else None


class _ScriptNames:
    """A module's `__getattr__`. Looks names up each time, because a script may change its variables."""

    def __init__(self, scope: Mapping[str, Any]) -> None:
        self._scope = scope

    def __call__(self, name: str) -> Any:
        if name in self._scope:
            return self._scope[name]
        raise AttributeError(f"module '__main__' has no attribute {name!r}")
