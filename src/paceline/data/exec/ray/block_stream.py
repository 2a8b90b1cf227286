"""The blocks of a pipeline in order, by reference: lowers a pipeline to Ray Data."""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from typing import Any

import msgspec

from paceline._core.errors import DataError
from paceline._engine.ray.connection import import_ray
from paceline.data.context import DataContext
from paceline.data.exec.pipeline import Pipeline
from paceline.data.exec.ray import ledger, ray_datasets, ray_values
from paceline.data.exec.ray.ledger import StreamLedger
from paceline.data.exec.ray.ray_logging import silence_ray_data
from paceline.data.exec.ray.shipping import ShippedValue
from paceline.data.exec.ray.stage_tasks import PoolStage, RayStage, ReadUnit, RowHeader, make_ray_stage
from paceline.data.exec.ray.task_limits import TaskLimits, decide_task_limits, num_cpus_needed, observe_cluster
from paceline.data.exec.stats import StatsRecorder


class PlacedBlock(msgspec.Struct, frozen=True):
    """Rows stored on the cluster, and their position. `unpack_from_ray(ray.get(ref))` is their block."""

    unit: int
    """Index of the pipeline task that produced them."""
    offset: int
    """How many rows of that task's output come before them."""
    num_rows: int
    num_bytes: int
    """The size of the object in the object store."""
    ref: Any
    """A `ray.ObjectRef`. The rows are kept while somebody holds it."""
    node: str | None = None
    """The id of the node that produced them, if known."""
    rows_bytes: int = 0
    """The size of the rows in a process's memory, as their block reports it."""


def stream_blocks(
    pipeline: Pipeline,
    unit: int = 0,
    offset: int = 0,
    *,
    record: StatsRecorder | None = None,
    say: Callable[[str], None] | None = None,
) -> Iterator[PlacedBlock]:
    """Yield the rows of a pipeline in order, from row `offset` of task `unit`'s output on; earlier tasks never start.

    Runs in a process connected to Ray, driver or actor. It computes ahead of the consumer, up to
    `DataContext.budget` bytes. Closing the iterator stops the work. `record` gets the statistics of the stages and the
    skipped rows as blocks are taken. `say` gets the lines to show to the user; None: standard error. Exceptions of user
    code are raised as on one machine, after the rows before them.
    """
    if unit >= len(pipeline.tasks):
        return
    dataset = ray_datasets.find_ray_dataset(pipeline)
    cluster = observe_cluster(num_cpus_needed(pipeline))
    means = decide_task_limits(pipeline, cluster, DataContext.get_current())
    lines = [means.notice if dataset is None or means.requests_cpus else ray_datasets.cpu_shortage_notice(cluster)]
    if ray_datasets.has_ray_dataset(pipeline) and (unit, offset) == (0, 0):
        lines.append(ray_datasets.RESUME_NOTICE)
    for line in filter(None, lines):
        (say or _print_line)(line)
    ended = False
    with silence_ray_data():
        try:
            if dataset is not None:
                yield from _stream_ray_dataset(dataset, offset, means)
            else:
                yield from _stream_pipeline(pipeline, unit, offset, means, record)
            ended = True
        finally:
            if not ended:
                # Ray Data stops and frees its blocks only when the iterator is collected, and it is part of cycles.
                gc.collect()


def _stream_ray_dataset(dataset: Any, offset: int, means: TaskLimits) -> Iterator[PlacedBlock]:
    with (
        ray_datasets.preserving_order(dataset, means.budget),
        closing(ray_datasets.stream_ray_blocks(dataset, offset)) as found,
    ):
        for begin, num_rows, num_bytes, ref, node in found:
            yield PlacedBlock(0, begin, num_rows, num_bytes, ref, node, num_bytes)


def _stream_pipeline(
    pipeline: Pipeline, unit: int, offset: int, means: TaskLimits, record: StatsRecorder | None
) -> Iterator[PlacedBlock]:
    notes = ledger.open_stream_ledger()
    try:
        with closing(
            _object_entries(_lower_to_ray_data(pipeline, unit, offset, means, notes), pipeline, notes)
        ) as entries:
            for placed in _read_placed_blocks(entries, record):
                notes.add_taken(placed.unit, placed.num_bytes)
                yield placed
    finally:
        notes.close()


def _read_placed_blocks(entries: Iterator[tuple[Any, Any]], record: StatsRecorder | None) -> Iterator[PlacedBlock]:
    ray = import_ray()
    for ref, _ in entries:
        encoded = ray_values.row_head(ray.get(ref), 0)
        assert encoded is not None, "a row that says nothing of itself comes after one that does"
        head = RowHeader.decode(encoded)
        if head.kind == "block":
            ref, metadata = next(entries)
            stats = metadata.exec_stats
            node = stats.node_id if stats is not None else None
            yield PlacedBlock(head.unit, head.offset, head.num_rows, head.length, ref, node, head.num_bytes)
            continue
        if record is not None:
            for done in head.stage_reports:
                record.meter(done.stage, done.title).add(done.meter)
            record.skipped += head.skipped
        if head.failure is not None:
            raise head.failure.to_exception(head.pickled)


