"""Queries on a plan: run it, get its first rows, row count and schema, and explain it as text.

Answers come without reading rows if possible: from the sources, and from transforms that can be inspected. Otherwise
the plan runs only as far as the answer needs.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from itertools import chain, islice
from typing import Any

from paceline.data.aggregate import AggregateFn, Count, finish_aggregates, plan_partial_aggregates
from paceline.data.block import Block, Schema
from paceline.data.exec.exchange import materialize_plan
from paceline.data.exec.pipeline import Executor, lower_epoch, outline_plan
from paceline.data.order.feeds import Feeds, LocalFeeds
from paceline.data.order.sharding import RowDelivery
from paceline.data.planning.barriers import PreparedSource, SliceRows, Zip
from paceline.data.planning.optimizer import REORDERING, known_types, optimize_plan, with_inputs
from paceline.data.planning.plan import Barrier, Map, PlanNode, PoolSpec, Read, TransformScope, Union, walk
from paceline.data.transforms.columns import SelectColumns

Deliveries = Generator[RowDelivery, None, None]


def stream_deliveries(plan: PlanNode, unit: int = 0) -> Deliveries:
    """Yield the rows of the first epoch, in order, from a unit on. Closing the generator stops the work."""
    yield from LocalFeeds(plan).open(0, unit, 0)


def materialize_rows(plan: PlanNode) -> Read:
    read = materialize_plan(optimize_plan(plan), LocalFeeds(plan).executor())
    return Read(PreparedSource(f"materialize({plan.name})", tuple(read.source.units()), find_schema(read)))


def stream_feed_blocks(feeds: Feeds) -> Generator[Block, None, None]:
    for delivered in feeds.open(0, 0, 0):
        yield delivered.block


def read_first_rows(feeds: Feeds, limit: int) -> Block:
    """Return at most `limit` rows. Reads no more than needed."""
    blocks: list[Block] = []
    num_missing = limit
    with closing(stream_feed_blocks(feeds)) as stream:
        while num_missing > 0 and (block := next(stream, None)) is not None:
            blocks.append(block.slice(0, num_missing))
            num_missing -= blocks[-1].num_rows
    return Block.concat(blocks)


def known_num_rows(plan: PlanNode) -> int | None:
    match plan:
        case Read(source=source):
            return _sum_if_known([unit.num_rows for unit in source.units()])
        case Map(input=below, transform=transform):
            return known_num_rows(below) if transform.keeps_rows else None
        case SliceRows(input=below, start=start, stop=stop):
            num_rows = known_num_rows(below)
            return None if num_rows is None else len(range(num_rows)[start:stop])
        case Union(parts=parts):
            return _sum_if_known([known_num_rows(part) for part in parts])
        case Zip(parts=parts):
            return next((num for num in map(known_num_rows, parts) if num is not None), None)
    return known_num_rows(plan.inputs[0]) if isinstance(plan, REORDERING) else None


def count_rows(plan: PlanNode) -> int:
    """Count the rows, without running steps that only change their order or columns."""
    num_rows = known_num_rows(plan)
    if num_rows is not None:
        return num_rows
    if isinstance(plan, REORDERING) or (isinstance(plan, Map) and plan.transform.keeps_rows):
        return count_rows(plan.inputs[0])
    if isinstance(plan, Union):
        return sum(map(count_rows, plan.parts))
    count = Count()
    return int(compute_aggregates(plan, [count])[count.name])


def compute_aggregates(plan: PlanNode, aggregates: Sequence[AggregateFn]) -> dict[str, Any]:
    columns = [getattr(one, "on", None) for one in aggregates]
    if all(columns):  # read no other columns
        plan = Map(plan, SelectColumns(tuple(dict.fromkeys(map(str, columns)))))
    with closing(stream_deliveries(plan_partial_aggregates(plan, aggregates))) as states:
        return finish_aggregates(states, aggregates)


def find_schema(plan: PlanNode, executor: Executor | None = None) -> Schema | None:
    """Find the schema from the sources, or from the first block of the first unit. None if there are no rows.

    Groups and zipped rows have to be computed; `executor` is used for that.
    """
    known = find_known_schema(plan)
    if known is not None:
        return known
    plan = _without_reordering(plan)
    if not any(isinstance(node, Map) and node.transform.pool for node in walk(plan)):
        pipeline = lower_epoch(plan, 0, executor or LocalFeeds(plan).executor())
        for task in pipeline.tasks:
            rows = islice((block for block in task.unit.read() if block.num_rows), 1)
            block = _first_block(rows, task.unit.name, pipeline.chains[task.chain])
            if block is not None:
                return block.schema
    block = read_first_rows(LocalFeeds(plan, executor), 1)
    return block.schema if block.columns else None


def find_known_schema(plan: PlanNode) -> Schema | None:
    """Find the schema without reading rows; None if a type is unknown."""
    types = known_types(plan)
    return None if types is None or None in types.values() else Schema.from_columns(types, types.values())


def _first_block(rows: Iterator[Block], unit: str, transforms: Sequence[Any]) -> Block | None:
    scope = TransformScope(unit)
    for transform in transforms:
        rows = transform.apply(rows, scope)
    return next((block for block in rows if block.columns), None)


def _without_reordering(plan: PlanNode) -> PlanNode:
    if isinstance(plan, (*REORDERING, SliceRows)):
        return _without_reordering(plan.inputs[0])
    return with_inputs(plan, tuple(map(_without_reordering, plan.inputs)))


def estimate_bytes(plan: PlanNode) -> int | None:
    reads = (node for node in walk(plan) if isinstance(node, Read))
    return _sum_if_known([unit.num_bytes for read in reads for unit in read.source.units()])


def list_input_files(plan: PlanNode) -> list[str]:
    reads = (node for node in walk(plan) if isinstance(node, Read))
    files = chain.from_iterable(getattr(read.source, "files", ()) for read in reads)
    return list(dict.fromkeys(str(file.path) for file in files))


def _sum_if_known(numbers: Sequence[int | None]) -> int | None:
    return None if None in numbers else sum(number or 0 for number in numbers)


def explain_plan(plan: PlanNode) -> str:
    """Describe the plan as written, as optimized, and the stages that each unit passes through."""
    best = optimize_plan(plan)
    return "\n".join(["plan", *_draw_tree(plan, 1), "", "optimized", *_draw_tree(best, 1), "", *_explain_stages(best)])


def _explain_stages(plan: PlanNode) -> Iterator[str]:
    """Describe which processes run what, below and above each barrier."""
    barriers = [node for node in walk(plan) if isinstance(node, Barrier)]
    for barrier in barriers:
        for part in barrier.inputs:
            yield from _stage_lines(part, f"before {barrier.name}")
    yield from _stage_lines(plan, f"after {barriers[-1].name}" if barriers else "stages")


def _stage_lines(plan: PlanNode, title: str) -> Iterator[str]:
    pipeline = outline_plan(plan)
    barrier = next((node for node in reversed([*walk(plan)]) if isinstance(node, Barrier)), None)
    for number in dict.fromkeys(task.chain for task in pipeline.tasks):
        num_units = sum(task.chain == number for task in pipeline.tasks)
        units = f"{num_units} unit{'s' * (num_units != 1)}"
        if barrier is not None:
            units = f"the units of {barrier.name}"
        yield f"{title}: {units}"
        for stage in pipeline.stages(number):
            pool = stage.pool
            place = "in the reading processes" if pool is None else f"in {_format_pool(pool)}"
            yield f"  {' -> '.join(filter(None, ['read' * (pool is None), stage.name]))}, {place}"


def _format_pool(pool: PoolSpec) -> str:
    number = f"{pool.min_size}" if pool.min_size == pool.max_size else f"{pool.min_size} to {pool.max_size}"
    gpus = f", {pool.num_gpus:g} GPU each" if pool.num_gpus else ""
    return f"{number} dedicated process{'es' * (pool.max_size != 1)}{gpus}"


def _draw_tree(node: PlanNode, depth: int) -> Iterator[str]:
    yield f"{'  ' * depth}{node.name}"
    for part in node.inputs:
        yield from _draw_tree(part, depth + 1)
