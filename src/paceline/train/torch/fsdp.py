"""FSDP: a model of which each worker holds a part of every weight, block by block.

A block is gathered when its turn comes and let go of afterwards, so what has to fit on a device is the parts and a
block. That holds from the beginning: weights come to the device one module at a time, and the parts are cut at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from paceline.train.torch.materialize import children_first, materialize

if TYPE_CHECKING:
    import torch

Blocks = Collection["type[torch.nn.Module] | str"]


def shard(
    model: torch.nn.Module,
    device: torch.device,
    kwargs: Mapping[str, Any],
    *,
    blocks: Blocks | None = None,
    half: torch.dtype | None = None,
    compiled: Callable[[torch.nn.Module], None] | None = None,
) -> torch.nn.Module:
    """Shard a model in place: its blocks, then the rest of it. What is sharded already is left as it is.

    `kwargs` are those of `fully_shard`, for the blocks and the rest alike. As with DDP all workers begin with the
    weights of rank 0, unless a mesh is given: which ranks hold the same is then not ours to know.
    """
    from torch.distributed.fsdp import FSDPModule, fully_shard

    if isinstance(model, FSDPModule):
        return model
    units = _units(model, blocks)
    if compiled is not None:
        for unit in units or [model]:
            compiled(unit)
    options = dict(kwargs)
    is_spread = "mesh" not in options
    if is_spread:
        options["mesh"] = _all_workers(device)
    for_root = dict(options)
    if half is not None:
        options["mp_policy"] = _policy(half)
        for_root["mp_policy"] = _policy(half, full_outputs=True)
    own = {id(unit) for unit in units}
    for module in children_first(model):
        if not isinstance(module, FSDPModule):
            _bring(module, device, from_rank_0=is_spread)
        if id(module) in own:
            fully_shard(module, **options)
    return fully_shard(model, **for_root)


def _all_workers(device: torch.device) -> Any:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    if not dist.is_initialized():
        raise RuntimeError(
            "parallel_strategy='fsdp' needs a process group, and there is none\n\nhint: train with a TorchTrainer"
        )
    # Named: by itself FSDP would take any GPU of the machine, also where the workers were given none.
    return init_device_mesh(device.type, (dist.get_world_size(),))


def _policy(half: torch.dtype, *, full_outputs: bool = False) -> Any:
    import torch
    from torch.distributed.fsdp import MixedPrecisionPolicy

    return MixedPrecisionPolicy(
        param_dtype=half, reduce_dtype=torch.float32, output_dtype=torch.float32 if full_outputs else None
    )


def _bring(module: torch.nn.Module, device: torch.device, *, from_rank_0: bool) -> None:
    """What a module itself holds, on the device, and with the values of rank 0."""
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor

    materialize(module, device)
    held = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    for tensor in held:
        if isinstance(tensor, DTensor):
            continue  # A weight of a part of the model that somebody else has sharded.
        tensor.data = tensor.data.to(device)
        if from_rank_0 and dist.get_world_size() > 1:
            dist.broadcast(tensor.data, src=0)


# Which modules are blocks


def _units(model: torch.nn.Module, blocks: Blocks | None) -> list[torch.nn.Module]:
    from torch.distributed.fsdp import FSDPModule

    sharded = [module for module in model.modules() if isinstance(module, FSDPModule)]
    if blocks is None:
        return [] if sharded else list(_stacked(model))
    chosen = [module for module in children_first(model) if module is not model and _is_one_of(module, blocks)]
    for block in blocks:
        if not any(_is_one_of(module, [block]) for module in chosen):
            named = block if isinstance(block, str) else block.__name__
            raise ValueError(f"shard_blocks names {named!r}, and {type(model).__name__} has no module of that class")
    return [module for module in chosen if not isinstance(module, FSDPModule)]


def _is_one_of(module: torch.nn.Module, blocks: Blocks) -> bool:
    return any(
        type(module).__name__ == block if isinstance(block, str) else isinstance(module, block) for block in blocks
    )


def _stacked(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """The outermost modules that stand in a row: those of a `ModuleList`, or of one class in a `Sequential`.

    Only those made of other modules. One that is not may be no more than a place for weights, which are read without
    a call; and FSDP gathers weights when a module is called.
    """
    from torch import nn

    for child in model.children():
        if _stands_in_a_row(child, model):
            yield child
        elif not isinstance(child, nn.Module) or any(True for _ in child.children()):
            yield from _stacked(child)


def _stands_in_a_row(child: torch.nn.Module, parent: torch.nn.Module) -> bool:
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
