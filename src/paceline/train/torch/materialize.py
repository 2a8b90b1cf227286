"""Give weights on the meta device memory and initial values.

Modules are visited children first, the order in which weights are created. With the same seed, the values on the CPU
are therefore those of a model created there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_INITIALIZERS = ("reset_parameters", "_reset_parameters")
"""Names of the method in torch's own modules; attention uses the second."""


def iterate_children_first(module: torch.nn.Module, _seen: set[int] | None = None) -> Iterator[torch.nn.Module]:
    """Yield every module of a model once, children before parents."""
    seen = _seen if _seen is not None else set()
    if id(module) in seen:
        return
    seen.add(id(module))
    for child in module.children():
        yield from iterate_children_first(child, seen)
    yield module


def materialize(module: torch.nn.Module, device: torch.device) -> None:
    """Allocate and initialize a module's own meta tensors, not those of its children."""
    import torch

    missing = [name for name, tensor in _own_tensors(module) if tensor.is_meta]
    if not missing:
        return
    initializer = _find_initializer(module, missing)
    for name in missing:
        _allocate_tensor(module, name, device)
    with torch.no_grad():
        initializer()
    for name, tensor in _own_tensors(module):
        if name in missing and tensor.is_floating_point() and bool(torch.isnan(tensor.detach().float()).any()):
            raise ValueError(
                f"{initializer.__name__}() of {type(module).__name__} did not set {name!r}, which was on the meta "
                "device\n\nhint: set it there, or create the model on the CPU"
            )


def _own_tensors(module: Any) -> list[tuple[str, torch.Tensor]]:
    return [
        *module.named_parameters(recurse=False, remove_duplicate=False),
        *module.named_buffers(recurse=False, remove_duplicate=False),
    ]


def _find_initializer(module: torch.nn.Module, missing: list[str]) -> Any:
    for name in _INITIALIZERS:
        if callable(initializer := getattr(module, name, None)):
            return initializer
    raise ValueError(
        f"cannot initialize {missing[0]!r}, which is on the meta device: {type(module).__name__} has no "
        "reset_parameters()\n\nhint: add that method, or create the model on the CPU; if you load the weights "
        "afterwards, call model.to_empty(device='cpu')"
    )


def _allocate_tensor(module: Any, name: str, device: torch.device) -> None:
    import torch

    tensor = getattr(module, name)
    if not tensor.is_meta:
        return  # The same weight under another name.
    memory = torch.empty_like(tensor, device=device)
    # NaN that is still there afterwards means that the initializer did not set the value.
    memory.fill_(float("nan")) if memory.is_floating_point() else memory.zero_()
    if isinstance(tensor, torch.nn.Parameter):
        memory = torch.nn.Parameter(memory, requires_grad=tensor.requires_grad)
    # In place, so that a weight shared by two modules stays shared.
    memory.__dict__.update(tensor.__dict__)
    torch.utils.swap_tensors(tensor, memory)
