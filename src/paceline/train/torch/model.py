"""Prepare a model for many workers: move it to the device, set its precision, compile it, and wrap it so that workers
share gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from paceline._core.arguments import bad_value, check_choice, check_instance
from paceline.train.session import _require_context
from paceline.train.torch import fsdp
from paceline.train.torch.acceleration import default_half_type, enable_loss_scaling, get_device
from paceline.train.torch.forward_pass import enable_autocast, make_compilable, parse_half_type
from paceline.train.torch.materialize import iterate_children_first, materialize

if TYPE_CHECKING:
    import torch


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

    `ddp` wraps it in `DistributedDataParallel` if there are several workers and trainable weights. `fsdp` calls
    `fully_shard`, in place and for any number of workers; create the optimizer afterwards. It shards block by block:
    modules of the classes in `shard_blocks`, or else the members of each `ModuleList`, and finally the model. Modules
    you have already passed to `fully_shard` stay as they are. Either way all workers start with the weights of rank 0.
    `parallel_strategy_kwargs` are passed to the one or the other.

    `mixed_precision`: compute the forward pass in `bf16` or `fp16`, with outputs in full precision. For `fp16`, use
    `backward(loss)` and `prepare_optimizer`. `compile`: True, or options for `torch.compile`; the model keeps its class
    and the names of its weights. A model on the meta device is allocated, and initialized by the `reset_parameters` of
    its modules.
    """
    begin = _require_context("prepare_model").begin
    check_choice("parallel_strategy", parallel_strategy, ("ddp", "fsdp", None))
    if shard_blocks is not None and parallel_strategy != "fsdp":
        raise ValueError(f"shard_blocks needs parallel_strategy='fsdp', got {parallel_strategy!r}")
    kwargs = dict(parallel_strategy_kwargs or {})
    half = _resolve_half_type(mixed_precision, kwargs)
    compiled = _compiler_options(compile)
    if half is not None:
        enable_loss_scaling(half)
    if parallel_strategy == "fsdp":
        device = _sharding_device(move_to_device)
        return fsdp.shard_model(model, device, kwargs, blocks=shard_blocks, half=half, compiled=compiled)
    if move_to_device is not False:
        model = _move_model(model, get_device() if move_to_device is True else move_to_device)
    if compiled is not None:
        make_compilable(model)
    if half is not None:
        enable_autocast(model, half, _device_type(model))
    if compiled is not None:
        # Before wrapping: torch then splits the graph at DDP's buckets, so that communication overlaps with the
        # backward pass.
        model.compile(**compiled)
    if parallel_strategy == "ddp" and begin.world_size > 1 and any(p.requires_grad for p in model.parameters()):
        from torch.nn.parallel import DistributedDataParallel

        return DistributedDataParallel(model, **{"device_ids": _device_ids(model), **kwargs})
    return model


def _resolve_half_type(mixed_precision: Any, kwargs: Mapping[str, Any]) -> torch.dtype | None:
    half = parse_half_type(mixed_precision)
    if "mp_policy" not in kwargs:
        return half if half is not None else default_half_type()
    if half is not None:
        raise ValueError(
            f"mixed_precision={mixed_precision!r} and parallel_strategy_kwargs['mp_policy'] exclude each other"
            "\n\nhint: leave one of them out"
        )
    return None


def _compiler_options(compile: bool | Mapping[str, Any]) -> dict[str, Any] | None:
    check_instance("compile", compile, (bool, Mapping), "a bool or a dict of torch.compile options")
    if isinstance(compile, bool):
        return {} if compile else None
    return dict(compile)


def _sharding_device(move_to_device: bool | torch.device) -> torch.device:
    """Sharding moves the shards itself: a model worth sharding may not fit on one GPU."""
    device = get_device()
    if isinstance(move_to_device, bool):
        return device
    if move_to_device.type == "cpu":
        return move_to_device
    if move_to_device.type == device.type and move_to_device.index in (None, device.index):
        return device
    raise bad_value(
        "move_to_device", f"the CPU or this worker's {device} with parallel_strategy='fsdp'", move_to_device
    )


def _move_model(model: torch.nn.Module, device: torch.device) -> torch.nn.Module:
    if device.type != "meta":
        for module in iterate_children_first(model):
            materialize(module, device)
    return model.to(device)


def _device_type(model: torch.nn.Module) -> str:
    first = next(model.parameters(), None)
    device: torch.device = first.device if first is not None else get_device()
    return str(device.type)


def _device_ids(model: torch.nn.Module) -> list[torch.device] | None:
    """Return the GPU that holds the whole model, as DDP needs it; None for a model on the CPU or on several GPUs."""
    devices = list({parameter.device for parameter in model.parameters()})
    return devices if len(devices) == 1 and devices[0].type == "cuda" else None
