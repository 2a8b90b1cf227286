"""A served dataset: its facts, its blocks, and each worker's pieces of a block.

A small dataset without user code is read by the service itself: starting Ray Data would take far longer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import cloudpickle

from paceline._engine.ray.connection import import_ray
from paceline.data.block import Block
from paceline.data.exec.pipeline import (
    DatasetEntry,
    DatasetFacts,
    Executor,
    InlineExecutor,
    Pipeline,
    lower_epoch,
    outline_plan,
)
from paceline.data.exec.ray.block_stream import PlacedBlock, stream_blocks
from paceline.data.exec.ray.executor import RayExecutor
from paceline.data.exec.ray.ray_values import pack_for_ray
from paceline.data.exec.ray.serving.row_protocol import cut_block, ranks_of_block
from paceline.data.exec.ray.serving.shared_pass import PieceRows, WorkerPiece
from paceline.data.exec.stats import StatsRecorder
from paceline.data.order.feeds import is_small
from paceline.data.order.row_ownership import BlockSpan, EpochDivision
from paceline.data.planning.plan import PlanNode
from paceline.data.transforms.user_calls import UserTransform

Say = Callable[[str], None]


@dataclass
class ServedDataset(DatasetEntry):
    facts: dict[str, bytes] = field(default_factory=dict)
    """Facts computed in this attempt, cached because all workers ask for the same ones."""
    lowering: asyncio.Lock = field(default_factory=asyncio.Lock)
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)

    @cached_property
    def is_local(self) -> bool:
        return can_read_locally(self.plan)

    @property
    def executor(self) -> Executor:
        return InlineExecutor() if self.is_local else RayExecutor()

    async def fetch_fact(self, name: str) -> bytes:
        """Return a fact as a pickle."""
        async with self.asking:
            if name not in self.facts:
                self.facts[name] = await asyncio.to_thread(self._compute_fact, name)
            return self.facts[name]

    async def pipeline(self, epoch: int) -> Pipeline:
        async with self.lowering:
            if epoch not in self.pipelines:
                self.keep_pipeline(epoch, await asyncio.to_thread(lower_epoch, self.plan, epoch, self.executor))
            return self.pipelines[epoch]

    def _compute_fact(self, name: str) -> bytes:
        data: bytes = cloudpickle.dumps(getattr(DatasetFacts(self.plan, self.executor), name)())
        return data

    def stream_blocks(self, pipeline: Pipeline, unit: int, offset: int, say: Say) -> Iterator[PlacedBlock | LocalBlock]:
        if self.is_local:
            return read_local_blocks(pipeline, unit, offset, self.record)
        return stream_blocks(pipeline, unit, offset, record=self.record, say=say)


def make_pieces(
    division: EpochDivision, span: BlockSpan, block: PlacedBlock | LocalBlock, cut: Any
) -> Mapping[int, WorkerPiece]:
    """Each rank's piece of a block; `cut` is the Ray task that cuts blocks."""
    position = (block.unit, block.offset, block.num_rows)
    pieces = {rank: WorkerPiece(*position) for rank in range(division.world)}
    ranks, is_whole = ranks_of_block(division, span)
    if is_whole:
        ref = import_ray().put(pack_for_ray(block.block)) if isinstance(block, LocalBlock) else block.ref
        shared = PieceRows(block.num_bytes, ref)
        return pieces | {rank: WorkerPiece(*position, shared, is_whole) for rank in ranks}
    if not ranks:
        refs = []
    elif isinstance(block, LocalBlock):
        refs = [import_ray().put(piece) for piece in cut_block(block.block, division, span, ranks)]
    else:
        # Ray runs it where the block is. It requests no core: the workers that wait for it may hold them all.
        refs = cut.options(num_cpus=0, num_returns=len(ranks)).remote(block.ref, division, span, ranks)
        refs = refs if isinstance(refs, list) else [refs]
    # Their sizes are not known before they are cut, and the ranks' parts are about equal.
    num_bytes = -(-block.num_bytes // max(len(ranks), 1))
    return pieces | {
        rank: WorkerPiece(*position, PieceRows(num_bytes, ref)) for rank, ref in zip(ranks, refs, strict=True)
    }


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
