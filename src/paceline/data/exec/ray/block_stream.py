"""The blocks of a pipeline in order, by reference: lowers a pipeline to Ray Data."""

from __future__ import annotations

import contextlib
import gc
import logging
import sys
import threading
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from typing import Any

import msgspec

from paceline._core.errors import DataError
from paceline._engine.ray import ray_private
from paceline._engine.ray.connection import import_ray
from paceline.data.context import DataContext
from paceline.data.exec.pipeline import Pipeline
from paceline.data.exec.ray import ledger, ray_values
from paceline.data.exec.ray.ledger import StreamLedger
from paceline.data.exec.ray.shipping import ShippedValue
from paceline.data.exec.ray.stage_tasks import PoolStage, ReadUnit, RowHeader, make_ray_stages
from paceline.data.exec.ray.task_limits import (
    ClusterResources,
    TaskLimits,
    decide_task_limits,
    note_finished_tasks,
    num_cpus_needed,
    observe_cluster,
)
from paceline.data.exec.stats import StatsRecorder
from paceline.data.sources.frameworks import TableStreamSource

_STOP_TIMEOUT_S = 10.0
"""How long the thread that runs Ray Data may take to end: usually one step, of milliseconds."""


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
    dataset = find_ray_dataset(pipeline)
    cluster = observe_cluster(num_cpus_needed(pipeline))
    limits = decide_task_limits(pipeline, cluster, DataContext.get_current())
    lines = [limits.notice if dataset is None or limits.requests_cpus else cpu_shortage_notice(cluster)]
    if has_ray_dataset(pipeline) and (unit, offset) == (0, 0):
        lines.append(RESUME_NOTICE)
    for line in filter(None, lines):
        (say or _print_line)(line)
    ended = False
    with silence_ray_data():
        try:
            if dataset is not None:
                yield from _stream_ray_dataset(dataset, offset, limits)
            else:
                yield from _stream_pipeline(pipeline, unit, offset, limits, record)
                if limits.requests_cpus:
                    note_finished_tasks(cluster)
            ended = True
        finally:
            if not ended:
                # What Ray Data ran is part of cycles, and holds blocks until it is collected.
                gc.collect()


def _stream_ray_dataset(dataset: Any, offset: int, limits: TaskLimits) -> Iterator[PlacedBlock]:
    with (
        preserving_order(dataset, limits.budget),
        closing(stream_ray_blocks(dataset, offset)) as blocks,
    ):
        for begin, num_rows, num_bytes, ref, node in blocks:
            yield PlacedBlock(0, begin, num_rows, num_bytes, ref, node, num_bytes)


def _stream_pipeline(
    pipeline: Pipeline, unit: int, offset: int, limits: TaskLimits, record: StatsRecorder | None
) -> Iterator[PlacedBlock]:
    stream_ledger = ledger.open_stream_ledger()
    try:
        with closing(
            _object_entries(_lower_to_ray_data(pipeline, unit, offset, limits, stream_ledger), pipeline, stream_ledger)
        ) as entries:
            for placed in _read_placed_blocks(entries, record):
                stream_ledger.add_taken(placed.unit, placed.num_bytes)
                yield placed
    finally:
        stream_ledger.close()


def _read_placed_blocks(entries: Iterator[tuple[Any, Any]], record: StatsRecorder | None) -> Iterator[PlacedBlock]:
    ray = import_ray()
    for ref, _ in entries:
        encoded = ray_values.row_head(ray.get(ref), 0)
        assert encoded is not None, "a row without a header follows one that has it"
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
            raise head.failure.to_exception()


