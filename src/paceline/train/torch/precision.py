"""Half precision: which one, and a forward pass that computes in it.

Weights stay in full precision, and so do the outputs that come back: a loss is computed from those.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_NAMES = {"bf16": "bfloat16", "fp16": "float16"}


def half_type(mixed_precision: str | torch.dtype | None) -> torch.dtype | None:
    """What the argument `mixed_precision` means."""
    import torch

    if mixed_precision is None or mixed_precision in (torch.bfloat16, torch.float16):
        return mixed_precision
    if isinstance(mixed_precision, str) and mixed_precision in _NAMES:
        return getattr(torch, _NAMES[mixed_precision])
    raise ValueError(
        f"mixed_precision={mixed_precision!r} is none of 'bf16', 'fp16', torch.bfloat16, torch.float16 and None"
    )


def compute_in(model: torch.nn.Module, dtype: torch.dtype, device_type: str) -> None:
    """Let the forward pass of a model run in autocast from now on, whoever calls it."""
    if "_forward_as_given" not in model.__dict__:
        # Bound to the model, not closed over it: a copy of the model then calls itself and not the one it was made of.
        model._forward_as_given = model.forward
        model.forward = types.MethodType(_forward_in_half, model)
    model._half_type, model._half_device = dtype, device_type


def _forward_in_half(self: Any, *args: Any, **kwargs: Any) -> Any:
    import torch
    from torch.utils import _pytree

    with torch.autocast(self._half_device, dtype=self._half_type):
        outputs = self._forward_as_given(*args, **kwargs)
    return _pytree.tree_map_only(torch.Tensor, _in_full, outputs)


def _in_full(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor
