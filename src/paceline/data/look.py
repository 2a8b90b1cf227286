"""Looking at a dataset: having its plan run, its first rows, how many there are, and what is in them.

What can be told without reading rows is told so: from what the sources know, and from the steps that can be looked
into. Only then is something run, and no more of it than the answer takes.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from itertools import chain, islice
from typing import Any

from paceline.data.aggregate import AggregateFn, Count, aggregated, partially
from paceline.data.barriers import Materialize, RandomShuffle, Ready, Repartition, Sliced, Sort, Zip
from paceline.data.block import Block, Schema
from paceline.data.context import DataContext
from paceline.data.exec.exchange import materialized
from paceline.data.exec.inline import InlineExecutor
from paceline.data.exec.lower import lowered_for
from paceline.data.exec.pipeline import Executor
from paceline.data.feeds import Feeds, LocalFeeds, is_small
from paceline.data.optimize import known_types, optimized, with_inputs
from paceline.data.plan import Map, Node, Read, Reorder, Union, walk
from paceline.data.position import Delivered
from paceline.data.transform import Scope
from paceline.data.transforms.columns import Select

Deliveries = Generator[Delivered, None, None]


def deliveries(plan: Node, epoch: int = 0) -> Deliveries:
    """The rows of an epoch, in order. To close the generator is to end the work."""
    yield from LocalFeeds(plan).open(epoch, 0, 0)


def kept(plan: Node) -> Read:
    """A plan of the same rows, computed now and kept."""
    read = materialized(optimized(plan), executor_for(plan))
    return Read(Ready(f"materialize({plan.name})", tuple(read.source.units()), schema_of(read)))


def executor_for(plan: Node) -> Executor:
    if DataContext.in_data_process or is_small(plan):
        return InlineExecutor()
    from paceline.data.exec.processes import ProcessExecutor, shared_service

    return ProcessExecutor(shared_service())


def blocks(plan: Node) -> Generator[Block, None, None]:
    """The rows of the first epoch; to close the generator is to end the work."""
    return taken(LocalFeeds(plan))


def taken(feeds: Feeds) -> Generator[Block, None, None]:
    for delivered in feeds.open(0, 0, 0):
        yield delivered.block


def first_rows(feeds: Feeds, limit: int) -> Block:
    """At most so many rows; no more is read than they take."""
    found: list[Block] = []
    left = limit
    with closing(taken(feeds)) as stream:
        while left > 0 and (block := next(stream, None)) is not None:
            found.append(block.slice(0, left))
            left -= found[-1].num_rows
    return Block.concat(found)


def known_rows(plan: Node) -> int | None:
    """How many rows there are, where that can be told without reading any."""
    match plan:
        case Read(source=source):
            return _sum([unit.num_rows for unit in source.units()])
        case Map(input=below, transform=transform):
            return known_rows(below) if transform.keeps_rows else None
        case Sliced(input=below, start=start, stop=stop):
            num_rows = known_rows(below)
            return None if num_rows is None else len(range(num_rows)[start:stop])
        case Reorder(input=below) | RandomShuffle(input=below) | Sort(input=below):
            return known_rows(below)
        case Repartition(input=below) | Materialize(input=below):
            return known_rows(below)
        case Union(parts=parts):
            return _sum([known_rows(part) for part in parts])
        case Zip(parts=parts):
            return next((num for num in map(known_rows, parts) if num is not None), None)
    return None


def num_rows(plan: Node) -> int:
    """How many rows there are; what only changes their order or their columns is left out where they are counted."""
    known = known_rows(plan)
    if known is not None:
        return known
    match plan:
        case Map(input=below, transform=transform) if transform.keeps_rows:
            return num_rows(below)
        case Reorder(input=below) | RandomShuffle(input=below) | Sort(input=below) | Repartition(input=below):
            return num_rows(below)
        case Union(parts=parts):
            return sum(map(num_rows, parts))
    count = Count()
    return int(aggregate(plan, [count])[count.name])


def aggregate(plan: Node, aggregates: Sequence[AggregateFn]) -> dict[str, Any]:
    """What aggregates make of all rows, by their names."""
    columns = [getattr(one, "on", None) for one in aggregates]
    if all(columns):  # no other columns need be read
        plan = Map(plan, Select(tuple(dict.fromkeys(map(str, columns)))))
    with closing(deliveries(partially(plan, aggregates))) as states:
        return aggregated(states, aggregates)


def schema_of(plan: Node, executor: Executor | None = None) -> Schema | None:
    """From the sources where they know it; else from the first block of the first unit. None: there are no rows.

    Groups and zipped rows have to be computed; the executor is for that.
    """
    types = known_types(plan)
    if types is not None and None not in types.values():
        return Schema(list(types), list(types.values()))
    plan = _unordered(plan)
    if not any(isinstance(node, Map) and node.transform.pool for node in walk(plan)):
        pipeline = lowered_for(plan, 0, executor or executor_for(plan))
        for task in pipeline.tasks:
            rows = islice((block for block in task.unit.read() if block.num_rows), 1)
            block = _first(rows, task.unit.name, pipeline.chains[task.chain])
            if block is not None:
                return block.schema
    found = first_rows(LocalFeeds(plan, executor), 1)
    return found.schema if found.columns else None


def _first(rows: Iterator[Block], unit: str, transforms: Sequence[Any]) -> Block | None:
    scope = Scope(unit)
    for transform in transforms:
        rows = transform.apply(rows, scope)
    return next((block for block in rows if block.columns), None)


def _unordered(plan: Node) -> Node:
    """Without the steps after which the rows are the same, or fewer of the same."""
    match plan:
        case Reorder(input=below) | RandomShuffle(input=below) | Sort(input=below) | Repartition(input=below):
            return _unordered(below)
        case Sliced(input=below) | Materialize(input=below):
            return _unordered(below)
    return with_inputs(plan, tuple(map(_unordered, plan.inputs)))


def num_bytes(plan: Node) -> int | None:
    """About how much memory the rows take that are read; None where nothing is known."""
    reads = (node for node in walk(plan) if isinstance(node, Read))
    return _sum([unit.num_bytes for read in reads for unit in read.source.units()])


def input_files(plan: Node) -> list[str]:
    reads = (node for node in walk(plan) if isinstance(node, Read))
    files = chain.from_iterable(getattr(read.source, "files", ()) for read in reads)
    return list(dict.fromkeys(str(file.path) for file in files))


def _sum(numbers: Sequence[int | None]) -> int | None:
    return None if None in numbers else sum(number or 0 for number in numbers)
