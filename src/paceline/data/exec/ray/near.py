"""Small datasets that need only be read: by the service itself, as starting Ray Data would take far longer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from paceline.data.block import Block
from paceline.data.exec.inline import InlineExecutor
from paceline.data.exec.lower import outline
from paceline.data.exec.pipeline import Pipeline
from paceline.data.exec.stats import Record
from paceline.data.feeds import is_small
from paceline.data.plan import Node
from paceline.data.transforms.calls import UserTransform


@dataclass(frozen=True)
class Near:
    """As `Placed`, with the rows in this process."""

    unit: int
    offset: int
    num_rows: int
    num_bytes: int
    block: Block


def is_near(plan: Node) -> bool:
    """Small, and without functions of the user's, which may take any time, memory or process down."""
    chains = outline(plan).chains
    return is_small(plan) and not any(isinstance(transform, UserTransform) for chain in chains for transform in chain)


def near_blocks(pipeline: Pipeline, unit: int, offset: int, record: Record) -> Iterator[Near]:
    meter = record.meter(0, "read beside the service")
    for delivered in InlineExecutor().run(pipeline, unit, offset):
        block = delivered.block
        meter.num_rows += block.num_rows
        meter.num_bytes += block.nbytes
        yield Near(delivered.unit, delivered.offset, block.num_rows, block.nbytes, block)
