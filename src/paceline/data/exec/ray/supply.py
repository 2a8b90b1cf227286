"""A dataset that is served: what is known of it, its blocks, and what each worker is given of a block."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import cloudpickle

from paceline._engine.ray.connect import imported
from paceline.data.exec.inline import InlineExecutor
from paceline.data.exec.lower import Facts, lowered_for
from paceline.data.exec.pipeline import Executor, Pipeline
from paceline.data.exec.ray.blocks import Placed, blocks_of
from paceline.data.exec.ray.cut import cut_up, shared_by
from paceline.data.exec.ray.executor import RayExecutor
from paceline.data.exec.ray.near import Near, is_near, near_blocks
from paceline.data.exec.ray.sharing import Piece
from paceline.data.exec.ray.values import packed
from paceline.data.exec.stats import Record
from paceline.data.parts import Division, Span
from paceline.data.plan import Node

EPOCHS_KEPT = 2

Say = Callable[[str], None]


@dataclass
class Supply:
    """A dataset, for as long as it is served."""

    plan: Node
    record: Record = field(default_factory=Record)
    pipelines: dict[int, Pipeline] = field(default_factory=dict)
    """By epoch."""
    facts: dict[str, bytes] = field(default_factory=dict)
    """What was asked in this attempt: all workers ask the same."""
    lowering: asyncio.Lock = field(default_factory=asyncio.Lock)
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)

    @cached_property
    def is_near(self) -> bool:
        return is_near(self.plan)

    @property
    def executor(self) -> Executor:
        return InlineExecutor() if self.is_near else RayExecutor()

    async def known(self, what: str) -> bytes:
        """A fact as a pickle."""
        async with self.asking:
            if what not in self.facts:
                self.facts[what] = await asyncio.to_thread(self._fact, what)
            return self.facts[what]

    async def pipeline(self, epoch: int) -> Pipeline:
        async with self.lowering:
            if epoch not in self.pipelines:
                self.pipelines[epoch] = await asyncio.to_thread(lowered_for, self.plan, epoch, self.executor)
                for old in sorted(self.pipelines)[:-EPOCHS_KEPT]:
                    if old != epoch:
                        del self.pipelines[old]
            return self.pipelines[epoch]

    def _fact(self, what: str) -> bytes:
        data: bytes = cloudpickle.dumps(getattr(Facts(self.plan, self.executor), what)())
        return data

    def blocks(self, pipeline: Pipeline, unit: int, offset: int, say: Say) -> Iterator[Placed | Near]:
        if self.is_near:
            return near_blocks(pipeline, unit, offset, self.record)
        return blocks_of(pipeline, unit, offset, record=self.record, say=say)


def pieces_of(division: Division, span: Span, block: Placed | Near, cut: Any) -> Mapping[int, Piece]:
    """What each rank is given of a block; `cut` is the task that cuts one."""
    at = (block.unit, block.offset, block.num_rows)
    pieces = {rank: Piece(*at) for rank in range(division.world)}
    ranks, whole = shared_by(division, span)
    if whole:
        ref = imported().put(packed(block.block)) if isinstance(block, Near) else block.ref
        refs = [ref] * len(ranks)
    elif not ranks:
        refs = []
    elif isinstance(block, Near):
        refs = [imported().put(sent) for sent in cut_up(block.block, division, span, ranks)]
    else:
        # Ray runs it where the block lies. It asks for no core, as all may be taken by the workers who wait for it.
        refs = cut.options(num_cpus=0, num_returns=len(ranks)).remote(block.ref, division, span, ranks)
        refs = refs if isinstance(refs, list) else [refs]
    return pieces | {rank: Piece(*at, ref, whole) for rank, ref in zip(ranks, refs, strict=True)}
