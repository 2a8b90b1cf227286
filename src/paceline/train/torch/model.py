"""Prepare a model for many workers: its device, precision, compilation, and how workers share gradients or weights.

A model keeps its class, its identity and the names of its weights. In mixed precision, weights and outputs stay in full
precision, so the loss is computed in full precision. With FSDP each worker holds a shard of every weight: a block is
gathered when it is needed and freed afterwards, also during setup, so only the shards and one block have to fit on a
device. Weights on the meta device are initialized children first, the order in which weights are created.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from paceline._core.arguments import bad_value, check_choice, check_instance
from paceline.train.session import _require_context
from paceline.train.torch.acceleration import default_half_type, enable_loss_scaling, get_device

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
    shard_blocks: Blocks | None = None,
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
        return shard_model(model, device, kwargs, blocks=shard_blocks, half=half, compiled=compiled)
    if move_to_device is not False:
        device = get_device() if move_to_device is True else move_to_device
        if device.type != "meta":
            for module in iterate_children_first(model):
                materialize(module, device)
        model = model.to(device)
    if compiled is not None:
        make_compilable(model)
    if half is not None:
        weight = next(model.parameters(), None)
        enable_autocast(model, half, (weight.device if weight is not None else get_device()).type)
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


def _device_ids(model: torch.nn.Module) -> list[torch.device] | None:
    """Return the GPU that holds the whole model, as DDP needs it; None for a model on the CPU or on several GPUs."""
    devices = list({parameter.device for parameter in model.parameters()})
    return devices if len(devices) == 1 and devices[0].type == "cuda" else None


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
