"""`torch.compile` in place: a model keeps its class, its identity and the names of its weights.

By itself it compiles nothing in place of a model whose class is torch's own, such as a `Sequential`.
"""

from __future__ import annotations

import types
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
