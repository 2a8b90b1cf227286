"""Gradient accumulation: workers share the gradients of several small batches once."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


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

    with contextlib.ExitStack() as waiting:
        if not last:
            for module in list(model.modules()):
                if isinstance(module, DistributedDataParallel):
                    waiting.enter_context(module.no_sync())
            for sharded in _outermost_sharded(model):
                sharded.set_requires_gradient_sync(False)
                waiting.callback(sharded.set_requires_gradient_sync, True)
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
