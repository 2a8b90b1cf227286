"""The blocks of a pipeline in its order, by reference: a pipeline lowered to Ray Data."""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from typing import Any

import msgspec

from paceline._core.errors import DataError
from paceline._engine.ray.connect import imported
from paceline.data.context import DataContext
from paceline.data.exec.pipeline import Pipeline
from paceline.data.exec.ray import ledger, others, values
from paceline.data.exec.ray.carry import Carried
from paceline.data.exec.ray.ledger import Notes
from paceline.data.exec.ray.means import Means, cpus_needed, means_for, seen
from paceline.data.exec.ray.quiet import quietly
from paceline.data.exec.ray.work import Head, PoolStage, ReadUnit, Step, step_of
from paceline.data.exec.stats import Record


class Placed(msgspec.Struct, frozen=True):
    """Some rows of the order that lie on the cluster. `unpacked(ray.get(ref))` is the block of them."""

    unit: int
    """Which of the pipeline's tasks they come of."""
    offset: int
    """How many rows of that task's output come before."""
    num_rows: int
    num_bytes: int
    """What the object takes in the object store."""
    ref: Any
    """A `ray.ObjectRef`. The rows are kept for as long as somebody has it."""
    node: str | None = None
    """The id of the node where they were made, where that is known."""
    rows_bytes: int = 0
    """What the rows take in the memory of a process, as their block says."""


def blocks_of(
    pipeline: Pipeline,
    unit: int = 0,
    offset: int = 0,
    *,
    record: Record | None = None,
    say: Callable[[str], None] | None = None,
) -> Iterator[Placed]:
    """The rows of a pipeline in order, from a row of a task's output on; none of the tasks before is begun.

    In a process that is connected to Ray, driver or actor. It runs ahead of who takes from it within
    `DataContext.budget` bytes. Closing the iterator ends the work. `record` gets the stages' statistics and skipped
    rows as their blocks are taken. `say` gets the lines that a person should see; None: standard error. The user's own
    exceptions come as on one machine, once the rows before them are taken.
    """
    if unit >= len(pipeline.tasks):
        return
    dataset = others.dataset_of(pipeline)
    cluster = seen(cpus_needed(pipeline))
    means = means_for(pipeline, cluster, DataContext.get_current())
    lines = [means.said if dataset is None or means.with_cpus else others.starved(cluster)]
    if others.reads_ray(pipeline) and (unit, offset) == (0, 0):
        lines.append(others.SAID)
    for line in filter(None, lines):
        (say or _told)(line)
    ended = False
    with quietly():
        try:
            if dataset is not None:
                yield from _of_ray(dataset, offset, means)
            else:
                yield from _of_ours(pipeline, unit, offset, means, record)
            ended = True
        finally:
            if not ended:
                # Ray Data ends the work, and lets go of the blocks, when nobody has the iterator; it is part of cycles.
                gc.collect()


def _of_ray(dataset: Any, offset: int, means: Means) -> Iterator[Placed]:
    with others.in_order(dataset, means.budget), closing(others.rows_of(dataset, offset)) as found:
        for begin, num_rows, num_bytes, ref, node in found:
            yield Placed(0, begin, num_rows, num_bytes, ref, node, num_bytes)


def _of_ours(pipeline: Pipeline, unit: int, offset: int, means: Means, record: Record | None) -> Iterator[Placed]:
    notes = ledger.opened()
    try:
        with closing(_entries(_lowered(pipeline, unit, offset, means, notes), pipeline, notes)) as entries:
            for placed in _placed(entries, record):
                notes.took(placed.unit, placed.num_bytes)
                yield placed
    finally:
        notes.close()


