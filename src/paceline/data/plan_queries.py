"""Queries on a plan: run it, and get its first rows, row count and schema.

Answers come without reading rows if possible: from the sources, and from transforms that can be inspected. Otherwise
the plan runs only as far as the answer needs.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from itertools import chain, islice
from typing import Any

from paceline.data.aggregate import AggregateFn, Count, finish_aggregates, plan_partial_aggregates
from paceline.data.barriers import Materialize, PreparedSource, RandomShuffle, Repartition, SliceRows, Sort, Zip
from paceline.data.block import Block, Schema
from paceline.data.context import DataContext
from paceline.data.exec.exchange import materialize_plan
from paceline.data.exec.inline_executor import InlineExecutor
from paceline.data.exec.lowering import lower_epoch
from paceline.data.exec.pipeline import Executor
from paceline.data.feeds import Feeds, LocalFeeds, is_small
from paceline.data.optimizer import known_types, optimize_plan, with_inputs
from paceline.data.plan import Map, PlanNode, Read, ReorderUnits, Union, walk
from paceline.data.sharding import RowDelivery
from paceline.data.transform import TransformScope
from paceline.data.transforms.columns import SelectColumns

Deliveries = Generator[RowDelivery, None, None]


def stream_deliveries(plan: PlanNode, epoch: int = 0) -> Deliveries:
    """Yield the rows of an epoch, in order. Closing the generator stops the work."""
    yield from LocalFeeds(plan).open(epoch, 0, 0)


def materialize_rows(plan: PlanNode) -> Read:
    """Compute and keep the rows of a plan, and return a plan that reads them."""
    read = materialize_plan(optimize_plan(plan), choose_executor(plan))
    return Read(PreparedSource(f"materialize({plan.name})", tuple(read.source.units()), find_schema(read)))


def choose_executor(plan: PlanNode) -> Executor:
    if DataContext.in_data_process or is_small(plan):
        return InlineExecutor()
    from paceline.data.exec.process_executor import ProcessExecutor, shared_service

    return ProcessExecutor(shared_service())


def stream_blocks(plan: PlanNode) -> Generator[Block, None, None]:
    """Yield the rows of the first epoch. Closing the generator stops the work."""
    return stream_feed_blocks(LocalFeeds(plan))


def stream_feed_blocks(feeds: Feeds) -> Generator[Block, None, None]:
    for delivered in feeds.open(0, 0, 0):
        yield delivered.block


def read_first_rows(feeds: Feeds, limit: int) -> Block:
    """Return at most `limit` rows. Reads no more than needed."""
    found: list[Block] = []
    left = limit
    with closing(stream_feed_blocks(feeds)) as stream:
        while left > 0 and (block := next(stream, None)) is not None:
            found.append(block.slice(0, left))
            left -= found[-1].num_rows
    return Block.concat(found)


def known_num_rows(plan: PlanNode) -> int | None:
    """Return the number of rows, if known without reading any."""
    match plan:
        case Read(source=source):
            return _sum_if_known([unit.num_rows for unit in source.units()])
        case Map(input=below, transform=transform):
            return known_num_rows(below) if transform.keeps_rows else None
        case SliceRows(input=below, start=start, stop=stop):
            num_rows = known_num_rows(below)
            return None if num_rows is None else len(range(num_rows)[start:stop])
        case ReorderUnits(input=below) | RandomShuffle(input=below) | Sort(input=below):
            return known_num_rows(below)
        case Repartition(input=below) | Materialize(input=below):
            return known_num_rows(below)
        case Union(parts=parts):
            return _sum_if_known([known_num_rows(part) for part in parts])
        case Zip(parts=parts):
            return next((num for num in map(known_num_rows, parts) if num is not None), None)
    return None


def count_rows(plan: PlanNode) -> int:
    """Count the rows, without running steps that only change their order or columns."""
    known = known_num_rows(plan)
    if known is not None:
        return known
    match plan:
        case Map(input=below, transform=transform) if transform.keeps_rows:
            return count_rows(below)
        case ReorderUnits(input=below) | RandomShuffle(input=below) | Sort(input=below) | Repartition(input=below):
            return count_rows(below)
        case Union(parts=parts):
            return sum(map(count_rows, parts))
    count = Count()
    return int(compute_aggregates(plan, [count])[count.name])


def compute_aggregates(plan: PlanNode, aggregates: Sequence[AggregateFn]) -> dict[str, Any]:
    """Compute aggregates over all rows. Returns a dict from name to value."""
    columns = [getattr(one, "on", None) for one in aggregates]
    if all(columns):  # read no other columns
        plan = Map(plan, SelectColumns(tuple(dict.fromkeys(map(str, columns)))))
    with closing(stream_deliveries(plan_partial_aggregates(plan, aggregates))) as states:
        return finish_aggregates(states, aggregates)


def find_schema(plan: PlanNode, executor: Executor | None = None) -> Schema | None:
    """Find the schema from the sources, or from the first block of the first unit. None if there are no rows.

    Groups and zipped rows have to be computed; `executor` is used for that.
    """
    types = known_types(plan)
    if types is not None and None not in types.values():
        return Schema(list(types), list(types.values()))
    plan = _without_reordering(plan)
    if not any(isinstance(node, Map) and node.transform.pool for node in walk(plan)):
        pipeline = lower_epoch(plan, 0, executor or choose_executor(plan))
        for task in pipeline.tasks:
            rows = islice((block for block in task.unit.read() if block.num_rows), 1)
            block = _first_block(rows, task.unit.name, pipeline.chains[task.chain])
            if block is not None:
                return block.schema
    found = read_first_rows(LocalFeeds(plan, executor), 1)
    return found.schema if found.columns else None


def _first_block(rows: Iterator[Block], unit: str, transforms: Sequence[Any]) -> Block | None:
    scope = TransformScope(unit)
    for transform in transforms:
        rows = transform.apply(rows, scope)
    return next((block for block in rows if block.columns), None)


def _without_reordering(plan: PlanNode) -> PlanNode:
    """Remove steps that only reorder or drop rows."""
    match plan:
        case ReorderUnits(input=below) | RandomShuffle(input=below) | Sort(input=below) | Repartition(input=below):
            return _without_reordering(below)
        case SliceRows(input=below) | Materialize(input=below):
            return _without_reordering(below)
    return with_inputs(plan, tuple(map(_without_reordering, plan.inputs)))


def estimate_bytes(plan: PlanNode) -> int | None:
    """Estimate the in-memory size of the rows that are read; None if unknown."""
    reads = (node for node in walk(plan) if isinstance(node, Read))
    return _sum_if_known([unit.num_bytes for read in reads for unit in read.source.units()])


def list_input_files(plan: PlanNode) -> list[str]:
    reads = (node for node in walk(plan) if isinstance(node, Read))
    files = chain.from_iterable(getattr(read.source, "files", ()) for read in reads)
    return list(dict.fromkeys(str(file.path) for file in files))


def _sum_if_known(numbers: Sequence[int | None]) -> int | None:
    return None if None in numbers else sum(number or 0 for number in numbers)
