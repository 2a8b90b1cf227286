"""Runs a `ray.data.Dataset` that was passed to a trainer, unchanged.

Its blocks come in its own order, and the only known position is the number of rows taken. To resume, its execution is
repeated and that many rows are skipped, whole blocks at a time without fetching them. So a resume continues with the
unused rows only if the dataset yields the same rows in the same order each time; one with an unseeded random shuffle,
for example, does not.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

from paceline._engine.ray.connection import import_ray
from paceline.data.exec.pipeline import Pipeline
from paceline.data.exec.ray.ray_values import pack_for_ray, unpack_from_ray
from paceline.data.exec.ray.task_limits import ClusterResources
from paceline.data.sources.frameworks import TableStreamSource

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
    for bundle in dataset.iter_internal_ref_bundles():
        for ref, metadata in zip(bundle.block_refs, bundle.metadata, strict=True):
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


@contextmanager
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
    return unpack_from_ray(value).num_rows


def _skip_rows(value: Any, begin: int) -> Any:
    return pack_for_ray(unpack_from_ray(value).slice(begin))
