"""Small collective calls that need no framework. For tensors, use the framework's own."""

from __future__ import annotations

from typing import TypeVar

import cloudpickle

from paceline._core.lazy_imports import explain_module
from paceline.train.session import _require_context

T = TypeVar("T")

__all__ = ["barrier", "broadcast_from_rank_zero", "gather"]


def barrier() -> None:
    """Wait until every rank has called this the same number of times."""
    _require_context("barrier").join(b"", "barrier")


def broadcast_from_rank_zero(data: T) -> T:
    """Return rank 0's `data` on every rank and ignore the others'. Also a barrier."""
    context = _require_context("broadcast_from_rank_zero")
    mine = cloudpickle.dumps(data) if context.begin.rank == 0 else b""
    value: T = cloudpickle.loads(context.join(mine, "broadcast_from_rank_zero"))
    return value


def gather(data: T) -> list[T]:
    """Return the `data` of all ranks, in rank order, on every rank. Also a barrier."""
    gathered = _require_context("gather").gather(cloudpickle.dumps(data), "gather")
    return [cloudpickle.loads(each) for each in gathered]


explain_module(__name__)