def _object_entries(dataset: Any, pipeline: Pipeline, notes: StreamLedger) -> Generator[tuple[Any, Any], None, None]:
    """Ray's objects in order, with their metadata. Each has one row, because the maximum block size is one byte."""
    ray = import_ray()
    try:
        for bundle in dataset.iter_internal_ref_bundles():
            yield from zip(bundle.block_refs, bundle.metadata, strict=True)
    except ray.exceptions.RayError as error:
        names = [pipeline.tasks[index].unit.name for index in notes.units_at_work()]
        where = f"{', '.join(names[:3])}{' and others' if len(names) > 3 else ''}: " if names else ""
        raise DataError(f"{where}Ray could not go on: {type(error).__name__}: {error}") from error


def _lower_to_ray_data(pipeline: Pipeline, unit: int, offset: int, means: TaskLimits, notes: StreamLedger) -> Any:
    """Build a Ray Data dataset: one read task per unit, and one operator per pool of each chain."""
    import_ray()
    from ray.data import ActorPoolStrategy, read_datasource
    from ray.data import DataContext as RayContext

    chains = {task.chain for task in pipeline.tasks[unit:]}
    steps = {chain: _make_ray_stages(pipeline, chain, notes, means.max_ahead_bytes, (unit, offset)) for chain in chains}
    reads = [
        (ReadUnit(steps[task.chain][0], index, task.unit.name, ShippedValue.from_value(task.unit)), task.unit.num_bytes)
        for index, task in enumerate(pipeline.tasks[unit:], start=unit)
    ]
    with warnings.catch_warnings(), RayContext.current(_make_ray_context(means)):
        warnings.simplefilter("ignore")  # from Ray's calls of its own functions
        dataset = read_datasource(
            _make_datasource(reads),
            override_num_blocks=len(reads),
            concurrency=None if means.max_concurrency is None else min(means.max_concurrency, len(reads)),
            num_cpus=1 if means.requests_cpus and not ray_datasets.has_ray_dataset(pipeline) else 0,
            ray_remote_args={"max_retries": -1},
        )
        for number in range(1, max(map(len, steps.values()))):
            for chain in sorted(chains):
                if number >= len(steps[chain]):
                    continue
                pool = pipeline.stages(chain)[number].pool
                assert pool is not None, "only the first stage has no processes of its own"
                dataset = dataset.map_batches(
                    PoolStage,
                    fn_constructor_args=(steps[chain][number],),
                    batch_size=None,
                    batch_format="pyarrow",
                    zero_copy_batch=True,
                    compute=ActorPoolStrategy(min_size=pool.min_size, max_size=pool.max_size),
                    num_cpus=pool.num_cpus if means.requests_cpus else 0,
                    num_gpus=pool.num_gpus or None,
                )
        return dataset


def _make_ray_stages(
    pipeline: Pipeline, chain: int, notes: StreamLedger, ahead: int, at: tuple[int, int]
) -> list[RayStage]:
    stages = pipeline.stages(chain)
    return [
        make_ray_stage(stage, number, chain, last=number == len(stages) - 1, notes=notes, ahead=ahead, at=at)
        for number, stage in enumerate(stages)
    ]


def _make_datasource(reads: list[tuple[ReadUnit, int | None]]) -> Any:
    """A Ray Data source of our units: one task per unit, in order."""
    from ray.data import Datasource, ReadTask
    from ray.data.block import BlockMetadata

    tasks = [
        ReadTask(read, BlockMetadata(num_rows=None, size_bytes=num_bytes, exec_stats=None)) for read, num_bytes in reads
    ]

    class Units(Datasource):
        def get_read_tasks(self, parallelism: int, *args: Any, **kwargs: Any) -> list[Any]:
            return tasks

        def estimate_inmemory_data_size(self) -> int | None:
            return None

        def get_name(self) -> str:
            return "Units"

    made: Any = Units
    return made()


def _make_ray_context(means: TaskLimits) -> Any:
    from ray.data import DataContext as RayContext

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about Ray's own settings
        context = RayContext.get_current().copy()
    # One row per object, so that each object can be identified.
    context.target_max_block_size = 1
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    # A unit may take any time, as on one machine.
    context.execution_no_progress_timeout_s = -1
    options, limits = context.execution_options, DataContext.get_current().execution_options.resource_limits
    options.preserve_order = True
    given = {"object_store_memory": float(means.budget)}
    if limits.cpu is not None and means.requests_cpus:
        given["cpu"] = limits.cpu
    if limits.gpu is not None:
        given["gpu"] = limits.gpu
    options.resource_limits = type(options.resource_limits)(**given)
    return context


def _print_line(line: str) -> None:
    print(line, file=sys.stderr)
