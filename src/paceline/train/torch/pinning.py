"""Have memory page-locked for the first checkpoint of GPU values before it is needed.

The first optimizer step tells how large a checkpoint of the model and its optimizer will be. Page-locking takes a
second for 8 GB, so it is done in the background from then on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def prepare_for_saves(prepare: Callable[[int], None]) -> Iterator[None]:
    """Call `prepare` with the GPU bytes of all optimizers, whenever another one has made its first step."""
    from torch.compiler import is_compiling
    from torch.optim.optimizer import register_optimizer_step_post_hook

    sizes: dict[int, int] = {}

    def after_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if not is_compiling() and id(optimizer) not in sizes:
            sizes[id(optimizer)] = _gpu_bytes(optimizer)
            if sum(sizes.values()):
                prepare(sum(sizes.values()))

    hook = register_optimizer_step_post_hook(after_step)
    try:
        yield
    finally:
        hook.remove()


def _gpu_bytes(optimizer: Any) -> int:
    """The bytes of the parameters and their state that are on a GPU, with a margin for buffers of the model."""
    import torch

    total = 0
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            for value in (parameter, *optimizer.state.get(parameter, {}).values()):
                if isinstance(value, torch.Tensor) and value.is_cuda:
                    total += getattr(value, "_local_tensor", value).nbytes  # a DTensor has the size of all shards
    return total + total // 64
