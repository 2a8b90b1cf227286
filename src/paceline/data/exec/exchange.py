"""Brings the rows of a barrier's inputs together: runs them with their rows set aside, and makes new units of those.

Rows never pass through the process that resolves the barrier. It gets receipts, decides from the arranged rows where
the new units begin and end, and each of those reads its own pieces when its turn comes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Protocol, runtime_checkable

from paceline.data.barriers import (
    GroupBy,
    GroupRows,
    Materialize,
    RandomShuffle,
    Ready,
    Repartition,
    Sliced,
    Sort,
    Zip,
)
from paceline.data.block import Block
from paceline.data.context import DataContext
from paceline.data.exec import bounds, spill
from paceline.data.exec.pipeline import Executor, Pipeline, Task, lowered
from paceline.data.exec.scatter import (
    HASH,
    Arranged,
    Arrangement,
    Aside,
    AsTheyCome,
    ByHash,
    ByKeys,
    Chained,
    Chunk,
    Cut,
    Gathered,
    Renamed,
    Scatter,
    Through,
    Zipped,
    chunks_of,
)
from paceline.data.exec.spill import Held
from paceline.data.groups import Combined
from paceline.data.keys import Keys
from paceline.data.plan import Barrier, Node, Read
from paceline.data.source import Unit

_ENOUGH_PARTS = 16
_LEAST_PART = 8 << 20
_CHUNK = 32 << 20
"""So many bytes of rows are arranged at a time."""


def resolved(barrier: Barrier, epoch: int, executor: Executor) -> Sequence[Unit]:
    """The units of a barrier, for an epoch. They keep what they read from for as long as somebody has them."""
    run = _Run(epoch, executor)
    match barrier:
        case RandomShuffle(input=part, seed=seed, every_epoch=every_epoch):
            return run.shuffled(part, ByHash(seed, epoch if every_epoch else 0), barrier.name)
        case Sort(input=part, keys=keys, descending=descending):
            by = Keys(keys, descending)
            return _ranges(run.exchanged(part, ByKeys(by)), by, barrier.name, ByKeys(by), may_split=True)
        case GroupRows(input=part, keys=keys):
            by = Keys.ascending(keys)
            return _ranges(run.exchanged(part, ByKeys(by)), by, barrier.name, ByKeys(by))
        case GroupBy(input=part, keys=keys, aggregates=aggregates):
            by, combined = Keys.ascending(keys), Combined(Keys.ascending(keys), aggregates)
            units = _ranges(run.exchanged(part, combined), by, barrier.name, combined)
            return [replace(unit, num_rows=None) for unit in units]  # there are fewer groups than states
        case Repartition(shuffle=True, input=part, seed=seed):
            return run.shuffled(part, ByHash(seed, epoch), barrier.name, barrier)
        case Repartition():
            return run.repartitioned(barrier)
        case Zip(parts=parts):
            return _zipped([run.exchanged(part, AsTheyCome()) for part in parts], barrier.name)
        case Sliced():
            return run.sliced(barrier)
        case Materialize(input=part):
            return _kept(run.exchanged(part, AsTheyCome()), barrier.name)
    raise TypeError(f"{type(barrier).__name__} is no barrier that can be resolved")


def materialized(plan: Node, executor: Executor, epoch: int = 0) -> Read:
    """A plan of the rows that another one gives, computed now and kept."""
    return Read(Ready(f"materialize({plan.name})", tuple(resolved(Materialize(plan), epoch, executor))))


@dataclass(frozen=True)
class Exchanged:
    """All rows of a plan, set aside: chunks in the order of their units."""

    chunks: tuple[Chunk, ...]
    held: Held

    @property
    def num_rows(self) -> int:
        return sum(chunk.num_rows for chunk in self.chunks)

    @property
    def num_bytes(self) -> int:
        return sum(chunk.num_bytes for chunk in self.chunks)

    @property
    def num_parts(self) -> int:
        """As few as can be, once there are enough to keep all processes busy to the end."""
        largest = DataContext.get_current().target_max_block_size
        return max(1, -(-self.num_bytes // largest), min(_ENOUGH_PARTS, self.num_bytes // _LEAST_PART))

    def columns(self, names: Sequence[str]) -> list[Block]:
        """Of each chunk at least these columns, to look at."""
        return [chunk.piece.load() for chunk in self.chunks]

    def divided(self, cuts: Sequence[Sequence[int]]) -> list[list[Aside]]:
        """What lies between two cuts of all chunks, for each of the parts."""
        return [
            [
                chunk.part(ends[part], ends[part + 1])
                for chunk, ends in zip(self.chunks, cuts, strict=True)
                if ends[part] < ends[part + 1]
            ]
            for part in range(len(cuts[0]) - 1 if cuts else 0)
        ]

    def unit(self, name: str, pieces: Sequence[Aside], arrangement: Arrangement | None = None) -> Gathered:
        num_rows = sum(piece.num_rows for piece in pieces)
        num_bytes = self.num_bytes * num_rows // max(self.num_rows, 1)
        return Gathered(name, num_rows, num_bytes, tuple(pieces), self.held, arrangement)


@runtime_checkable
class SetsAside(Protocol):
    """An executor with a place of its own for rows: one that all its processes reach."""

    def set_aside(self, pipeline: Pipeline, at_most: int | None) -> Exchanged:
        """Keep all blocks that come of a pipeline; no further than to the end of the first `at_most` rows."""
        ...


@dataclass(frozen=True)
class _Run:
    epoch: int
    executor: Executor

    def lowered(self, plan: Node) -> Pipeline:
        return lowered(plan, self.epoch, lambda barrier, epoch: resolved(barrier, epoch, self.executor))

    def exchanged(self, plan: Node, arrangement: Arrangement) -> Exchanged:
        return self.set_aside(self.lowered(plan), arrangement)

    def set_aside(self, pipeline: Pipeline, arrangement: Arrangement, at_most: int | None = None) -> Exchanged:
        """Run a pipeline for its rows; no further than to the end of the first `at_most` of them."""
        context = DataContext.get_current()
        tasks = _told_apart(pipeline.tasks)
        places = {task.unit.name: place for place, task in enumerate(tasks)}
        chunk_bytes = min(_CHUNK, context.target_max_block_size)
        if isinstance(self.executor, SetsAside):
            arranged = Arranged(places, arrangement, chunk_bytes, at_most)
            pipeline = Pipeline(tasks, tuple((*chain, arranged) for chain in pipeline.chains))
            return self.executor.set_aside(pipeline, at_most)
        stores, held = spill.opened(len(tasks), context.budget // 2, context.spill_path)
        scatter = Scatter(stores, places, arrangement, chunk_bytes, at_most)
        pipeline = Pipeline(tasks, tuple((*chain, scatter) for chain in pipeline.chains))
        chunks: list[Chunk] = []
        try:
            if at_most != 0:
                with closing(self.executor.run(pipeline)) as receipts:  # type: ignore[type-var]
                    for delivery in receipts:
                        chunks += chunks_of(delivery.block, stores)
                        if at_most is not None and sum(chunk.num_rows for chunk in chunks) >= at_most:
                            break
        except BaseException:
            held.close()
            raise
        return Exchanged(tuple(chunks), held)

    def shuffled(self, plan: Node, by: ByHash, name: str, repartition: Repartition | None = None) -> Sequence[Gathered]:
        """Parts of equal size, whatever the hashes: a dataset's units are then alike in all epochs."""
        exchanged = self.exchanged(plan, by)
        num_rows = exchanged.num_rows
        if not num_rows and repartition is None:
            return []
        ends = bounds.even(num_rows, exchanged.num_parts) if repartition is None else bounds.ends(num_rows, repartition)
        hashes = [block.column(HASH) for block in exchanged.columns([HASH])]
        return _cut(exchanged, bounds.hash_cuts(hashes, ends), name, by)

    def repartitioned(self, barrier: Repartition) -> Sequence[Unit]:
        pipeline = self.lowered(barrier.input)
        if (units := _known(pipeline)) is not None:
            ends = bounds.ends(sum(unit.num_rows or 0 for unit in units), barrier)
            # Many pieces of one unit would each read it from its beginning.
            if len(ends) <= len(units):
                return [
                    Chained(_numbered(barrier.name, number, len(ends)), tuple(_cut_units(units, begin, end)))
                    for number, (begin, end) in enumerate(pairwise([0, *ends]))
                ]
        exchanged = self.set_aside(pipeline, AsTheyCome())
        ends = bounds.ends(exchanged.num_rows, barrier)
        return [
            exchanged.unit(_numbered(barrier.name, number, len(ends)), bounds.rows(exchanged.chunks, begin, end))
            for number, (begin, end) in enumerate(pairwise([0, *ends]))
        ]

    def sliced(self, barrier: Sliced) -> Sequence[Unit]:
        pipeline = self.lowered(barrier.input)
        if (units := _known(pipeline)) is not None:
            return list(_cut_units(units, barrier.start, barrier.stop))
        exchanged = self.set_aside(pipeline, AsTheyCome(), at_most=barrier.stop)
        stop = exchanged.num_rows if barrier.stop is None else barrier.stop
        pieces = bounds.rows(exchanged.chunks, barrier.start, stop)
        return [
            exchanged.unit(_numbered(barrier.name, number, len(pieces)), [piece]) for number, piece in enumerate(pieces)
        ]


