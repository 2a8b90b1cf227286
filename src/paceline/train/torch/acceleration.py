"""The device of a worker, mixed precision for a whole train function, gradient accumulation and reproducibility.

Gradients of a small loss underflow in `fp16`. So the loss is multiplied by a large scale before the backward pass, and
the gradients are divided by it before the step. A step with non-finite gradients is skipped and the scale reduced.
Torch's `GradScaler` does this; this module calls it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import sys
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from paceline._core.arguments import bad_value, check_bool
from paceline.train.session import _require_context

if TYPE_CHECKING:
    import torch


def get_device() -> torch.device:
    """Return the first GPU assigned to this worker, or the CPU if it has none."""
    return _assigned_devices("get_device")[0]


def get_devices() -> list[torch.device]:
    """Return all GPUs assigned to this worker, or only the CPU if it has none."""
    return _assigned_devices("get_devices")


def _assigned_devices(function: str) -> list[torch.device]:
    indices = _require_context(function).begin.devices
    import torch

    return [torch.device("cuda", index) for index in indices] or [torch.device("cpu")]


Opt = TypeVar("Opt", bound="torch.optim.Optimizer")

_STATE = "grad_scaler"
"""Key of the scaler's state in an optimizer's state dict."""


class _LossScaler:
    """The gradient scaler of a worker, and its state between two backward passes."""

    def __init__(self, device_type: str) -> None:
        import torch

        self.scaler = torch.amp.GradScaler(device_type)
        self.has_scaled = False
        self._has_stepped = False

    def backward(self, tensor: torch.Tensor) -> None:
        self.update_scale()
        self.has_scaled = True
        self.scaler.scale(tensor).backward()

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        self._has_stepped = True
        return self.scaler.step(optimizer, *args, **kwargs)

    def update_scale(self) -> None:
        """Adapt the scale to the results of the last steps.

        Not after each step: another optimizer may still hold gradients of the same backward pass, with the same scale.
        """
        if self._has_stepped:
            self.scaler.update()
            self._has_stepped = False


class _AccelerationState:
    """The settings of one worker."""

    def __init__(self, context: object) -> None:
        self.context = context
        self.was_set = False
        self.half: torch.dtype | None = None
        self.scaling: _LossScaler | None = None
        self.resumed: dict[str, Any] | None = None
        """Scaler state that was loaded before the scaler existed."""


_accelerations: list[_AccelerationState] = []
"""The state of the current run; a process may work for several runs, one after another."""


def accelerate(amp: bool = False) -> None:
    """Call this once, at the start. With `amp`, models prepared afterwards compute in mixed precision.

    That is `fp16` on a GPU, where `backward` and `prepare_optimizer` scale the loss, and `bf16` on the CPU. To choose
    the precision, use `prepare_model(mixed_precision=...)` instead.
    """
    acceleration = _current_state("accelerate")
    check_bool("amp", amp)
    if acceleration.was_set:
        raise RuntimeError("accelerate() was already called in this train function\n\nhint: call it once, at the start")
    acceleration.was_set = True
    if amp:
        import torch

        acceleration.half = torch.bfloat16 if get_device().type == "cpu" else torch.float16


def prepare_optimizer(optimizer: Opt) -> Opt:
    """Make an optimizer handle gradients of a scaled loss. Returns the same optimizer.

    The optimizer steps normally until `backward` has scaled a loss, so this works in any precision. Its `state_dict`
    includes the scale, so a resumed run continues with it.
    """
    _current_state("prepare_optimizer")
    import torch

    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer must be a torch.optim.Optimizer, got {optimizer!r}")
    if "_unscaled_step" not in optimizer.__dict__:
        optimizer._unscaled_step = optimizer.step

        @functools.wraps(optimizer.step)
        def step(self: Any, *args: Any, **kwargs: Any) -> Any:
            scaling = _current_scaler()
            if scaling is None or not scaling.has_scaled or "_is_stepping" in self.__dict__:
                return self._unscaled_step(*args, **kwargs)
            # The scaler calls this method again if all gradients are finite.
            self._is_stepping = True
            try:
                return scaling.step(self, *args, **kwargs)
            finally:
                del self._is_stepping

        # It has to be a method, and keep the attributes of the original: a learning rate scheduler that wraps it later
        # checks for the former, and one that already wrapped it for the latter.
        optimizer.step = types.MethodType(step, optimizer)
        optimizer.register_state_dict_post_hook(_save_scale)
        optimizer.register_load_state_dict_pre_hook(_load_scale)
    return optimizer


def backward(tensor: torch.Tensor) -> None:
    """Call `tensor.backward()`, with the loss scaled if a model computes in `fp16`."""
    scaling = _current_state("backward").scaling
    if scaling is None:
        tensor.backward()
    else:
        scaling.backward(tensor)


def unscale_gradients(optimizer: torch.optim.Optimizer) -> None:
    """Divide the gradients by the scale now instead of in `optimizer.step()`.

    Call it before clipping or inspecting gradients. Does nothing if no loss was scaled.
    """
    scaling = _current_state("unscale_gradients").scaling
    if scaling is not None and scaling.has_scaled:
        scaling.scaler.unscale_(optimizer)


def default_half_type() -> torch.dtype | None:
    """The precision that `accelerate` set."""
    return _current_state("prepare_model").half


def enable_loss_scaling(half: torch.dtype) -> None:
    """Scale losses from now on if a model of this worker computes in `fp16`."""
    import torch

    acceleration = _current_state("prepare_model")
    if half == torch.float16 and acceleration.scaling is None:
        acceleration.scaling = _LossScaler(get_device().type)
        if acceleration.resumed is not None:
            acceleration.scaling.scaler.load_state_dict(acceleration.resumed)


def _current_state(function: str) -> _AccelerationState:
    context = _require_context(function)
    if not _accelerations or _accelerations[0].context is not context:
        _accelerations[:] = [_AccelerationState(context)]
    return _accelerations[0]


def _current_scaler() -> _LossScaler | None:
    return _accelerations[0].scaling if _accelerations else None


def _save_scale(_optimizer: Any, state: dict[str, Any]) -> dict[str, Any]:
    scaling = _current_scaler()
    if scaling is not None:
        scaling.update_scale()
        state[_STATE] = scaling.scaler.state_dict()
    return state


def _load_scale(_optimizer: Any, state: dict[str, Any]) -> None:
    if _accelerations and state.get(_STATE):
        _accelerations[0].resumed = state[_STATE]
        scaling = _accelerations[0].scaling
        if scaling is not None:
            scaling.scaler.load_state_dict(state[_STATE])


@contextlib.contextmanager
def accumulate_gradients(model: torch.nn.Module, *, last: bool) -> Iterator[None]:
    """Wrap forward and backward of each of several batches before a step. Only the last one shares gradients.

        for number, batch in enumerate(batches):
            with accumulate_gradients(model, last=number == len(batches) - 1):
                backward(loss(model(batch)) / len(batches))
        optimizer.step()

    Works for models of `prepare_model`, wrapped in any way, compiled or not. Does nothing for a model that shares no
    gradients. All ranks must agree on which batch is the last.
    """
    from torch.nn.parallel import DistributedDataParallel

    with contextlib.ExitStack() as stack:
        if not last:
            for module in list(model.modules()):
                if isinstance(module, DistributedDataParallel):
                    stack.enter_context(module.no_sync())
            for sharded in _outermost_sharded(model):
                sharded.set_requires_gradient_sync(False)
                stack.callback(sharded.set_requires_gradient_sync, True)
        yield


def _outermost_sharded(model: torch.nn.Module) -> Iterator[torch.distributed.fsdp.FSDPModule]:
    """Yield the outermost modules passed to `fully_shard`; they forward the setting to the inner ones."""
    # Looked up instead of imported, which takes a second; if it is not imported, nothing is sharded.
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None:
        return
    if isinstance(model, fsdp.FSDPModule):
        yield model
        return
    for child in model.children():
        yield from _outermost_sharded(child)


_seed: int | None = None


def enable_reproducibility(seed: int = 0) -> None:
    """Seed `random`, NumPy and torch, the same on every rank, and restrict torch to deterministic algorithms.

    Operations without a deterministic algorithm then raise. The worker processes of loaders prepared afterwards are
    seeded from seed, rank and epoch only: no two draw the same numbers, and a run that resumes at an epoch draws what
    an uninterrupted run would have drawn.
    """
    if not isinstance(seed, int) or not 0 <= seed < 1 << 63:
        raise bad_value("seed", "an integer from 0 to 2**63 - 1", seed)
    import torch

    random.seed(seed)
    torch.manual_seed(seed)
    _seed_numpy(seed)
    # cuBLAS reads this at the first matrix product on a GPU.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    _use_deterministic_algorithms()
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    global _seed
    _seed = seed


def enabled_seed() -> int | None:
    """The seed passed to `enable_reproducibility` in this process."""
    return _seed


def derive_seed(seed: int, rank: int, epoch: int) -> int:
    """Return an independent seed for one rank in one epoch."""
    return random.Random(f"{seed} {rank} {epoch}").getrandbits(63)


def _use_deterministic_algorithms() -> None:
    """Like torch's function, which also imports the compiler to configure it: seconds on every worker."""
    import torch

    os.environ["TORCHINDUCTOR_DETERMINISTIC"] = "1"
    if "torch._inductor.config" in sys.modules:
        torch.use_deterministic_algorithms(True)
    else:
        torch.set_deterministic_debug_mode("error")


def _seed_numpy(seed: int) -> None:
    try:
        import numpy
    except ImportError:
        return
    numpy.random.seed(seed % (1 << 32))