def _object_entries(
    dataset: Any, pipeline: Pipeline, stream_ledger: StreamLedger
) -> Generator[tuple[Any, Any], None, None]:
    """Ray's objects in order, with their metadata. Each has one row, because the maximum block size is one byte."""
    ray = import_ray()
    try:
        with closing(_execute(dataset)) as entries:
            yield from entries
    except ray.exceptions.RayError as error:
        names = [pipeline.tasks[index].unit.name for index in stream_ledger.units_at_work()]
        prefix = f"{', '.join(names[:3])}{' and others' if len(names) > 3 else ''}: " if names else ""
        raise DataError(f"{prefix}Ray failed: {type(error).__name__}: {error}") from error


def _execute(dataset: Any) -> Generator[tuple[Any, Any], None, None]:
    """Ray's objects with their metadata. Closing it stops the execution."""
    bundles, executor = ray_private.start_execution(dataset)
    try:
        for bundle in bundles:
            yield from zip(bundle.block_refs, bundle.metadata, strict=True)
    finally:
        if executor is not None:
            # Its thread, if it is in the middle of a step, still adds blocks and is no garbage yet.
            ray_private.stop_execution(executor, _STOP_TIMEOUT_S)


def _lower_to_ray_data(
    pipeline: Pipeline, unit: int, offset: int, limits: TaskLimits, stream_ledger: StreamLedger
) -> Any:
    """Build a Ray Data dataset: one read task per unit, and one operator per pool of each chain."""
    import_ray()
    from ray.data import ActorPoolStrategy, read_datasource
    from ray.data import DataContext as RayContext

    chains = {task.chain for task in pipeline.tasks[unit:]}
    stages_by_chain = {
        chain: make_ray_stages(pipeline, chain, stream_ledger, limits.max_ahead_bytes, (unit, offset))
        for chain in chains
    }
    reads = [
        (
            ReadUnit(stages_by_chain[task.chain][0], index, task.unit.name, ShippedValue.from_value(task.unit)),
            task.unit.num_bytes,
        )
        for index, task in enumerate(pipeline.tasks[unit:], start=unit)
    ]
    with warnings.catch_warnings(), RayContext.current(_make_ray_context(limits)):
        warnings.simplefilter("ignore")  # from Ray's calls of its own functions
        dataset = read_datasource(
            _make_datasource(reads),
            override_num_blocks=len(reads),
            concurrency=None if limits.max_concurrency is None else min(limits.max_concurrency, len(reads)),
            num_cpus=1 if limits.requests_cpus and not has_ray_dataset(pipeline) else 0,
            ray_remote_args={"max_retries": -1},
        )
        for number in range(1, max(map(len, stages_by_chain.values()))):
            for chain in sorted(chains):
                if number >= len(stages_by_chain[chain]):
                    continue
                pool = pipeline.stages(chain)[number].pool
                assert pool is not None, "only the first stage has no processes of its own"
                dataset = dataset.map_batches(
                    PoolStage,
                    fn_constructor_args=(stages_by_chain[chain][number],),
                    batch_size=None,
                    batch_format="pyarrow",
                    zero_copy_batch=True,
                    compute=ActorPoolStrategy(min_size=pool.min_size, max_size=pool.max_size),
                    num_cpus=pool.num_cpus if limits.requests_cpus else 0,
                    num_gpus=pool.num_gpus or None,
                )
        return dataset


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

    units: Any = Units
    return units()


def _make_ray_context(limits: TaskLimits) -> Any:
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
    options, ours = context.execution_options, DataContext.get_current().execution_options.resource_limits
    options.preserve_order = True
    bounds = {"object_store_memory": float(limits.budget)}
    if ours.cpu is not None and limits.requests_cpus:
        bounds["cpu"] = ours.cpu
    if ours.gpu is not None:
        bounds["gpu"] = ours.gpu
    options.resource_limits = type(options.resource_limits)(**bounds)
    return context


def _print_line(line: str) -> None:
    print(line, file=sys.stderr)


_NAMES = ("ray", "ray.data")
_lock = threading.Lock()
_levels: list[int] = []
_num_quiet = 0