def _told_apart(tasks: Iterable[Task]) -> tuple[Task, ...]:
    """The same tasks under names of which no two are equal: a transform knows a unit by its name only."""
    seen: Counter[str] = Counter()
    told = []
    for task in tasks:
        name = task.unit.name
        while seen[name]:
            seen[task.unit.name] += 1
            name = f"{task.unit.name} [{seen[task.unit.name]}]"
        seen[name] += 1
        told.append(task if name == task.unit.name else replace(task, unit=Renamed(task.unit, name)))
    return tuple(told)


def _known(pipeline: Pipeline) -> list[Unit] | None:
    """The units with what is done to them, if it is known how many rows each gives and that takes no processes."""
    units: list[Unit] = []
    for task in pipeline.tasks:
        chain = pipeline.chains[task.chain]
        if task.unit.num_rows is None or not all(t.keeps_rows and t.pool is None for t in chain):
            return None
        units.append(Through(task.unit, chain) if chain else task.unit)
    return units


def _cut_units(units: Sequence[Unit], start: int, stop: int | None) -> Iterable[Unit]:
    passed = 0
    for unit in units:
        num_rows = unit.num_rows or 0
        begin, end = max(start - passed, 0), num_rows if stop is None else min(stop - passed, num_rows)
        if begin < end:
            yield unit if (begin, end) == (0, num_rows) else Cut(unit, begin, end)
        passed += num_rows