def _placed(entries: Iterator[tuple[Any, Any]], record: Record | None) -> Iterator[Placed]:
    ray = imported()
    for ref, _ in entries:
        encoded = values.head_of(ray.get(ref), 0)
        assert encoded is not None, "a row that says nothing of itself comes after one that does"
        head = Head.of(encoded)
        if head.kind == "block":
            ref, metadata = next(entries)
            stats = metadata.exec_stats
            node = stats.node_id if stats is not None else None
            yield Placed(head.unit, head.offset, head.num_rows, head.length, ref, node, head.num_bytes)
            continue
        if record is not None:
            for done in head.done:
                record.meter(done.stage, done.title).add(done.meter)
            record.skipped += head.skipped
        if head.failure is not None:
            raise head.failure.error(head.pickled)


def _entries(dataset: Any, pipeline: Pipeline, notes: Notes) -> Generator[tuple[Any, Any], None, None]:
    """Ray's objects in order, with what Ray knows of them. Each has one row, as no block may have more than a byte."""
    ray = imported()
    try:
        for bundle in dataset.iter_internal_ref_bundles():
            yield from zip(bundle.block_refs, bundle.metadata, strict=True)
    except ray.exceptions.RayError as error:
        names = [pipeline.tasks[index].unit.name for index in notes.at_work()]
        where = f"{', '.join(names[:3])}{' and others' if len(names) > 3 else ''}: " if names else ""
        raise DataError(f"{where}Ray could not go on: {type(error).__name__}: {error}") from error


def _lowered(pipeline: Pipeline, unit: int, offset: int, means: Means, notes: Notes) -> Any:
    """A dataset of Ray Data: a read task for each unit, and an operator for each pool of each chain."""
    imported()
    from ray.data import ActorPoolStrategy, read_datasource
    from ray.data import DataContext as RayContext

    chains = {task.chain for task in pipeline.tasks[unit:]}
    steps = {chain: _steps(pipeline, chain, notes, means.ahead, (unit, offset)) for chain in chains}
    reads = [
        (ReadUnit(steps[task.chain][0], index, task.unit.name, Carried.of(task.unit)), task.unit.num_bytes)
        for index, task in enumerate(pipeline.tasks[unit:], start=unit)
    ]
    with warnings.catch_warnings(), RayContext.current(_context(means)):
        warnings.simplefilter("ignore")  # about how Ray calls its own
        dataset = read_datasource(
            _source(reads),
            override_num_blocks=len(reads),
            concurrency=None if means.most is None else min(means.most, len(reads)),
            num_cpus=1 if means.with_cpus and not others.reads_ray(pipeline) else 0,
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
                    compute=ActorPoolStrategy(min_size=pool.least, max_size=pool.most),
                    num_cpus=pool.num_cpus if means.with_cpus else 0,
                    num_gpus=pool.num_gpus or None,
                )
        return dataset


def _steps(pipeline: Pipeline, chain: int, notes: Notes, ahead: int, at: tuple[int, int]) -> list[Step]:
    stages = pipeline.stages(chain)
    return [
        step_of(stage, number, chain, last=number == len(stages) - 1, notes=notes, ahead=ahead, at=at)
        for number, stage in enumerate(stages)
    ]


def _source(reads: list[tuple[ReadUnit, int | None]]) -> Any:
    """Our own units as a source of Ray Data: as many tasks as there are units, in their order."""
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


def _context(means: Means) -> Any:
    from ray.data import DataContext as RayContext

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about settings that it has itself
        context = RayContext.get_current().copy()
    # One row to each object, so that it is known of each what it is.
    context.target_max_block_size = 1
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    # A unit takes as long as it takes, as on one machine.
    context.execution_no_progress_timeout_s = -1
    options, limits = context.execution_options, DataContext.get_current().execution_options.resource_limits
    options.preserve_order = True
    given = {"object_store_memory": float(means.budget)}
    if limits.cpu is not None and means.with_cpus:
        given["cpu"] = limits.cpu
    if limits.gpu is not None:
        given["gpu"] = limits.gpu
    options.resource_limits = type(options.resource_limits)(**given)
    return context


def _told(line: str) -> None:
    print(line, file=sys.stderr)
