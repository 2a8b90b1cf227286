"""Units from frames in memory, and plans of them: what the tests of barriers read."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from hypothesis import strategies as st
from made_datasets import ListedUnit

from paceline.data.block import Block
from paceline.data.context import DataContext
from paceline.data.exec.exchange import resolve_barrier
from paceline.data.exec.pipeline import Executor, InlineExecutor, Pipeline, lower_plan
from paceline.data.order.sharding import RowDelivery
from paceline.data.planning.barriers import PreparedSource
from paceline.data.planning.plan import PlanNode, Read


def reading(blocks: Sequence[Block | Sequence[Block]], *, counted: bool = True) -> PlanNode:
    """A plan with a unit for each block, or list of blocks."""
    units = [
        ListedUnit(f"unit {number}", (part,) if isinstance(part, Block) else tuple(part), counted)
        for number, part in enumerate(blocks)
    ]
    return Read(PreparedSource("frames", tuple(units)))


def cut(block: Block, places: Sequence[int]) -> list[Block]:
    ends = sorted(min(place, block.num_rows) for place in places)
    return [block.slice(begin, end) for begin, end in zip([0, *ends], [*ends, block.num_rows], strict=True)]


class BackwardsExecutor:
    """Does the last unit first, and hands out in order."""

    def run(self, pipeline: Pipeline, unit: int = 0, offset: int = 0) -> Iterator[RowDelivery]:
        done: list[RowDelivery] = []
        for index in reversed(range(unit, len(pipeline.tasks))):
            one = Pipeline((pipeline.tasks[index],), pipeline.chains)
            skip = offset if index == unit else 0
            found = [RowDelivery(index, d.offset, d.block) for d in InlineExecutor().run(one, 0, skip)]
            done = found + done
        yield from done


def run(plan: PlanNode, epoch: int = 0, executor: Executor | None = None) -> list[Block]:
    executor = executor or InlineExecutor()
    pipeline = lower_plan(plan, epoch, lambda barrier, at: resolve_barrier(barrier, at, executor))
    return [delivery.block for delivery in executor.run(pipeline)]


def rows(plan: PlanNode, epoch: int = 0, executor: Executor | None = None) -> list[dict[str, Any]]:
    return [row for block in run(plan, epoch, executor) for row in block.rows()]


# What properties are checked on: keys with few values, so that many are equal, and everything that can be missing.

_INTS = st.integers(-2, 2)
_FLOATS = st.sampled_from([None, math.nan, -1.5, -0.0, 0.0, 2.5, 1e9])
_TEXTS = st.sampled_from([None, "", "a", "b", "ab", "é", "z"])


@dataclass(frozen=True)
class Table:
    """Rows with an id, cut into units; and how they are exchanged."""

    rows: tuple[dict[str, Any], ...]
    cuts: tuple[int, ...]
    part_bytes: int
    budget: int
    counted: bool

    @property
    def plan(self) -> PlanNode:
        context = DataContext.get_current()
        context.target_max_block_size = self.part_bytes
        context.execution_options.resource_limits.object_store_memory = self.budget
        ends = sorted(min(place, len(self.rows)) for place in self.cuts)
        spans = zip([0, *ends], [*ends, len(self.rows)], strict=True)
        return reading([Block.from_rows(self.rows[begin:end]) for begin, end in spans], counted=self.counted)

    @property
    def frame(self) -> pd.DataFrame:
        columns = {name: [row[name] for row in self.rows] for name in ("id", "i", "f", "s")}
        kinds = {"id": "int64", "i": "int64", "f": "float64", "s": "object"}
        return pd.DataFrame({name: pd.Series(values, dtype=kinds[name]) for name, values in columns.items()})


@st.composite
def tables(draw: st.DrawFn, max_rows: int = 30) -> Table:
    values = draw(st.lists(st.tuples(_INTS, _FLOATS, _TEXTS), max_size=max_rows))
    found = tuple({"id": index, "i": i, "f": f, "s": s} for index, (i, f, s) in enumerate(values))
    return Table(
        found,
        tuple(draw(st.lists(st.integers(0, max_rows), max_size=4))),
        part_bytes=draw(st.sampled_from([64, 300, 32 << 20])),
        budget=draw(st.sampled_from([0, 1000, 1 << 30])),
        counted=draw(st.booleans()),
    )
