"""Small collective calls that need no framework. Not for tensors: use the framework's own for those."""

from __future__ import annotations

from typing import TypeVar

import cloudpickle

from paceline.train.session import _context

T = TypeVar("T")

__all__ = ["barrier", "broadcast_from_rank_zero", "gather"]


def barrier() -> None:
    """Wait until every rank has called this equally often."""
    _context("barrier").join(b"")


def broadcast_from_rank_zero(data: T) -> T:
    """Give every rank what rank 0 passed; what the others pass is not looked at. A barrier too."""
    context = _context("broadcast_from_rank_zero")
    mine = cloudpickle.dumps(data) if context.begin.rank == 0 else b""
    given: T = cloudpickle.loads(context.join(mine))
    return given


def gather(data: T) -> list[T]:
    """Give every rank what all ranks passed, in the order of ranks. A barrier too."""
    return [cloudpickle.loads(each) for each in _context("gather").gather(cloudpickle.dumps(data))]
