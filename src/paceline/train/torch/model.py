"""A model made ready for many workers: on its device, in the precision that was asked for, compiled, and wrapped so
that gradients are shared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from paceline.train.session import _context
from paceline.train.torch import fsdp
from paceline.train.torch.acceleration import expect_half, half_by_default
from paceline.train.torch.compiled import may_compile
from paceline.train.torch.devices import get_device
from paceline.train.torch.materialize import children_first, materialize
from paceline.train.torch.precision import compute_in, half_type

if TYPE_CHECKING:
    import torch

_STRATEGIES = ("ddp", "fsdp", None)


def prepare_model(
    model: torch.nn.Module,
    move_to_device: bool | torch.device = True,
    parallel_strategy: Literal["ddp", "fsdp"] | None = "ddp",
    parallel_strategy_kwargs: Mapping[str, Any] | None = None,
    *,
    mixed_precision: Literal["bf16", "fp16"] | torch.dtype | None = None,
    compile: bool | Mapping[str, Any] = False,
    shard_blocks: fsdp.Blocks | None = None,
) -> torch.nn.Module:
    """Move a model to this worker's device, or to a given one, and share its gradients with the other workers.

    `ddp`: `DistributedDataParallel`, where there is more than one worker and something to train. `fsdp`: `fully_shard`,
    in place and for any number of workers; the optimizer is made afterwards. Blocks are sharded one by one: those of
    the classes in `shard_blocks`, else what stands in a `ModuleList`, and the model last. What a call of `fully_shard`
    has sharded before is left so. Either way all workers begin with the weights of rank 0. The keyword arguments go to
    the one or the other.

    `mixed_precision`: the forward pass is computed in `bf16` or `fp16`, and its outputs come back in full precision.
    For `fp16`, call `backward(loss)` and `prepare_optimizer`. `compile`: True, or the options of `torch.compile`; the
    model keeps its class and the names of its weights. A model on the meta device is given memory, and values by the
    `reset_parameters` of its modules.
    """
    begin = _context("prepare_model").begin
    if parallel_strategy not in _STRATEGIES:
        raise ValueError(f"parallel_strategy={parallel_strategy!r} is none of 'ddp', 'fsdp' and None")
    if shard_blocks is not None and parallel_strategy != "fsdp":
        raise ValueError(f"shard_blocks is for parallel_strategy='fsdp', and that is {parallel_strategy!r}")
    kwargs = dict(parallel_strategy_kwargs or {})
    half = _half(mixed_precision, kwargs)
    compiled = _compiler_options(compile)
    if half is not None:
        expect_half(half)
    if parallel_strategy == "fsdp":
        device = _sharding_device(move_to_device)
        return fsdp.shard(model, device, kwargs, blocks=shard_blocks, half=half, compiled=compiled)
    if move_to_device is not False:
        model = _moved(model, get_device() if move_to_device is True else move_to_device)
    if compiled is not None:
        may_compile(model)
    if half is not None:
        compute_in(model, half, _device_type(model))
    if compiled is not None:
        # Before it is wrapped: torch then cuts its graph where DDP's buckets end, so that gradients travel meanwhile.
        model.compile(**compiled)
    if parallel_strategy == "ddp" and begin.world_size > 1 and any(p.requires_grad for p in model.parameters()):
        from torch.nn.parallel import DistributedDataParallel

        return DistributedDataParallel(model, **{"device_ids": _device_ids(model), **kwargs})
    return model


def _half(mixed_precision: Any, kwargs: Mapping[str, Any]) -> torch.dtype | None:
    half = half_type(mixed_precision)
    if "mp_policy" not in kwargs:
        return half if half is not None else half_by_default()
    if half is not None:
        raise ValueError(
            f"mixed_precision={mixed_precision!r} and parallel_strategy_kwargs['mp_policy'] both say how precise to be"
            "\n\nhint: leave one of them out"
        )
    return None


def _compiler_options(compile: bool | Mapping[str, Any]) -> dict[str, Any] | None:
    if not isinstance(compile, bool | Mapping):
        raise ValueError(f"compile={compile!r} is neither a bool nor a dict with options of torch.compile")
    if isinstance(compile, bool):
        return {} if compile else None
    return dict(compile)


def _sharding_device(move_to_device: bool | torch.device) -> torch.device:
    """Sharding moves what it keeps: the whole of a model that is worth sharding may not fit on one GPU."""
    own = get_device()
    if isinstance(move_to_device, bool) or move_to_device.type == "cpu":
        return own if isinstance(move_to_device, bool) else move_to_device
    if move_to_device.type == own.type and move_to_device.index in (None, own.index):
        return own
    raise ValueError(f"move_to_device={move_to_device!r}: a model is sharded over the CPU, or this worker's {own}")


def _moved(model: torch.nn.Module, device: torch.device) -> torch.nn.Module:
    if device.type != "meta":
        for module in children_first(model):
            materialize(module, device)
    return model.to(device)


def _device_type(model: torch.nn.Module) -> str:
    first = next(model.parameters(), None)
    device: torch.device = first.device if first is not None else get_device()
    return str(device.type)


def _device_ids(model: torch.nn.Module) -> list[torch.device] | None:
    """What DDP wants to know: the GPU that all of the model is on; nothing for a model on the CPU or on several."""
    devices = list({parameter.device for parameter in model.parameters()})
    return devices if len(devices) == 1 and devices[0].type == "cuda" else None
