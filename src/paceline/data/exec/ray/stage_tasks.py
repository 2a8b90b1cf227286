"""Runs in Ray's processes: reads a unit and sends it through a stage, or sends it through the next stage.

Between two stages, all blocks of a unit are one row of Ray Data: a stage must see the whole unit to form the same
batches as on one machine. After the last stage, every block is its own row, preceded by a small row that describes it,
so that the position of a block is known without fetching it. Errors are rows too: they arrive in the order of the rows,
and Ray has nothing to wrap.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import xxhash

from paceline._core.errors import DataError
from paceline._engine.ray.connection import import_ray
from paceline.data.block import Block
from paceline.data.context import DataContext
from paceline.data.exec import packed_blocks as layout
from paceline.data.exec.failure import DataFailure, capture_failure
from paceline.data.exec.pipeline import Pipeline
from paceline.data.exec.ray import ray_values, shipping
from paceline.data.exec.ray.ledger import StreamLedger
from paceline.data.exec.ray.shipping import ShippedValue
from paceline.data.exec.stats import StageMeter
from paceline.data.planning.plan import SkippedRows, Transform, TransformScope, Unit

_JOBS_KEPT = 16


class StageReport(msgspec.Struct, array_like=True):
    """What one stage did for one unit."""

    stage: int
    title: str
    meter: StageMeter


class RowHeader(msgspec.Struct):
    """Describes its own row, or the row that follows."""

    unit: int
    name: str
    chain: int
    kind: str
    """`unit`: in progress, with all its blocks. `block`: the next row is a block. `end`: the unit is complete."""
    offset: int = 0
    num_rows: int = 0
    num_bytes: int = 0
    """The size of the rows as a block."""
    length: int = 0
    """The size of the rows when packed."""
    ends: list[int] = []
    stage_reports: list[StageReport] = []
    skipped: list[SkippedRows] = []
    failure: DataFailure | None = None

    @staticmethod
    def decode(encoded: bytes) -> RowHeader:
        return msgspec.msgpack.decode(encoded, type=RowHeader)

    def to_row(self, data: Any = None) -> Any:
        return ray_values.make_row(msgspec.msgpack.encode(self), data)


@dataclass(frozen=True)
class RayStage:
    """A stage of a chain as it is sent: its large parts are in the object store, once for all units."""

    number: int
    chain: int
    title: str
    last: bool
    key: str
    job: Any
    ledger: StreamLedger
    max_ahead_bytes: int
    start: tuple[int, int]
    """The unit that starts in the middle, and the row to start at."""


def make_ray_stages(
    pipeline: Pipeline, chain: int, ledger: StreamLedger, max_ahead_bytes: int, start: tuple[int, int]
) -> list[RayStage]:
    made, stages = [], pipeline.stages(chain)
    for number, stage in enumerate(stages):
        pickled = shipping.pickle_with_paths((stage.transforms, DataContext.get_current()))
        key, title, is_last = xxhash.xxh3_128_hexdigest(pickled), stage.title(number == 0), number == len(stages) - 1
        job = import_ray().put(pickled)
        made.append(RayStage(number, chain, title, is_last, key, job, ledger, max_ahead_bytes, start))
    return made


class _LoadedRayStage:
    """The transforms of a stage with the objects they created; kept for later units and epochs."""

    def __init__(self, pickled: bytes) -> None:
        self.transforms: tuple[Transform, ...]
        self.transforms, self.context = shipping.load_with_paths(pickled)
        self.scope = TransformScope()


_jobs: OrderedDict[str, _LoadedRayStage] = OrderedDict()


def _load_stage(stage: RayStage) -> _LoadedRayStage:
    if stage.key not in _jobs:
        _jobs[stage.key] = _LoadedRayStage(import_ray().get(stage.job))
        while len(_jobs) > _JOBS_KEPT:
            _jobs.popitem(last=False)
    _jobs.move_to_end(stage.key)
    DataContext._current = _jobs[stage.key].context
    DataContext.in_data_process = True
    return _jobs[stage.key]


@dataclass(frozen=True)
class ReadUnit:
    """Reads one unit, and sends it through the first stage of its chain."""

    stage: RayStage
    index: int
    name: str
    unit: ShippedValue

    def __call__(self) -> Iterator[Any]:
        head = RowHeader(self.index, self.name, self.stage.chain, "unit")
        return _run_stage(self.stage, head, self._read)

    def _read(self) -> Iterator[Block]:
        unit: Unit = self.unit.load_value()
        return unit.read()


class PoolStage:
    """An actor of a pool: sends the units of its chain through a stage, and passes everything else on unchanged."""

    def __init__(self, stage: RayStage) -> None:
        self._step = stage

    def __call__(self, table: Any) -> Iterator[Any]:
        for number in range(table.num_rows):
            encoded = ray_values.row_head(table, number)
            head = None if encoded is None else RowHeader.decode(encoded)
            if head is None or head.kind != "unit" or head.chain != self._step.chain:
                yield table.slice(number, 1)
                continue
            data = ray_values.row_data(table, number) if head.ends else b""
            yield from _run_stage(self._step, head, partial(_input_blocks, head, data))


class _PreviousStageFailed(Exception):
    """The previous stage failed after these blocks."""


def _input_blocks(head: RowHeader, data: Any) -> Iterator[Block]:
    yield from ray_values.split_packed(data, head.ends)
    if head.failure is not None:
        raise _PreviousStageFailed


def _run_stage(stage: RayStage, head: RowHeader, read: Callable[[], Iterator[Block]]) -> Iterator[Any]:
    job = _load_stage(stage)
    scope, meter, started = job.scope, StageMeter(), time.perf_counter()
    scope.unit, scope.number = head.name, head.unit
    scope.skipped.clear()
    failure = head.failure
    packed: list[Any] = []
    skip = stage.start[1] if stage.start[0] == head.unit else 0
    passed = written = 0
    try:
        deaths = stage.ledger.begin_unit(head.unit, stage.number)
        if deaths > job.context.max_unit_failures:
            raise DataError(
                f"{head.name}: its data process died {deaths} times\n\n"
                "hint: DataContext.max_unit_failures is how often a unit is retried"
            )
        blocks = read()
        for transform in job.transforms:
            blocks = transform.apply(blocks, scope)
        for block in blocks:
            if not stage.last:
                packed.append(layout.pack_block(block))
                meter.num_rows, meter.num_bytes = meter.num_rows + block.num_rows, meter.num_bytes + len(packed[-1])
                continue
            for begin, stop in layout.split_rows(block, max(skip - passed, 0), job.context.target_max_block_size):
                part = block.slice(begin, stop)
                data = layout.pack_block(part)
                meter.num_rows, meter.num_bytes = meter.num_rows + stop - begin, meter.num_bytes + len(data)
                position = passed + begin, part.num_rows, part.nbytes, len(data)
                header = RowHeader(head.unit, head.name, head.chain, "block", *position)
                began = time.perf_counter()
                if written > stage.max_ahead_bytes:
                    stage.ledger.wait_for_room(head.unit, written - stage.max_ahead_bytes)
                written += len(data)
                yield header.to_row()
                yield ray_values.make_row(None, data)
                meter.waited_for_room_s += time.perf_counter() - began
            passed += block.num_rows
    except _PreviousStageFailed:
        pass
    except (Exception, SystemExit) as error:  # noqa: BLE001
        failure = capture_failure(error, "" if isinstance(error, DataError) else head.name)
    stage.ledger.end_unit(head.unit, stage.number)
    framed, ends = ray_values.join_packed(packed)
    yield RowHeader(
        head.unit,
        head.name,
        head.chain,
        "end" if stage.last else "unit",
        ends=ends,
        stage_reports=[
            *head.stage_reports,
            StageReport(stage.number, stage.title, meter.finish(time.perf_counter() - started)),
        ],
        skipped=[*head.skipped, *scope.skipped],
        failure=failure,
    ).to_row(framed)
