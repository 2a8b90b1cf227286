"""Gradients of several small batches, shared with the other workers once."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@contextlib.contextmanager
def accumulate_gradients(model: torch.nn.Module, *, last: bool) -> Iterator[None]:
    """Around forward and backward of one of several batches before a step: only the last shares gradients.

        for number, batch in enumerate(batches):
            with accumulate_gradients(model, last=number == len(batches) - 1):
                backward(loss(model(batch)) / len(batches))
        optimizer.step()

    For models of `prepare_model`, whichever way they are wrapped, compiled or not; for a model that shares nothing it
    does nothing. All ranks have to agree on which batch is the last.
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
    """What `fully_shard` was called on, without what lies within: it passes on to that what it is told."""
    # Looked up, not imported: that takes a second, and without it nothing is sharded.
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None:
        return
    if isinstance(model, fsdp.FSDPModule):
        yield model
        return
    for child in model.children():
        yield from _outermost_sharded(child)
