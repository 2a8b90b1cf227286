"""Half precision for a whole train function, and the scaling of losses that `fp16` needs.

Gradients of a small loss vanish in `fp16`. So the loss is multiplied by a large number before the backward pass, and
the gradients are divided by it before a step; a step whose gradients are not finite is left out and the number made
smaller. Torch's `GradScaler` does that, and here is where it is called.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from paceline.train.session import _context
from paceline.train.torch.devices import get_device

if TYPE_CHECKING:
    import torch

Opt = TypeVar("Opt", bound="torch.optim.Optimizer")

_STATE = "grad_scaler"
"""The key of the scaler's state in that of an optimizer."""


class _Scaling:
    """The scaler of a worker, and where it stands between two backward passes."""

    def __init__(self, device_type: str) -> None:
        import torch

        self.scaler = torch.amp.GradScaler(device_type)
        self.has_scaled = False
        self._has_stepped = False

    def backward(self, tensor: torch.Tensor) -> None:
        self.settle()
        self.has_scaled = True
        self.scaler.scale(tensor).backward()

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        self._has_stepped = True
        return self.scaler.step(optimizer, *args, **kwargs)

    def settle(self) -> None:
        """Adapt the scale to what the last steps found.

        Not with each step: another optimizer may still have gradients of the same backward pass, by the same scale.
        """
        if self._has_stepped:
            self.scaler.update()
            self._has_stepped = False


class _Acceleration:
    """What was said in one worker."""

    def __init__(self, context: object) -> None:
        self.context = context
        self.was_set = False
        self.half: torch.dtype | None = None
        self.scaling: _Scaling | None = None
        self.resumed: dict[str, Any] | None = None
        """The state of a scaler that was loaded before there was one."""


_accelerations: list[_Acceleration] = []
"""That of the run this process is a worker of; a process may see several runs, one after another."""


def accelerate(amp: bool = False) -> None:
    """Call it first, and once. `amp`: models that are prepared afterwards compute in mixed precision.

    In `fp16` on a GPU, for which `backward` and `prepare_optimizer` scale the loss, and in `bf16` on the CPU. Say
    `prepare_model(mixed_precision=...)` instead to choose.
    """
    acceleration = _of("accelerate")
    if not isinstance(amp, bool):
        raise ValueError(f"amp={amp!r} is neither True nor False")
    if acceleration.was_set:
        raise RuntimeError("accelerate() was called before in this train function\n\nhint: call it once, at the start")
    acceleration.was_set = True
    if amp:
        import torch

        acceleration.half = torch.bfloat16 if get_device().type == "cpu" else torch.float16


def prepare_optimizer(optimizer: Opt) -> Opt:
    """Let an optimizer step by gradients of a scaled loss; the same optimizer comes back.

    As long as `backward` has scaled nothing it steps as it always did, so it can be called in any precision. Its
    `state_dict` has the scale in it: what is resumed goes on with that.
    """
    _of("prepare_optimizer")
    import torch

    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer={optimizer!r} is not a torch.optim.Optimizer")
    if "_step_as_given" not in optimizer.__dict__:
        given = optimizer._step_as_given = optimizer.step
        # A method, not a function, and with the attributes of the one before: a scheduler of the learning rate that
        # wraps it asks for the one, and one that has wrapped it before for the other.
        optimizer.step = types.MethodType(functools.wraps(given)(_step_of_its_own()), optimizer)
        optimizer.register_state_dict_post_hook(_with_scale)
        optimizer.register_load_state_dict_pre_hook(_take_scale)
    return optimizer


def backward(tensor: torch.Tensor) -> None:
    """`tensor.backward()`, of the scaled loss where a model computes in `fp16`."""
    scaling = _of("backward").scaling
    if scaling is None:
        tensor.backward()
    else:
        scaling.backward(tensor)


def unscale_gradients(optimizer: torch.optim.Optimizer) -> None:
    """Before gradients are clipped or looked at: divide them by the scale now, instead of in `optimizer.step()`.

    Where nothing is scaled it does nothing.
    """
    scaling = _of("unscale_gradients").scaling
    if scaling is not None and scaling.has_scaled:
        scaling.scaler.unscale_(optimizer)


def half_by_default() -> torch.dtype | None:
    """What `accelerate` said."""
    return _of("prepare_model").half


def expect_half(half: torch.dtype) -> None:
    """A model of this worker computes in half precision: with `fp16`, losses are scaled from now on."""
    import torch

    acceleration = _of("prepare_model")
    if half == torch.float16 and acceleration.scaling is None:
        acceleration.scaling = _Scaling(get_device().type)
        if acceleration.resumed is not None:
            acceleration.scaling.scaler.load_state_dict(acceleration.resumed)


def _of(function: str) -> _Acceleration:
    context = _context(function)
    if not _accelerations or _accelerations[0].context is not context:
        _accelerations[:] = [_Acceleration(context)]
    return _accelerations[0]


def _scaling_now() -> _Scaling | None:
    return _accelerations[0].scaling if _accelerations else None


def _step_of_its_own() -> Callable[..., Any]:
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        scaling = _scaling_now()
        if scaling is None or not scaling.has_scaled or "_is_stepping" in self.__dict__:
            return self._step_as_given(*args, **kwargs)
        # The scaler calls this method again, if all gradients are finite.
        self._is_stepping = True
        try:
            return scaling.step(self, *args, **kwargs)
        finally:
            del self._is_stepping

    return step


def _with_scale(_optimizer: Any, state: dict[str, Any]) -> dict[str, Any]:
    scaling = _scaling_now()
    if scaling is not None:
        scaling.settle()
        state[_STATE] = scaling.scaler.state_dict()
    return state


def _take_scale(_optimizer: Any, state: dict[str, Any]) -> None:
    if _accelerations and state.get(_STATE):
        _accelerations[0].resumed = state[_STATE]
        scaling = _accelerations[0].scaling
        if scaling is not None:
            scaling.scaler.load_state_dict(state[_STATE])
