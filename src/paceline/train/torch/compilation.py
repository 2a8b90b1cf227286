"""`torch.compile` in place: a model keeps its class, its identity and the names of its weights.

On its own, `torch.compile` compiles nothing in place for a model whose class is torch's own, such as a `Sequential`.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def make_compilable(module: torch.nn.Module) -> None:
    """Prepare a module for compilation. Call it before anything else wraps its forward pass."""
    forward = module.forward
    if "_forward_to_compile" not in module.__dict__ and forward.__module__.partition(".")[0] == "torch":
        # The compiler skips torch's own functions when it looks for an entry point; it does not skip ours.
        module._forward_to_compile = forward
        module.forward = types.MethodType(_forward, module)


def _forward(self: Any, *args: Any, **kwargs: Any) -> Any:
    return self._forward_to_compile(*args, **kwargs)
