"""Datasets of units and blocks that a test makes itself, and what comes of a dataset, run by the reference executor."""

import dataclasses
import io
import itertools
import math
import pickle
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import av
import cloudpickle
import numpy as np
import pandas as pd
from hypothesis import strategies as st
from PIL import Image

from paceline.data.block import Block, Schema
from paceline.data.context import DataContext
from paceline.data.dataset import Dataset
from paceline.data.exec.exchange import resolve_barrier
from paceline.data.exec.pipeline import Executor, InlineExecutor, Pipeline, lower_plan
from paceline.data.expressions import Expr, evaluate_column
from paceline.data.order.sharding import RowDelivery
from paceline.data.planning.barriers import PreparedSource
from paceline.data.planning.optimizer import optimize_plan
from paceline.data.planning.plan import PlanNode, Read, Source


@dataclasses.dataclass(frozen=True, eq=False)
class ListedUnit:
    name: str
    blocks: tuple[Block, ...]
    counted: bool = True

    @property
    def num_rows(self) -> int | None:
        return sum(block.num_rows for block in self.blocks) if self.counted else None

    @property
    def num_bytes(self) -> int | None:
        return sum(block.nbytes for block in self.blocks)

    def read(self) -> Iterator[Block]:
        for block in self.blocks:
            READ.append((self.name, list(block.columns), block.num_rows))
            yield block


READ: list[tuple[str, list[str], int]] = []
"""What was read since a test cleared it: unit, columns and rows, one entry for each block."""


@dataclasses.dataclass(frozen=True, eq=False)
class Listed:
    listed: tuple[ListedUnit, ...]
    columns: tuple[str, ...] | None = None
    """Of all blocks, where the source knows its schema."""
    ranges: bool = False
    """Whether it can tell from a predicate which units to leave out."""

    @property
    def name(self) -> str:
        return "listed"

    def units(self) -> Sequence[ListedUnit]:
        return self.listed

    def schema(self) -> Schema | None:
        if self.columns is None:
            return None
        blocks = (block.select(self.columns).schema for unit in self.listed for block in unit.blocks)
        return next(blocks, Schema.from_columns([], []))

    def project_columns(self, columns: Sequence[str]) -> "Listed | None":
        if self.columns is None:
            return None
        kept = tuple(name for name in self.columns if name in columns)
        units = tuple(
            dataclasses.replace(unit, blocks=tuple(block.select(kept) for block in unit.blocks)) for unit in self.listed
        )
        return dataclasses.replace(self, listed=units, columns=kept)

    def prune_units(self, predicate: Expr) -> "Listed | None":
        """A unit stays where it is in the order, though nothing of it need be read."""

        def prune(unit: ListedUnit) -> ListedUnit:
            if any(any(evaluate_column(predicate, block).to_pylist()) for block in unit.blocks if block.num_rows):
                return unit
            return dataclasses.replace(unit, blocks=tuple(block.slice(0, 0) for block in unit.blocks[:1]))

        return dataclasses.replace(self, listed=tuple(map(prune, self.listed))) if self.ranges else None


def listed(*units: Sequence[Any], schema: bool = False, ranges: bool = False, counted: bool = True) -> Dataset:
    """A dataset of units, each a list of what blocks are made of."""
    made = [
        ListedUnit(f"part-{index}.file", tuple(map(Block.from_batch, blocks)), counted)
        for index, blocks in enumerate(units)
    ]
    columns = None
    if schema:
        columns = tuple(next(block for unit in made for block in unit.blocks).columns)
    return Dataset(Read(Listed(tuple(made), columns, ranges)))


def numbers(*sizes: Sequence[int], **options: Any) -> Dataset:
    """The numbers from 0 on, as `id`, in units of blocks of these sizes."""
    ends = itertools.accumulate(size for unit in sizes for size in unit)
    return listed(*([{"id": np.arange((end := next(ends)) - size, end)} for size in unit] for unit in sizes), **options)


@dataclasses.dataclass(frozen=True)
class MadeUnit:
    name: str
    read: Callable[[], Iterator[Block]]
    num_bytes: int | None
    """0: the rows are read in the process of the test; None: in data processes."""
    num_rows: int | None = None


