"""Looking at a dataset: having its plan run, its first rows, how many there are, and what is in them."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.data.block import Block
from paceline.data.exec.pipeline import Pipeline, lowered
from paceline.data.plan import Barrier, Node
from paceline.data.position import Delivered
from paceline.data.source import Unit


def deliveries(plan: Node, epoch: int = 0) -> Iterator[Delivered]:
    """The rows of an epoch, in order. To close the iterator is to end the work."""
    from paceline.data.exec.inline import InlineExecutor

    return InlineExecutor().run(pipeline_of(plan, epoch))


def pipeline_of(plan: Node, epoch: int = 0) -> Pipeline:
    return lowered(plan, epoch, _resolved)


def _resolved(barrier: Barrier, epoch: int) -> list[Unit]:
    raise TypeError(f"{barrier.name} cannot be run")


def blocks(plan: Node) -> Iterator[Block]:
    for delivered in deliveries(plan):
        yield delivered.block


def first_rows(plan: Node, limit: int) -> Block:
    """At most so many rows; no more is read than they take."""
    found: list[Block] = []
    left = limit
    stream = deliveries(plan)
    try:
        while left > 0 and (delivered := next(stream, None)) is not None:
            found.append(delivered.block.slice(0, left))
            left -= found[-1].num_rows
    finally:
        close = getattr(stream, "close", None)
        if close is not None:
            close()
    return Block.concat(found)
