"""Small datasets without user code, read by the service itself: starting Ray Data would take far longer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from paceline.data.block import Block
from paceline.data.exec.inline_executor import InlineExecutor
from paceline.data.exec.lowering import outline_plan
from paceline.data.exec.pipeline import Pipeline
from paceline.data.exec.stats import StatsRecorder
from paceline.data.feeds import is_small
from paceline.data.plan import PlanNode
from paceline.data.transforms.user_calls import UserTransform


@dataclass(frozen=True)
class LocalBlock:
    """Like `PlacedBlock`, with the rows in this process."""

    unit: int
    offset: int
    num_rows: int
    num_bytes: int
    block: Block


def can_read_locally(plan: PlanNode) -> bool:
    """Small, and without user functions, which may take any time or memory, or crash the process."""
    chains = outline_plan(plan).chains
    return is_small(plan) and not any(isinstance(transform, UserTransform) for chain in chains for transform in chain)


def read_local_blocks(pipeline: Pipeline, unit: int, offset: int, record: StatsRecorder) -> Iterator[LocalBlock]:
    meter = record.meter(0, "read beside the service")
    for delivered in InlineExecutor().run(pipeline, unit, offset):
        block = delivered.block
        meter.num_rows += block.num_rows
        meter.num_bytes += block.nbytes
        yield LocalBlock(delivered.unit, delivered.offset, block.num_rows, block.nbytes, block)
