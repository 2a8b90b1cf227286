"""A worker's `__main__`, which stands for the user's script.

Functions and classes of the script come to a worker as bytes and still say that they are of `__main__`. Whoever looks
there for what belongs to them, as `pickle` and `torch.compile` do, finds it.
"""

import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any


def stand_for_script(function: Callable[..., Any]) -> None:
    """Let `__main__` have what the script of a function has, as far as it came along."""
    while (inner := _inner(function)) is not None:
        function = inner
    scope = getattr(function, "__globals__", None)
    main: Any = sys.modules["__main__"]
    if isinstance(scope, dict) and scope.get("__name__") == "__main__" and scope is not vars(main):
        main.__getattr__ = _Names(scope)


def _inner(function: Any) -> Any:
    """The function that this one calls, where it is a partial, or an object of ours that names it."""
    if isinstance(function, functools.partial):
        return function.func
    return getattr(function, "inner_function", None) if not hasattr(function, "__globals__") else None


class _Names:
    """A module's `__getattr__`: asked for what is not there, each time anew, as a script may change its variables."""

    def __init__(self, scope: Mapping[str, Any]) -> None:
        self._scope = scope

    def __call__(self, name: str) -> Any:
        if name in self._scope:
            return self._scope[name]
        raise AttributeError(f"module '__main__' has no attribute {name!r}")
