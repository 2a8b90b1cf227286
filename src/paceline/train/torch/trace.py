"""Record what torch does between two reports: the inputs of models and the state that optimizers step from.

Uses torch's global hooks for modules and optimizers, so user code is unchanged. Nothing here draws a random number.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import xxhash

_MAX_FULL = 4
"""How many optimizer steps are recorded with their whole state; differences show in the first ones."""

Note = dict[str, Any]


@contextlib.contextmanager
def trace_training(note: Callable[[Note], None], is_enabled: Callable[[], bool]) -> Iterator[None]:
    """Record every call of an outermost module and every optimizer step while `is_enabled()` is true."""
    from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    tracer = _TrainingTracer(note, is_enabled)
    hooks = (
        register_module_forward_pre_hook(tracer.before_forward),
        register_module_forward_hook(tracer.after_forward, with_kwargs=True, always_call=True),
        register_optimizer_step_pre_hook(tracer.before_optimizer_step),
    )
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def hash_rng_states() -> dict[str, str]:
    """Return hashes of the states of torch's random generators."""
    import torch

    states = {"torch": _hash(torch.get_rng_state())}
    if torch.cuda.is_initialized():
        states["torch.cuda"] = _hash(torch.cuda.get_rng_state_all())
    return states


class _TrainingTracer:
    def __init__(self, note: Callable[[Note], None], is_enabled: Callable[[], bool]) -> None:
        self._note = note
        self._is_enabled = is_enabled
        self._depth = 0
        self._call: Note | None = None
        self._numbers: dict[int, int] = {}
        self._num_steps = 0

    def before_forward(self, module: Any, args: Any) -> None:
        self._depth += 1
        if self._depth > 1 or not self._is_enabled():
            return
        call: Note = {"kind": "forward", "module": self._number_of(module), "training": module.training}
        call["inputs"] = _hash(args)
        call["has_parameters"] = any(True for _ in module.parameters())
        if self._num_steps < _MAX_FULL:
            call["parameters"] = {name: _hash(value) for name, value in module.named_parameters()}
            call["buffers"] = {name: _hash(value) for name, value in module.named_buffers()}
        self._call = call

    def after_forward(self, _module: Any, _args: Any, kwargs: Any, _output: Any) -> None:
        self._depth -= 1
        if self._depth == 0 and self._call is not None:
            # Only this hook receives keyword arguments, and many models take all their inputs by keyword.
            self._call["inputs"] += _hash(kwargs) if kwargs else ""
            self._note(self._call)
            self._call = None

    def before_optimizer_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if not self._is_enabled():
            return
        step: Note = {"kind": "step", "optimizer": self._number_of(optimizer)}
        step["hyper"] = {
            f"{number}.{name}": value
            for number, group in enumerate(optimizer.param_groups)
            for name, value in _plain_values(group).items()
        }
        if self._num_steps < _MAX_FULL:
            states = [optimizer.state.get(one, {}) for group in optimizer.param_groups for one in group["params"]]
            step["state"] = {
                f"{number}.{name}": _hash(value) for number, state in enumerate(states) for name, value in state.items()
            }
        self._num_steps += 1
        self._note(step)

    def _number_of(self, thing: Any) -> int:
        return self._numbers.setdefault(id(thing), len(self._numbers))


def _plain_values(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plain values of a parameter group; a learning rate may be a tensor."""
    values = {name: value.item() if hasattr(value, "item") else value for name, value in group.items()}
    return {name: value for name, value in values.items() if isinstance(value, int | float | str | bool | None)}


def _hash(value: Any) -> str:
    digest = xxhash.xxh3_64()
    for part in _hashable_parts(value):
        digest.update(part)
    return digest.hexdigest()


def _hashable_parts(value: Any) -> Iterable[Any]:
    import torch

    if isinstance(value, torch.Tensor):
        # This rank's shard of a sharded tensor.
        value = value.to_local() if hasattr(value, "to_local") else value
        plain = value.detach().cpu().contiguous().reshape(-1)
        yield f"{value.dtype} {tuple(value.shape)}".encode()
        if plain.numel():
            yield plain.view(torch.uint8).numpy()
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield str(key).encode()
            yield from _hashable_parts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _hashable_parts(item)
    else:
        # The address in a default repr is not part of the value.
        yield repr(value).encode() if isinstance(value, int | float | str | bytes | None) else str(type(value)).encode()
