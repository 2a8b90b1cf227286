"""`torch.compile` in place: a model keeps its class, its identity and the names of its weights.

Two things it does not do by itself. In place it compiles nothing of a model whose class is torch's own, such as a
`Sequential`. And it looks up what a function refers to in the function's module, which in a worker does not exist for a
function of the user's script: that came as bytes.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def may_compile(module: torch.nn.Module) -> None:
    """Before a module is compiled, and before anything else is put before its forward pass."""
    forward = module.forward
    if "_forward_to_compile" not in module.__dict__ and forward.__module__.partition(".")[0] == "torch":
        # The compiler passes over functions of torch when it looks for one to begin with; with ours it begins.
        module._forward_to_compile = forward
        module.forward = types.MethodType(_forward, module)


def _forward(self: Any, *args: Any, **kwargs: Any) -> Any:
    return self._forward_to_compile(*args, **kwargs)


def find_script(model: torch.nn.Module) -> None:
    """Let `__main__` have what the script of the classes in a model has, for whoever compiles the model."""
    main: Any = sys.modules["__main__"]
    classes = {cls for module in model.modules() for cls in type(module).__mro__ if cls.__module__ == "__main__"}
    for function in (value for cls in classes for value in vars(cls).values()):
        scope = getattr(function, "__globals__", None)
        if scope is not None and scope.get("__name__") == "__main__" and scope is not vars(main):
            # Asked only for what is not there, and each time anew: the script may change its variables.
            main.__getattr__ = _Names(scope)
            return


class _Names:
    """A module's `__getattr__`."""

    def __init__(self, scope: Mapping[str, Any]) -> None:
        self._scope = scope

    def __call__(self, name: str) -> Any:
        if name in self._scope:
            return self._scope[name]
        raise AttributeError(f"module '__main__' has no attribute {name!r}")