def _ranges(
    exchanged: Exchanged, keys: Keys, name: str, arrangement: Arrangement, *, may_split: bool = False
) -> list[Gathered]:
    """Parts of rows from one key to another; rows of equal keys stay together unless they may be split."""
    if not exchanged.chunks:
        return []
    chunks = exchanged.columns(keys.names)
    try:
        cuts = bounds.key_cuts(chunks, keys, exchanged.num_parts, may_split=may_split)
    except TypeError as error:
        raise TypeError(f"{name}: the values of the keys cannot be compared with each other: {error}") from error
    return _cut(exchanged, cuts, name, arrangement)


def _cut(exchanged: Exchanged, cuts: Sequence[Sequence[int]], name: str, arrangement: Arrangement) -> list[Gathered]:
    """Units of what lies between two cuts of all chunks."""
    parts = exchanged.divided(cuts)
    return [
        exchanged.unit(_numbered(name, number, len(parts)), pieces, arrangement) for number, pieces in enumerate(parts)
    ]


def _zipped(sides: Sequence[Exchanged], name: str) -> Sequence[Unit]:
    counts = [side.num_rows for side in sides]
    if len(set(counts)) > 1:
        raise ValueError(
            f"zip: the datasets have {' and '.join(map(str, counts))} rows, but each row needs one beside it\n\n"
            "hint: limit() cuts the longer one"
        )
    num_parts = max((side.num_parts for side in sides), default=1)
    num_bytes = sum(side.num_bytes for side in sides)
    held = tuple(side.held for side in sides)
    return [
        Zipped(
            _numbered(name, part, num_parts),
            end - begin,
            num_bytes // num_parts,
            tuple(tuple(bounds.rows(side.chunks, begin, end)) for side in sides),
            held,
        )
        for part, (begin, end) in enumerate(pairwise([0, *bounds.even(counts[0], num_parts)]))
        if begin < end
    ]


def _kept(exchanged: Exchanged, name: str) -> list[Gathered]:
    """A unit for each that there was, without those that gave no rows."""
    places = [list(chunks) for _, chunks in groupby(exchanged.chunks, key=lambda chunk: chunk.place)]
    return [
        exchanged.unit(_numbered(name, number, len(places)), [chunk.piece for chunk in chunks])
        for number, chunks in enumerate(places)
    ]


def _numbered(name: str, number: int, count: int) -> str:
    return f"{name} {number + 1} of {count}"
