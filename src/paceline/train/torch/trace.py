"""What torch does between two reports, noted down: what models are given, and what optimizers step from.

Through hooks of torch that are meant for all modules and optimizers of a process, so the user's code is left alone.
Nothing here draws a random number.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import xxhash

_MAX_FULL = 4
"""Of optimizer steps, how many are noted with their whole state: what matters shows in the first."""

Note = dict[str, Any]


@contextlib.contextmanager
def watched(note: Callable[[Note], None], wanted: Callable[[], bool]) -> Iterator[None]:
    """Note every call of an outermost module and every optimizer step of this process, while that is wanted."""
    from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    watching = _Watching(note, wanted)
    hooks = (
        register_module_forward_pre_hook(watching.calls),
        register_module_forward_hook(watching.called, with_kwargs=True, always_call=True),
        register_optimizer_step_pre_hook(watching.steps),
    )
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def rng_states() -> dict[str, str]:
    """Fingerprints of torch's own generators."""
    import torch

    states = {"torch": _hash(torch.get_rng_state())}
    if torch.cuda.is_initialized():
        states["torch.cuda"] = _hash(torch.cuda.get_rng_state_all())
    return states


class _Watching:
    def __init__(self, note: Callable[[Note], None], wanted: Callable[[], bool]) -> None:
        self._note = note
        self._wanted = wanted
        self._depth = 0
        self._call: Note | None = None
        self._numbers: dict[int, int] = {}
        self._num_steps = 0

    def calls(self, module: Any, args: Any) -> None:
        self._depth += 1
        if self._depth > 1 or not self._wanted():
            return
        call: Note = {"kind": "forward", "module": self._number(module), "training": module.training}
        call["inputs"] = _hash(args)
        call["has_parameters"] = any(True for _ in module.parameters())
        if self._num_steps < _MAX_FULL:
            call["parameters"] = {name: _hash(value) for name, value in module.named_parameters()}
            call["buffers"] = {name: _hash(value) for name, value in module.named_buffers()}
        self._call = call

    def called(self, _module: Any, _args: Any, kwargs: Any, _output: Any) -> None:
        self._depth -= 1
        if self._depth == 0 and self._call is not None:
            # Only this hook is given the arguments by name, which is how many models take all of theirs.
            self._call["inputs"] += _hash(kwargs) if kwargs else ""
            self._note(self._call)
            self._call = None

    def steps(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if not self._wanted():
            return
        said: Note = {"kind": "step", "optimizer": self._number(optimizer)}
        said["hyper"] = {
            f"{number}.{name}": value
            for number, group in enumerate(optimizer.param_groups)
            for name, value in _plain(group).items()
        }
        if self._num_steps < _MAX_FULL:
            states = [optimizer.state.get(one, {}) for group in optimizer.param_groups for one in group["params"]]
            said["state"] = {
                f"{number}.{name}": _hash(value) for number, state in enumerate(states) for name, value in state.items()
            }
        self._num_steps += 1
        self._note(said)

    def _number(self, thing: Any) -> int:
        return self._numbers.setdefault(id(thing), len(self._numbers))


def _plain(group: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of a parameter group; a learning rate may be a tensor."""
    values = {name: value.item() if hasattr(value, "item") else value for name, value in group.items()}
    return {name: value for name, value in values.items() if isinstance(value, int | float | str | bool | None)}


def _hash(value: Any) -> str:
    digest = xxhash.xxh3_64()
    for part in _parts(value):
        digest.update(part)
    return digest.hexdigest()


def _parts(value: Any) -> Iterable[Any]:
    import torch

    if isinstance(value, torch.Tensor):
        # Of a sharded tensor, this rank's part.
        value = value.to_local() if hasattr(value, "to_local") else value
        plain = value.detach().cpu().contiguous().reshape(-1)
        yield f"{value.dtype} {tuple(value.shape)}".encode()
        if plain.numel():
            yield plain.view(torch.uint8).numpy()
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield str(key).encode()
            yield from _parts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _parts(item)
    else:
        # The address in a default repr says nothing about the value.
        yield repr(value).encode() if isinstance(value, int | float | str | bytes | None) else str(type(value)).encode()
