"""Change the forward pass of a model in place: prepare it for `torch.compile`, or run it in mixed precision.

A model keeps its class, its identity and the names of its weights. In mixed precision, weights and outputs stay in full
precision, so the loss is computed in full precision.
"""

from __future__ import annotations

import functools
import types
from typing import TYPE_CHECKING, Any

from paceline._core.arguments import bad_value

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


HALF_TYPES = {"bf16": "bfloat16", "fp16": "float16"}


def parse_half_type(mixed_precision: str | torch.dtype | None) -> torch.dtype | None:
    """Parse the `mixed_precision` argument."""
    import torch

    if mixed_precision is None or mixed_precision in (torch.bfloat16, torch.float16):
        return mixed_precision
    if isinstance(mixed_precision, str) and mixed_precision in HALF_TYPES:
        return getattr(torch, HALF_TYPES[mixed_precision])
    raise bad_value("mixed_precision", "'bf16', 'fp16', torch.bfloat16, torch.float16 or None", mixed_precision)


def enable_autocast(model: torch.nn.Module, dtype: torch.dtype, device_type: str) -> None:
    """Run the forward pass of a model under autocast from now on, whoever calls it."""
    if "_forward_without_autocast" not in model.__dict__:
        # Bound to the model instead of closing over it, so that a copy of the model calls itself and not the original.
        model._forward_without_autocast = model.forward
        model.forward = types.MethodType(_make_autocast_forward(), model)
    model._half_type, model._half_device = dtype, device_type


@functools.cache
def _make_autocast_forward() -> Any:
    """Disabled for the compiler, which should start with the model's own forward pass."""
    import torch

    in_full = torch.compiler.disable(_to_full_precision)

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast(self._half_device, dtype=self._half_type):
            outputs = self._forward_without_autocast(*args, **kwargs)
        return in_full(outputs)

    return torch.compiler.disable(forward, recursive=False)


def _to_full_precision(outputs: Any) -> Any:
    import torch
    from torch.utils import _pytree

    def to_float(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor

    return _pytree.tree_map_only(torch.Tensor, to_float, outputs)
