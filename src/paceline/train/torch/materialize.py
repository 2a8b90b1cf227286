"""Models that were made on the meta device: weights are given memory, and the values they would have been made with.

Module after module, children first, which is the order in which weights are made: so with the same seed the values on
the CPU are those of a model that was made there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_INITIALIZERS = ("reset_parameters", "_reset_parameters")
"""What torch's own modules call it; the second is that of attention."""


def children_first(module: torch.nn.Module, _seen: set[int] | None = None) -> Iterator[torch.nn.Module]:
    """All modules of a model, each once."""
    seen = _seen if _seen is not None else set()
    if id(module) in seen:
        return
    seen.add(id(module))
    for child in module.children():
        yield from children_first(child, seen)
    yield module


def materialize(module: torch.nn.Module, device: torch.device) -> None:
    """Give memory and values to what a module holds on the meta device itself; its children are not looked at."""
    import torch

    missing = [name for name, held in _own(module) if held.is_meta]
    if not missing:
        return
    initializer = _initializer(module, missing)
    for name in missing:
        _give_memory(module, name, device)
    with torch.no_grad():
        initializer()
    for name, held in _own(module):
        if name in missing and held.is_floating_point() and bool(torch.isnan(held.detach().float()).any()):
            raise ValueError(
                f"{name!r} of {type(module).__name__} was on the meta device, and {initializer.__name__}() has not set "
                "it\n\nhint: set it there, or make the model on the CPU"
            )


def _own(module: Any) -> list[tuple[str, torch.Tensor]]:
    return [
        *module.named_parameters(recurse=False, remove_duplicate=False),
        *module.named_buffers(recurse=False, remove_duplicate=False),
    ]


def _initializer(module: torch.nn.Module, missing: list[str]) -> Any:
    for name in _INITIALIZERS:
        if callable(found := getattr(module, name, None)):
            return found
    raise ValueError(
        f"{missing[0]!r} of {type(module).__name__} is on the meta device, and nothing says which values it begins "
        f"with: {type(module).__name__} has no reset_parameters()\n\n"
        "hint: give it that method, or make the model on the CPU; before weights are loaded from elsewhere, "
        "model.to_empty(device='cpu') will do"
    )


def _give_memory(module: Any, name: str, device: torch.device) -> None:
    import torch

    held = getattr(module, name)
    if not held.is_meta:
        return  # The same weight under another name.
    memory = torch.empty_like(held, device=device)
    # What is still there afterwards was set by nobody.
    memory.fill_(float("nan")) if memory.is_floating_point() else memory.zero_()
    if isinstance(held, torch.nn.Parameter):
        memory = torch.nn.Parameter(memory, requires_grad=held.requires_grad)
    # In place, so that a weight that two modules share is still shared.
    memory.__dict__.update(held.__dict__)
    torch.utils.swap_tensors(held, memory)
