"""A model made ready for many workers: on its device, and wrapped so that gradients are shared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from paceline.train.session import _context
from paceline.train.torch.devices import get_device

if TYPE_CHECKING:
    import torch

_STRATEGIES = ("ddp", "fsdp", None)


def prepare_model(
    model: torch.nn.Module,
    move_to_device: bool | torch.device = True,
    parallel_strategy: Literal["ddp", "fsdp"] | None = "ddp",
    parallel_strategy_kwargs: Mapping[str, Any] | None = None,
) -> torch.nn.Module:
    """Move a model to this worker's device, or to a given one, and wrap it where there is more than one worker.

    `ddp`: `DistributedDataParallel`; a model that has nothing to train is left as it is. `fsdp`: `fully_shard`, on
    GPUs only; it shards in place what is not sharded yet, so call it on the blocks of a large model before. The
    keyword arguments go to the one or the other.
    """
    world_size = _context("prepare_model").begin.world_size
    if parallel_strategy not in _STRATEGIES:
        raise ValueError(f"parallel_strategy={parallel_strategy!r} is none of 'ddp', 'fsdp' and None")
    if parallel_strategy == "fsdp" and get_device().type != "cuda":
        raise RuntimeError(
            "parallel_strategy='fsdp' needs GPUs, and this worker was given none\n\n"
            "hint: train with ScalingConfig(use_gpu=True), or use parallel_strategy='ddp'"
        )
    sharded = parallel_strategy == "fsdp" and world_size > 1
    # Sharding moves what it keeps: the whole of a model that is worth sharding may not fit on one GPU.
    if move_to_device is not False and not sharded:
        model = model.to(get_device() if move_to_device is True else move_to_device)
    kwargs = dict(parallel_strategy_kwargs or {})
    if sharded:
        from torch.distributed.fsdp import fully_shard

        return fully_shard(model, **kwargs)
    if parallel_strategy == "ddp" and world_size > 1 and any(p.requires_grad for p in model.parameters()):
        from torch.nn.parallel import DistributedDataParallel

        return DistributedDataParallel(model, **{"device_ids": _device_ids(model), **kwargs})
    return model


def _device_ids(model: torch.nn.Module) -> list[torch.device] | None:
    """What DDP wants to know: the GPU that all of the model is on; nothing for a model on the CPU or on several."""
    devices = list({parameter.device for parameter in model.parameters()})
    return devices if len(devices) == 1 and devices[0].type == "cuda" else None