@contextlib.contextmanager
def silence_ray_data() -> Iterator[None]:
    """Show errors only; with overlapping streams, until the last one ends."""
    global _num_quiet
    import ray.data  # noqa: F401

    loggers = [logging.getLogger(name) for name in _NAMES]
    with _lock:
        if not _num_quiet:
            _levels[:] = [logger.level for logger in loggers]
            for logger in loggers:
                logger.setLevel(logging.ERROR)
        _num_quiet += 1
    try:
        yield
    finally:
        with _lock:
            _num_quiet -= 1
            if not _num_quiet:
                for logger, level in zip(loggers, _levels, strict=True):
                    logger.setLevel(level)


# A `ray.data.Dataset` that was passed to a trainer runs unchanged. Its blocks come in its own order, and the only known
# position is the number of rows taken. To resume, its execution is repeated and that many rows are skipped, whole
# blocks at a time without fetching them: right only if it yields the same rows in the same order each time.

RESUME_NOTICE = (
    "data: a ray.data.Dataset runs unchanged; a resume repeats its execution and skips the used rows, so it must yield "
    "the same rows in the same order each time"
)


def cpu_shortage_notice(cluster: ClusterResources) -> str:
    return (
        f"data: a ray.data.Dataset waits for CPUs: {cluster.free_cpus:g} of the cluster's {cluster.num_cpus:g} are "
        "free (use fewer workers, or num_cpus=0 for its steps)"
    )


def find_ray_dataset(pipeline: Pipeline) -> Any:
    """The Ray dataset, if the pipeline consists of just that without transforms; else None."""
    match [(task.unit, pipeline.chains[task.chain]) for task in pipeline.tasks]:
        case [(TableStreamSource(how="ray", dataset=shared), ())]:
            return shared.get()
    return None


def has_ray_dataset(pipeline: Pipeline) -> bool:
    """Whether a task is a Ray dataset, which runs its own tasks while it is read."""
    return any(isinstance(task.unit, TableStreamSource) and task.unit.how == "ray" for task in pipeline.tasks)


def stream_ray_blocks(dataset: Any, offset: int) -> Generator[tuple[int, int, int, Any, str | None], None, None]:
    """Yield offset, rows, bytes, reference and node of each block, starting at row `offset`."""
    ray = import_ray()
    passed = 0
    with closing(_execute(dataset)) as entries:
        for ref, metadata in entries:
            num_rows, num_bytes = metadata.num_rows, metadata.size_bytes or 0
            if num_rows is None:
                num_rows = ray.get(ray.remote(_count_rows).options(num_cpus=0).remote(ref))
            cut = max(offset - passed, 0)
            passed += num_rows
            if cut >= num_rows:
                continue
            if cut:
                ref = ray.remote(_skip_rows).options(num_cpus=0, max_retries=-1).remote(ref, cut)
                num_bytes = num_bytes * (num_rows - cut) // num_rows
            stats = metadata.exec_stats
            yield passed - num_rows + cut, num_rows - cut, num_bytes, ref, stats.node_id if stats is not None else None


@contextlib.contextmanager
def preserving_order(dataset: Any, budget: int) -> Iterator[None]:
    """Make the dataset preserve its order, stay quiet, and stay within the budget or its own lower limit."""
    context = dataset.context
    options = context.execution_options
    before = options.preserve_order, options.resource_limits, context.enable_progress_bars
    limits = options.resource_limits
    try:
        options.preserve_order, context.enable_progress_bars = True, False
        options.resource_limits = type(limits)(
            cpu=limits.cpu,
            gpu=limits.gpu,
            object_store_memory=min(limits.object_store_memory, float(budget)),
            memory=limits.memory,
        )
        yield
    finally:
        options.preserve_order, options.resource_limits, context.enable_progress_bars = before


def _count_rows(value: Any) -> int:
    return ray_values.unpack_from_ray(value).num_rows


def _skip_rows(value: Any, begin: int) -> Any:
    return ray_values.pack_for_ray(ray_values.unpack_from_ray(value).slice(begin))