def dataset_of(
    *units: Sequence[Block | dict[str, Any]] | Callable[[], Iterator[Block]], in_processes: bool = False
) -> Dataset:
    """Each argument is a unit: its blocks, or a function that yields them."""
    readers = [unit if callable(unit) else lambda unit=unit: map(Block.from_batch, unit) for unit in units]
    num_bytes = None if in_processes else 0
    made = (MadeUnit(f"unit {number}", read, num_bytes) for number, read in enumerate(readers))
    return Dataset(Read(PreparedSource("units", tuple(made))))


def pipeline(dataset: Any, epoch: int = 0, optimize: bool = False) -> Pipeline:
    def unresolved(barrier: Any, epoch: int) -> Any:
        raise AssertionError(barrier)

    return lower_plan(optimize_plan(dataset._plan) if optimize else dataset._plan, epoch, unresolved)


def block(dataset: Any, epoch: int = 0, optimize: bool = False) -> Block:
    """All rows, after the units went through pickle, as they do on their way to another process."""
    sent = cloudpickle.loads(cloudpickle.dumps(pipeline(dataset, epoch, optimize)))
    return Block.concat(delivered.block for delivered in InlineExecutor().run(sent))


def source_of(dataset: Dataset) -> Source:
    assert isinstance(dataset._plan, Read)
    return dataset._plan.source


def blocks_of(dataset: Dataset) -> list[Block]:
    units = [pickle.loads(pickle.dumps(unit)) for unit in source_of(dataset).units()]
    return [block for unit in units for block in unit.read()]


def rows_of(dataset: Dataset) -> list[dict[str, Any]]:
    return [row for block in blocks_of(dataset) for row in block.rows()]


def column(dataset: Dataset, name: str) -> list[Any]:
    return [row[name] for row in rows_of(dataset)]


def cut(rows: Block | Mapping[str, Any], *units: Sequence[int]) -> Dataset:
    """A dataset of these rows: each unit is a list of the sizes of its blocks. Without units, all in one block."""
    block = Block.from_batch(rows)
    units = units or ([block.num_rows],)
    assert sum(map(sum, units)) == block.num_rows, "the cuts do not cover the rows"
    ends = itertools.accumulate(size for sizes in units for size in sizes)
    parts = (tuple(block.slice((end := next(ends)) - size, end) for size in sizes) for sizes in units)
    made = tuple(ListedUnit(f"part-{index}", blocks) for index, blocks in enumerate(parts))
    return Dataset(Read(PreparedSource("rows that were cut", made)))


def all_rows(ds: Dataset) -> Block:
    return Block.concat(blocks(ds))


def blocks(ds: Dataset) -> Iterator[Block]:
    for batch in ds.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
        yield Block.from_batch(batch)


def as_columns(ds: Dataset) -> dict[str, Any]:
    return all_rows(ds).to_numpy()


@st.composite
def cuts(draw: st.DrawFn, num_rows: int) -> list[list[int]]:
    """Sizes of blocks in units that cover so many rows; some may be empty."""
    places = draw(st.lists(st.tuples(st.integers(0, num_rows), st.booleans()), max_size=5))
    units: list[list[int]] = [[]]
    start = 0
    for place, ends_unit in sorted(places):
        units[-1].append(place - start)
        start = place
        if ends_unit:
            units.append([])
    units[-1].append(num_rows - start)
    return units


def reading(blocks: Sequence[Block | Sequence[Block]], *, counted: bool = True) -> PlanNode:
    """A plan with a unit for each block, or list of blocks."""
    units = [
        ListedUnit(f"unit {number}", (part,) if isinstance(part, Block) else tuple(part), counted)
        for number, part in enumerate(blocks)
    ]
    return Read(PreparedSource("frames", tuple(units)))


def slice_at(block: Block, places: Sequence[int]) -> list[Block]:
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


def save_array(array: Any, **options: Any) -> bytes:
    np.save(file := io.BytesIO(), array, **options)
    return file.getvalue()


def save_image(array: Any, kind: str = "PNG") -> bytes:
    Image.fromarray(array).save(file := io.BytesIO(), kind)
    return file.getvalue()


def write_video(path: Any, num_frames: int = 12, height: int = 32, width: int = 48) -> None:
    """Ten grey frames for each second, each brighter than the one before."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.time_base = Fraction(1, 10)
        for number in range(num_frames):
            frame = av.VideoFrame.from_ndarray(np.full((height, width, 3), number * 20 % 256, np.uint8), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def write_tar(*members: tuple[str, bytes], mode: Any = "w") -> bytes:
    with tarfile.open(fileobj=(file := io.BytesIO()), mode=mode) as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


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
