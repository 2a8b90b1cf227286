"""FSDP: each worker holds a shard of every weight.

A block is gathered when it is needed and freed afterwards, so only the shards and one block have to fit on a device.
This also holds during setup: weights move to the device one module at a time and are sharded at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from paceline.train.torch.forward_pass import make_compilable
from paceline.train.torch.materialize import iterate_children_first, materialize

if TYPE_CHECKING:
    import torch

Blocks = Collection["type[torch.nn.Module] | str"]


def shard_model(
    model: torch.nn.Module,
    device: torch.device,
    kwargs: Mapping[str, Any],
    *,
    blocks: Blocks | None = None,
    half: torch.dtype | None = None,
    compiled: Mapping[str, Any] | None = None,
) -> torch.nn.Module:
    """Shard a model in place: its blocks, then the rest. Modules that are already sharded stay as they are.

    `kwargs` are passed to `fully_shard` for all of them. As with DDP, all workers start with the weights of rank 0,
    unless a mesh is given: then we cannot know which ranks hold the same weights. `compiled` has the `torch.compile`
    options for the blocks, which are compiled first so that gathering weights is not part of the compiled code.
    """
    from torch.distributed.fsdp import FSDPModule, fully_shard

    if isinstance(model, FSDPModule):
        if half is not None or compiled is not None or blocks is not None:
            raise ValueError(
                f"{type(model).__name__} is already sharded: it takes no mixed_precision, compile or shard_blocks\n\n"
                "hint: leave fully_shard to prepare_model, or pass it mp_policy=... and compile the model before"
            )
        return model
    units = _modules_to_shard(model, blocks)
    if compiled is not None:
        for unit in units or [model]:
            make_compilable(unit)
            unit.compile(**compiled)
    options = dict(kwargs)
    is_spread = "mesh" not in options
    if is_spread:
        options["mesh"] = _device_mesh(device)
    for_root = dict(options)
    if half is not None:
        options["mp_policy"] = _precision_policy(half)
        for_root["mp_policy"] = _precision_policy(half, full_outputs=True)
    unit_ids = {id(unit) for unit in units}
    for module in iterate_children_first(model):
        if not isinstance(module, FSDPModule):
            _move_and_broadcast(module, device, from_rank_0=is_spread)
        if id(module) in unit_ids:
            fully_shard(module, **options)
    return fully_shard(model, **for_root)


def _device_mesh(device: torch.device) -> Any:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    if not dist.is_initialized():
        raise RuntimeError("parallel_strategy='fsdp' needs a process group\n\nhint: train with a TorchTrainer")
    # Explicit, because FSDP would otherwise use any GPU of the machine, even if the workers have none.
    return init_device_mesh(device.type, (dist.get_world_size(),))


def _precision_policy(half: torch.dtype, *, full_outputs: bool = False) -> Any:
    import torch
    from torch.distributed.fsdp import MixedPrecisionPolicy

    return MixedPrecisionPolicy(
        param_dtype=half, reduce_dtype=torch.float32, output_dtype=torch.float32 if full_outputs else None
    )


def _move_and_broadcast(module: torch.nn.Module, device: torch.device, *, from_rank_0: bool) -> None:
    """Move the module's own tensors to the device, with the values of rank 0."""
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor

    tensors = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    if any(tensor.is_meta and isinstance(tensor, DTensor) for tensor in tensors):
        raise ValueError(
            f"{type(module).__name__} was sharded on the meta device and has no values yet\n\n"
            "hint: leave fully_shard to prepare_model, or call to_empty() and initialize it before"
        )
    materialize(module, device)
    for tensor in tensors:
        if isinstance(tensor, DTensor):
            continue  # Weight of a submodule that the user has sharded.
        tensor.data = tensor.data.to(device)
        if from_rank_0 and dist.get_world_size() > 1:
            dist.broadcast(tensor.data, src=0)


def _modules_to_shard(model: torch.nn.Module, blocks: Blocks | None) -> list[torch.nn.Module]:
    from torch.distributed.fsdp import FSDPModule

    sharded = [module for module in model.modules() if isinstance(module, FSDPModule)]
    if blocks is None:
        return [] if sharded else list(_find_repeated_blocks(model))
    chosen = [module for module in iterate_children_first(model) if module is not model and _is_block(module, blocks)]
    for block in blocks:
        if not any(_is_block(module, [block]) for module in chosen):
            name = block if isinstance(block, str) else block.__name__
            raise ValueError(f"shard_blocks: {type(model).__name__} has no module of class {name!r}")
    return [module for module in chosen if not isinstance(module, FSDPModule)]


def _is_block(module: torch.nn.Module, blocks: Blocks) -> bool:
    return any(
        type(module).__name__ == block if isinstance(block, str) else isinstance(module, block) for block in blocks
    )


def _find_repeated_blocks(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """Yield the outermost repeated modules: members of a `ModuleList`, or of one class in a `Sequential`.

    Only modules with submodules. One without may just hold weights that are read without calling it, and FSDP gathers
    weights when a module is called.
    """
    from torch import nn

    for child in model.children():
        if _is_repeated_block(child, model):
            yield child
        elif not isinstance(child, nn.Module) or any(True for _ in child.children()):
            yield from _find_repeated_blocks(child)


def _is_repeated_block(child: torch.nn.Module, parent: torch.nn.Module) -> bool:
    from torch import nn

    is_block = (
        any(True for _ in child.children())
        and any(True for _ in child.parameters())
        and not isinstance(child, nn.ModuleList | nn.ModuleDict)
    )
    if not is_block:
        return False
    if isinstance(parent, nn.ModuleList):
        return True
    return isinstance(parent, nn.Sequential) and sum(type(other) is type(child) for other in parent) > 1
