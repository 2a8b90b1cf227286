"""A served dataset: its facts, its blocks, and each worker's pieces of a block."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import cloudpickle

from paceline._engine.ray.connection import import_ray
from paceline.data.exec.inline_executor import InlineExecutor
from paceline.data.exec.lowering import DatasetFacts, lower_epoch
from paceline.data.exec.pipeline import Executor, Pipeline
from paceline.data.exec.ray.block_cutting import cut_block, ranks_of_block
from paceline.data.exec.ray.block_stream import PlacedBlock, stream_blocks
from paceline.data.exec.ray.executor import RayExecutor
from paceline.data.exec.ray.local_blocks import LocalBlock, can_read_locally, read_local_blocks
from paceline.data.exec.ray.ray_values import pack_for_ray
from paceline.data.exec.ray.shared_pass import WorkerPiece
from paceline.data.exec.stats import StatsRecorder
from paceline.data.plan import PlanNode
from paceline.data.row_ownership import BlockSpan, EpochDivision

EPOCHS_KEPT = 2

Say = Callable[[str], None]


@dataclass
class ServedDataset:
    """A dataset while it is served."""

    plan: PlanNode
    record: StatsRecorder = field(default_factory=StatsRecorder)
    pipelines: dict[int, Pipeline] = field(default_factory=dict)
    """By epoch."""
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

    async def fetch_fact(self, what: str) -> bytes:
        """Return a fact as a pickle."""
        async with self.asking:
            if what not in self.facts:
                self.facts[what] = await asyncio.to_thread(self._compute_fact, what)
            return self.facts[what]

    async def pipeline(self, epoch: int) -> Pipeline:
        async with self.lowering:
            if epoch not in self.pipelines:
                self.pipelines[epoch] = await asyncio.to_thread(lower_epoch, self.plan, epoch, self.executor)
                for old in sorted(self.pipelines)[:-EPOCHS_KEPT]:
                    if old != epoch:
                        del self.pipelines[old]
            return self.pipelines[epoch]

    def _compute_fact(self, what: str) -> bytes:
        data: bytes = cloudpickle.dumps(getattr(DatasetFacts(self.plan, self.executor), what)())
        return data

    def stream_blocks(self, pipeline: Pipeline, unit: int, offset: int, say: Say) -> Iterator[PlacedBlock | LocalBlock]:
        if self.is_local:
            return read_local_blocks(pipeline, unit, offset, self.record)
        return stream_blocks(pipeline, unit, offset, record=self.record, say=say)


def make_pieces(
    division: EpochDivision, span: BlockSpan, block: PlacedBlock | LocalBlock, cut: Any
) -> Mapping[int, WorkerPiece]:
    """Each rank's piece of a block; `cut` is the Ray task that cuts blocks."""
    at = (block.unit, block.offset, block.num_rows)
    pieces = {rank: WorkerPiece(*at) for rank in range(division.world)}
    ranks, whole = ranks_of_block(division, span)
    if whole:
        ref = import_ray().put(pack_for_ray(block.block)) if isinstance(block, LocalBlock) else block.ref
        refs = [ref] * len(ranks)
    elif not ranks:
        refs = []
    elif isinstance(block, LocalBlock):
        refs = [import_ray().put(sent) for sent in cut_block(block.block, division, span, ranks)]
    else:
        # Ray runs it where the block is. It requests no core: the workers that wait for it may hold them all.
        refs = cut.options(num_cpus=0, num_returns=len(ranks)).remote(block.ref, division, span, ranks)
        refs = refs if isinstance(refs, list) else [refs]
    return pieces | {rank: WorkerPiece(*at, ref, whole) for rank, ref in zip(ranks, refs, strict=True)}
