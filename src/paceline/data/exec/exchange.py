"""Resolves barriers: runs their inputs, stores the resulting rows, and makes new units from them.

Rows never pass through the process that resolves the barrier. It gets receipts, decides from the arranged rows where
the new units begin and end, and each new unit reads its own pieces when its turn comes.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import accumulate, groupby, pairwise
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from paceline.data.block import Block, TensorType
from paceline.data.context import DataContext
from paceline.data.exec import scatter, spill
from paceline.data.exec.joined_units import JoinedUnit, JoinSide, OrderByKeyHash
from paceline.data.exec.mixed_units import MixedUnit
from paceline.data.exec.pipeline import Executor, Pipeline, PipelineTask, lower_plan
from paceline.data.exec.spill import SpillHandle
from paceline.data.planning import barriers
from paceline.data.planning.group_aggregation import GroupAggregation
from paceline.data.planning.mix_pattern import arrange_mix, cut_spans
from paceline.data.planning.optimizer import known_types
from paceline.data.planning.plan import Barrier, PlanNode, Read, Unit
from paceline.data.planning.sort_keys import SortKeys, null_last_key

_ENOUGH_PARTS = 16
_SAMPLES = 20
"""Rows sampled per future part to find where it begins."""
_MAX_CUTS = 4
"""Into how many parts of a mix a unit is cut on average, so that a dataset of few files does not limit the others."""
_MIN_PART_BYTES = 8 << 20
_CHUNK_BYTES = 16 << 20
"""How many bytes of rows are arranged at a time."""
_RANGE_BYTES = 16 << 20
"""How many bytes of a new unit are joined and sorted at a time."""

Ranges = list[list[scatter.StoredRows]]
"""The stored rows of each range of a part."""


def resolve_barrier(barrier: Barrier, epoch: int, executor: Executor) -> Sequence[Unit]:
    """Return the units of a barrier for an epoch. They keep the stored rows alive while somebody references them."""
    run = _BarrierResolver(epoch, executor)
    match barrier:
        case barriers.RandomShuffle(input=part, seed=seed, every_epoch=every_epoch, num_blocks=num_blocks):
            by_hash = scatter.OrderByHash(seed, epoch if every_epoch else 0)
            repartition = None if num_blocks is None else barriers.Repartition(part, num_blocks)
            return run.shuffle_rows(part, by_hash, barrier.name, repartition)
        case barriers.Sort(input=part, keys=keys, descending=descending, boundaries=boundaries):
            by = SortKeys(keys, descending)
            return _cut_by_keys(
                run.exchange_rows(part, scatter.OrderByKeys(by)),
                by,
                barrier.name,
                scatter.OrderByKeys(by),
                may_split=True,
                boundaries=boundaries,
            )
        case barriers.GroupRows(input=part, keys=keys, num_partitions=num_parts):
            by = SortKeys.ascending(keys)
            order = scatter.OrderByKeys(by)
            return _cut_by_keys(run.exchange_rows(part, order), by, barrier.name, order, num_parts)
        case barriers.GroupBy(input=part, keys=keys, aggregates=aggregates, num_partitions=num_parts):
            by, combined = SortKeys.ascending(keys), GroupAggregation(SortKeys.ascending(keys), aggregates)
            units = _cut_by_keys(run.exchange_rows(part, combined), by, barrier.name, combined, num_parts)
            return [replace(unit, num_rows=None) for unit in units]  # fewer groups than partial states
        case barriers.Repartition(shuffle=True, input=part, seed=seed):
            return run.shuffle_rows(part, scatter.OrderByHash(seed, epoch), barrier.name, barrier)
        case barriers.Repartition(keys=(_, *_), num_blocks=int() as num_blocks):
            by_key = OrderByKeyHash(barrier.keys, sort=barrier.sort)
            exchanged = run.exchange_rows(barrier.input, by_key)
            return [
                exchanged.make_unit(_part_name(barrier.name, number, num_blocks), ranges, by_key)
                for number, ranges in enumerate(_divide_by_hash(exchanged, num_blocks))
            ]
        case barriers.Repartition():
            return run.repartition_rows(barrier)
        case barriers.Zip(parts=parts):
            return _zip_units([run.exchange_rows(part, scatter.PreserveOrder()) for part in parts], barrier.name)
        case barriers.Join():
            return run.join_rows(barrier)
        case barriers.Mix():
            return run.mix_rows(barrier)
        case barriers.SliceRows():
            return run.slice_rows(barrier)
        case barriers.Materialize(input=part):
            return _materialize_units(run.exchange_rows(part, scatter.PreserveOrder()), barrier.name)
    raise TypeError(f"{type(barrier).__name__} is not a barrier that can be resolved")


def materialize_plan(plan: PlanNode, executor: Executor, epoch: int = 0) -> Read:
    """Compute the rows of a plan now, and return a plan that reads the stored rows."""
    return Read(
        barriers.PreparedSource(
            f"materialize({plan.name})", tuple(resolve_barrier(barriers.Materialize(plan), epoch, executor))
        )
    )


@dataclass(frozen=True)
class ExchangedRows:
    """All rows of a plan, stored as chunks in the order of their units."""

    chunks: tuple[scatter.StoredChunk, ...]
    spill_handle: SpillHandle

    @property
    def num_rows(self) -> int:
        return sum(chunk.num_rows for chunk in self.chunks)

    @property
    def num_bytes(self) -> int:
        return sum(chunk.num_bytes for chunk in self.chunks)

    @property
    def num_parts(self) -> int:
        return choose_num_parts(self.num_bytes)

    def load_columns(self, names: Sequence[str]) -> list[Block]:
        """Load at least these columns of each chunk."""
        return [
            piece.load_columns(names) if isinstance(piece := chunk.piece, spill.SpilledPiece) else piece.load()
            for chunk in self.chunks
        ]

    def divide(self, cuts: Sequence[Sequence[int]]) -> list[list[scatter.StoredRows]]:
        """For each part, the rows between its two cuts in every chunk."""
        return [
            [
                chunk.part(ends[part], ends[part + 1])
                for chunk, ends in zip(self.chunks, cuts, strict=True)
                if ends[part] < ends[part + 1]
            ]
            for part in range(len(cuts[0]) - 1 if cuts else 0)
        ]

    def divide_into_ranges(self, cuts: Sequence[Sequence[int]], num_ranges: int) -> list[Ranges]:
        """For each part, its ranges: the rows between two cuts in every chunk. A part has `num_ranges` of them."""
        part_cuts = [[*ends[:-1:num_ranges], ends[-1]] for ends in cuts]
        parts = []
        for part, pieces in enumerate(self.divide(part_cuts)):
            piece_of = iter(pieces)
            ranges: Ranges = [[] for _ in range(num_ranges)]
            for ends, of_part in zip(cuts, part_cuts, strict=True):
                first, last = of_part[part], of_part[part + 1]
                if first == last:
                    continue
                piece = next(piece_of)
                for number, (begin, end) in enumerate(pairwise(ends[part * num_ranges :][: num_ranges + 1])):
                    if begin < end:
                        ranges[number].append(piece.part(begin - first, end - first))
            parts.append(ranges)
        return parts

    def make_unit(
        self,
        name: str,
        ranges: Sequence[Sequence[scatter.StoredRows]],
        arrangement: scatter.RowArrangement | None = None,
    ) -> scatter.GatheredUnit:
        num_rows = sum(piece.num_rows for pieces in ranges for piece in pieces)
        num_bytes = self.num_bytes * num_rows // max(self.num_rows, 1)
        of_ranges = tuple(map(tuple, ranges))
        return scatter.GatheredUnit(name, num_rows, num_bytes, of_ranges, self.spill_handle, arrangement)


@runtime_checkable
class StoringExecutor(Protocol):
    """An executor with its own storage for rows, which all its processes can reach."""

    def store_rows(self, pipeline: Pipeline, at_most: int | None) -> ExchangedRows:
        """Store all blocks of a pipeline; stop once the first `at_most` rows are complete."""
        ...


@dataclass(frozen=True)
class _BarrierResolver:
    epoch: int
    executor: Executor

    def lower(self, plan: PlanNode) -> Pipeline:
        return lower_plan(plan, self.epoch, lambda barrier, epoch: resolve_barrier(barrier, epoch, self.executor))

    def exchange_rows(self, plan: PlanNode, arrangement: scatter.RowArrangement) -> ExchangedRows:
        return self.store_arranged(self.lower(plan), arrangement)

    def store_arranged(
        self, pipeline: Pipeline, arrangement: scatter.RowArrangement, at_most: int | None = None
    ) -> ExchangedRows:
        """Run a pipeline and store its rows; stop once the first `at_most` rows are complete."""
        context = DataContext.get_current()
        tasks = with_unique_names(pipeline.tasks)
        places = {task.unit.name: place for place, task in enumerate(tasks)}
        chunk_bytes = min(_CHUNK_BYTES, context.target_max_block_size)
        arranged = scatter.ArrangeRows(places, arrangement, chunk_bytes, at_most)
        if isinstance(self.executor, StoringExecutor):
            pipeline = Pipeline(tasks, tuple((*chain, arranged) for chain in pipeline.chains))
            return self.executor.store_rows(pipeline, at_most)
        reusable = getattr(self.executor, "exchange_memory", None)
        reusable = reusable if isinstance(arrangement, scatter.OrderByHash) else None
        space, handle = spill.open_spill(len(tasks), context.budget // 2, context.spill_path, reusable)
        stored = scatter.Scatter(space, arranged)
        pipeline = Pipeline(tasks, tuple((*chain, stored) for chain in pipeline.chains))
        chunks: list[scatter.StoredChunk] = []
        try:
            if at_most != 0:
                with closing(self.executor.run(pipeline)) as receipts:  # type: ignore[type-var]
                    for delivery in receipts:
                        chunks += scatter.parse_receipts(delivery.block, space)
                        if at_most is not None and sum(chunk.num_rows for chunk in chunks) >= at_most:
                            break
        except BaseException:
            handle.close()
            raise
        return ExchangedRows(tuple(chunks), handle)

    def shuffle_rows(
        self, plan: PlanNode, by: scatter.OrderByHash, name: str, repartition: barriers.Repartition | None = None
    ) -> Sequence[scatter.GatheredUnit]:
        """Parts of equal size, whatever the hashes, so that the units of a dataset are alike in all epochs."""
        exchanged = self.exchange_rows(plan, by)
        num_rows = exchanged.num_rows
        if not num_rows and repartition is None:
            return []
        ends = (
            even_ends(num_rows, exchanged.num_parts) if repartition is None else repartition_ends(num_rows, repartition)
        )
        hashes: list[Any] = [block.column(scatter.HASH) for block in exchanged.load_columns([scatter.HASH])]
        num_ranges = choose_num_ranges(exchanged.num_bytes, len(ends))
        range_ends = [
            begin + end for begin, stop in pairwise([0, *ends]) for end in even_ends(stop - begin, num_ranges)
        ]
        return _make_units(exchanged, hash_cuts(hashes, range_ends), num_ranges, name, by)

    def repartition_rows(self, barrier: barriers.Repartition) -> Sequence[Unit]:
        pipeline = self.lower(barrier.input)
        if (units := _countable_units(pipeline)) is not None:
            ends = repartition_ends(sum(unit.num_rows or 0 for unit in units), barrier)
            # Many slices of one unit would each read it from its beginning.
            if len(ends) <= len(units):
                return [
                    scatter.ChainedUnit(
                        _part_name(barrier.name, number, len(ends)), tuple(_cut_units(units, begin, end))
                    )
                    for number, (begin, end) in enumerate(pairwise([0, *ends]))
                ]
        exchanged = self.store_arranged(pipeline, scatter.PreserveOrder())
        ends = repartition_ends(exchanged.num_rows, barrier)
        return [
            exchanged.make_unit(
                _part_name(barrier.name, number, len(ends)), [slice_chunks(exchanged.chunks, begin, end)]
            )
            for number, (begin, end) in enumerate(pairwise([0, *ends]))
        ]

    def join_rows(self, barrier: barriers.Join) -> Sequence[Unit]:
        spec, keys = barrier.spec, (barrier.spec.left_on, barrier.spec.right_on)
        arrangements = [
            OrderByKeyHash(keys[side], "spread" if spec.keeps_unmatched(side) else "drop") for side in (0, 1)
        ]
        sides = [self.exchange_rows(*pair) for pair in zip(barrier.parts, arrangements, strict=True)]
        num_bytes = sum(side.num_bytes for side in sides)
        num_parts = barrier.num_partitions or choose_num_parts(num_bytes)
        samples = [
            side.chunks[0].part(0, 1) if side.chunks else _empty_side(part, keys[number])
            for number, (side, part) in enumerate(zip(sides, barrier.parts, strict=True))
        ]
        num_ranges = choose_num_ranges(num_bytes, num_parts)
        ranges = [_divide_by_hash(side, num_parts, num_ranges) for side in sides]
        units = []
        for part in range(num_parts):
            left, right = (
                JoinSide(tuple(map(tuple, ranges[side][part])), samples[side], sides[side].spill_handle)
                for side in (0, 1)
            )
            units.append(
                JoinedUnit(_part_name(barrier.name, part, num_parts), num_bytes // num_parts, spec, (left, right))
            )
        return units

    def mix_rows(self, barrier: barriers.Mix) -> Sequence[Unit]:
        sides: list[_RowRange] = []
        for part in barrier.parts:
            pipeline = self.lower(part)
            units = _countable_units(pipeline)
            sides.append(
                _StoredRange(self.store_arranged(pipeline, scatter.PreserveOrder()))
                if units is None
                else _UnitRange(units)
            )
        spans = arrange_mix([side.num_rows for side in sides], barrier.ratio, barrier.stop)
        num_rows = sum(span.num_rows for span in spans)
        # Each part of a unit reads it from its beginning, so that of no dataset units are cut into many parts.
        num_units = min(max(side.num_units for side in sides), _MAX_CUTS * min(side.max_parts for side in sides))
        ends = even_ends(num_rows, max(1, min(num_units, num_rows)))
        mixed = []
        for number, (begin, end) in enumerate(pairwise([0, *ends])):
            cut = tuple(cut_spans(spans, begin, end))
            ranges = [
                [span.dataset_rows(side) for span in cut if side in span.window.active] for side in range(len(sides))
            ]
            parts = (
                tuple(side.cut(rows[0][0], rows[-1][1])) if rows else ()
                for side, rows in zip(sides, ranges, strict=True)
            )
            mixed.append(MixedUnit(_part_name(barrier.name, number, len(ends)), cut, tuple(parts)))
        return mixed if num_rows else []

    def slice_rows(self, barrier: barriers.SliceRows) -> Sequence[Unit]:
        pipeline = self.lower(barrier.input)
        if (units := _countable_units(pipeline)) is not None:
            return list(_cut_units(units, barrier.start, barrier.stop))
        exchanged = self.store_arranged(pipeline, scatter.PreserveOrder(), at_most=barrier.stop)
        stop = exchanged.num_rows if barrier.stop is None else barrier.stop
        pieces = slice_chunks(exchanged.chunks, barrier.start, stop)
        return [
            exchanged.make_unit(_part_name(barrier.name, number, len(pieces)), [[piece]])
            for number, piece in enumerate(pieces)
        ]


class _RowRange(Protocol):
    """All rows of a plan, of which units with some rows can be made."""

    @property
    def num_rows(self) -> int: ...
    @property
    def num_units(self) -> int: ...
    @property
    def max_parts(self) -> int:
        """Into how many parts they can be cut, if no unit is read twice."""
        ...

    def cut(self, begin: int, end: int) -> Iterable[Unit]: ...


@dataclass(frozen=True)
class _UnitRange:
    units: Sequence[Unit]

    @property
    def num_rows(self) -> int:
        return sum(unit.num_rows or 0 for unit in self.units)

    @property
    def num_units(self) -> int:
        return len(self.units)

    @property
    def max_parts(self) -> int:
        return max(1, len(self.units))

    def cut(self, begin: int, end: int) -> Iterable[Unit]:
        return _cut_units(self.units, begin, end)


@dataclass(frozen=True)
class _StoredRange:
    exchanged: ExchangedRows
    max_parts: int = sys.maxsize

    @property
    def num_rows(self) -> int:
        return self.exchanged.num_rows

    @property
    def num_units(self) -> int:
        return self.exchanged.num_parts

    def cut(self, begin: int, end: int) -> Iterable[Unit]:
        return [self.exchanged.make_unit("", [slice_chunks(self.exchanged.chunks, begin, end)])]


def with_unique_names(tasks: Iterable[PipelineTask]) -> tuple[PipelineTask, ...]:
    """Give the tasks unique names: a transform knows a unit only by its name."""
    counts: Counter[str] = Counter()
    renamed = []
    for task in tasks:
        name = task.unit.name
        while counts[name]:
            counts[task.unit.name] += 1
            name = f"{task.unit.name} [{counts[task.unit.name]}]"
        counts[name] += 1
        renamed.append(task if name == task.unit.name else replace(task, unit=scatter.TransformedUnit(task.unit, name)))
    return tuple(renamed)


def _countable_units(pipeline: Pipeline) -> list[Unit] | None:
    """The units with their transforms, if all row counts are known and no transform has its own processes, or None."""
    units: list[Unit] = []
    for task in pipeline.tasks:
        chain = pipeline.chains[task.chain]
        if task.unit.num_rows is None or not all(t.keeps_rows and t.pool is None for t in chain):
            return None
        units.append(scatter.TransformedUnit(task.unit, task.unit.name, chain) if chain else task.unit)
    return units


def _cut_units(units: Sequence[Unit], start: int, stop: int | None) -> Iterable[Unit]:
    passed = 0
    for unit in units:
        num_rows = unit.num_rows or 0
        begin, end = max(start - passed, 0), num_rows if stop is None else min(stop - passed, num_rows)
        if begin < end:
            yield unit if (begin, end) == (0, num_rows) else scatter.SlicedUnit(unit, begin, end)
        passed += num_rows


def _cut_by_keys(
    exchanged: ExchangedRows,
    keys: SortKeys,
    name: str,
    arrangement: scatter.RowArrangement,
    num_parts: int | None = None,
    *,
    may_split: bool = False,
    boundaries: Sequence[float] | None = None,
) -> list[scatter.GatheredUnit]:
    """Split rows into parts by key; rows with equal keys stay together unless they may be split."""
    if not exchanged.chunks:
        return []
    chunks = exchanged.load_columns(keys.names)
    num_parts = num_parts or exchanged.num_parts
    num_ranges = choose_num_ranges(exchanged.num_bytes, num_parts) if boundaries is None else 1
    try:
        if boundaries is None:
            cuts = key_cuts(chunks, keys, num_parts * num_ranges, may_split=may_split)
        else:
            cuts = boundary_cuts(chunks, keys, boundaries)
    except TypeError as error:
        raise TypeError(f"{name}: cannot compare the values of the keys: {error}") from error
    return _make_units(exchanged, cuts, num_ranges, name, arrangement)


def _make_units(
    exchanged: ExchangedRows,
    cuts: Sequence[Sequence[int]],
    num_ranges: int,
    name: str,
    arrangement: scatter.RowArrangement,
) -> list[scatter.GatheredUnit]:
    """Make one unit per `num_ranges` ranges between adjacent cuts, across all chunks."""
    parts = exchanged.divide_into_ranges(cuts, num_ranges)
    return [
        exchanged.make_unit(_part_name(name, number, len(parts)), ranges, arrangement)
        for number, ranges in enumerate(parts)
    ]


def _zip_units(sides: Sequence[ExchangedRows], name: str) -> Sequence[Unit]:
    counts = [side.num_rows for side in sides]
    if len(set(counts)) > 1:
        raise ValueError(
            f"zip: the datasets must have equally many rows, got {' and '.join(map(str, counts))}\n\n"
            "hint: limit() cuts the longer one"
        )
    num_parts = max((side.num_parts for side in sides), default=1)
    num_bytes = sum(side.num_bytes for side in sides)
    handles = tuple(side.spill_handle for side in sides)
    return [
        scatter.ZippedUnit(
            _part_name(name, part, num_parts),
            end - begin,
            num_bytes // num_parts,
            tuple(tuple(slice_chunks(side.chunks, begin, end)) for side in sides),
            handles,
        )
        for part, (begin, end) in enumerate(pairwise([0, *even_ends(counts[0], num_parts)]))
        if begin < end
    ]


def _divide_by_hash(exchanged: ExchangedRows, num_parts: int, num_ranges: int = 1) -> list[Ranges]:
    """Divide rows that are ordered by hash into equal ranges of hashes, some of which are a part."""
    if not exchanged.chunks:
        return [[[] for _ in range(num_ranges)] for _ in range(num_parts)]
    num = num_parts * num_ranges
    firsts = np.array([(number << 64) // num for number in range(1, num)], np.uint64)
    hashes = [block.column(scatter.HASH) for block in exchanged.load_columns([scatter.HASH])]
    cuts = [[0, *np.searchsorted(chunk, firsts).tolist(), len(chunk)] for chunk in hashes]
    return exchanged.divide_into_ranges(cuts, num_ranges)


def _empty_side(plan: PlanNode, keys: Sequence[str]) -> Block:
    """A block without rows, with all columns of the plan that are known, and at least the keys."""
    types = known_types(plan) or dict.fromkeys(keys)
    empty = {
        name: np.empty((0, *(kind.shape or ())), kind.dtype)
        if isinstance(kind, TensorType)
        else pa.array([], kind or pa.null())
        for name, kind in types.items()
    }
    return Block({**empty, scatter.HASH: np.empty(0, np.uint64)})


def _materialize_units(exchanged: ExchangedRows, name: str) -> list[scatter.GatheredUnit]:
    """One unit per original unit, except those without rows."""
    places = [list(chunks) for _, chunks in groupby(exchanged.chunks, key=lambda chunk: chunk.unit_index)]
    return [
        exchanged.make_unit(_part_name(name, number, len(places)), [[chunk.piece for chunk in chunks]])
        for number, chunks in enumerate(places)
    ]


def _part_name(name: str, number: int, count: int) -> str:
    return f"{name} {number + 1} of {count}"


# Where new units begin and end among stored rows: decided from counts, hashes and sorted keys alone


def choose_num_parts(num_bytes: int) -> int:
    """As few as possible, but enough to keep all processes busy until the end."""
    largest = DataContext.get_current().target_max_block_size
    return max(1, -(-num_bytes // largest), min(_ENOUGH_PARTS, num_bytes // _MIN_PART_BYTES))


def choose_num_ranges(num_bytes: int, num_parts: int) -> int:
    """Into how many ranges each part is divided, so that a process joins and sorts few rows at a time."""
    return max(1, -(-num_bytes // max(1, num_parts) // _RANGE_BYTES))


def even_ends(num_rows: int, num_parts: int) -> list[int]:
    """The end positions of parts of nearly equal size."""
    return [num_rows * (part + 1) // num_parts for part in range(num_parts)]


def repartition_ends(num_rows: int, barrier: barriers.Repartition) -> list[int]:
    if barrier.num_blocks is not None:
        return even_ends(num_rows, barrier.num_blocks)
    size = barrier.target_num_rows_per_block or 1
    return [*range(size, num_rows, size), *([num_rows] if num_rows else [])]


def slice_chunks(chunks: Sequence[scatter.StoredChunk], start: int, stop: int) -> list[scatter.StoredRows]:
    """Rows `start` to `stop` of all chunks together."""
    ends = [0, *accumulate(chunk.num_rows for chunk in chunks)]
    pieces = []
    for number in range(max(bisect_right(ends, start) - 1, 0), len(chunks)):
        first = ends[number]
        if first >= stop:
            break
        begin, end = max(start - first, 0), min(stop - first, chunks[number].num_rows)
        if begin < end:
            pieces.append(chunks[number].part(begin, end))
    return pieces


def hash_cuts(hashes: Sequence[np.ndarray[Any, Any]], ends: Sequence[int]) -> list[list[int]]:
    """Where parts that end at these ranks begin and end in each chunk; each chunk is sorted by hash."""
    firsts = np.array(hashes_at_ranks(hashes, sum(map(len, hashes)), ends[:-1]), np.uint64)
    return [[0, *np.searchsorted(chunk, firsts).tolist(), len(chunk)] for chunk in hashes]


def hashes_at_ranks(hashes: Sequence[np.ndarray[Any, Any]], num_rows: int, ranks: Sequence[int]) -> list[int]:
    """For each rank, the hash with that many smaller ones.

    Hashes are uniform, so only those near the expected value are examined.
    """
    largest, spread = (1 << 64) - 1, 3 * int(num_rows**0.5) + 16
    near = [[max(0, ((rank + side) << 64) // max(num_rows, 1)) for side in (-spread, spread)] for rank in ranks]
    bounds = np.array([[min(low, largest), min(high, largest)] for low, high in near], np.uint64).reshape(-1, 2)
    spans = [np.searchsorted(chunk, bounds) for chunk in hashes]
    found = []
    for number, rank in enumerate(ranks):
        if rank >= num_rows:
            found.append(largest)
            continue
        parts = [chunk[slice(*span[number])] for chunk, span in zip(hashes, spans, strict=True)]
        num_below, candidates = sum(int(span[number][0]) for span in spans), np.concatenate(parts)
        if not 0 <= rank - num_below < len(candidates):
            num_below, candidates = 0, np.concatenate(hashes)
        found.append(int(np.partition(candidates, rank - num_below)[rank - num_below]))
    return found


def key_cuts(chunks: Sequence[Block], keys: SortKeys, num_parts: int, *, may_split: bool) -> list[list[int]]:
    """Where the parts begin and end in each chunk, which is sorted by key; the last cut is the end of the chunk.

    The bounds are keys of sampled rows. Rows with equal keys stay in one part unless they may be split: then those of
    earlier chunks come first.
    """
    num_rows = sum(block.num_rows for block in chunks)

    def rank_key(number: int, row: int) -> tuple[Any, ...]:
        key = keys.sort_key(chunks[number], row)
        return (*key, number, row) if may_split else key

    def find_begin(number: int, bound: tuple[Any, ...]) -> int:
        return bisect_left(range(chunks[number].num_rows), bound, key=lambda row: rank_key(number, row))

    samples: list[tuple[Any, ...]] = []
    for number, block in enumerate(chunks):
        num_samples = -(-_SAMPLES * num_parts * block.num_rows // num_rows) if num_parts > 1 else 1
        samples += [rank_key(number, row) for row in range(0, block.num_rows, max(block.num_rows // num_samples, 1))]
    samples.sort()
    bounds = [samples[len(samples) * part // num_parts] for part in range(1, num_parts)]
    bounds = [bound for index, bound in enumerate(bounds) if index == 0 or bound != bounds[index - 1]]
    return [
        [0, *(find_begin(number, bound) for bound in bounds), block.num_rows] for number, block in enumerate(chunks)
    ]


def boundary_cuts(chunks: Sequence[Block], keys: SortKeys, boundaries: Sequence[float]) -> list[list[int]]:
    """Where the parts begin and end in each chunk if they begin at values of the first key.

    A row whose value is a boundary belongs to the part of larger values, in both directions.
    """
    down = keys.descending[0]
    find = bisect_right if down else bisect_left
    bounds = [null_last_key(value, down) for value in (reversed(boundaries) if down else boundaries)]
    return [
        [
            0,
            *(find(range(block.num_rows), bound, key=lambda row: keys.sort_key(block, row)[0]) for bound in bounds),
            block.num_rows,
        ]
        for block in chunks
    ]
