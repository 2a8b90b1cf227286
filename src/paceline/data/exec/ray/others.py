"""A `ray.data.Dataset` that was given to a trainer, run as it is.

Its blocks come in its own order. What is known of where it stands is how many rows were taken: to go on from there its
execution is repeated, and so many rows are counted off, by whole blocks that nobody fetches. So a resume gives the rows
that were not used yet if the dataset gives the same rows in the same order each time; one with a random shuffle without
a seed, for example, does not.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

from paceline._engine.ray.connect import imported
from paceline.data.exec.pipeline import Pipeline
from paceline.data.exec.ray.means import Cluster
from paceline.data.exec.ray.values import packed, unpacked
from paceline.data.sources.huggingface import Tables

SAID = (
    "data: a ray.data.Dataset is run as it is; a resume repeats its execution and goes on at the row where it stood, "
    "which needs the same rows in the same order each time"
)


def starved(cluster: Cluster) -> str:
    return (
        f"data: a ray.data.Dataset needs CPUs, and {cluster.free_cpus:g} of the cluster's {cluster.num_cpus:g} are free: "
        "it waits until there are some (fewer workers, or num_cpus=0 for its steps, leave it some)"
    )


def dataset_of(pipeline: Pipeline) -> Any:
    """The dataset of Ray that a pipeline consists of, if nothing is done to its rows; else None."""
    match [(task.unit, pipeline.chains[task.chain]) for task in pipeline.tasks]:
        case [(Tables(how="ray", held=held), ())]:
            return held.get()
    return None


def reads_ray(pipeline: Pipeline) -> bool:
    """Whether a task is a dataset of Ray, which has tasks of its own while it is read."""
    return any(isinstance(task.unit, Tables) and task.unit.how == "ray" for task in pipeline.tasks)


def rows_of(dataset: Any, offset: int) -> Generator[tuple[int, int, int, Any, str | None], None, None]:
    """Offset, rows, bytes, reference and node of each block, from a row on."""
    ray = imported()
    passed = 0
    for bundle in dataset.iter_internal_ref_bundles():
        for ref, metadata in zip(bundle.block_refs, bundle.metadata, strict=True):
            num_rows, num_bytes = metadata.num_rows, metadata.size_bytes or 0
            if num_rows is None:
                num_rows = ray.get(ray.remote(_counted).options(num_cpus=0).remote(ref))
            cut = max(offset - passed, 0)
            passed += num_rows
            if cut >= num_rows:
                continue
            if cut:
                ref = ray.remote(_cut).options(num_cpus=0, max_retries=-1).remote(ref, cut)
                num_bytes = num_bytes * (num_rows - cut) // num_rows
            stats = metadata.exec_stats
            yield passed - num_rows + cut, num_rows - cut, num_bytes, ref, stats.node_id if stats is not None else None


@contextmanager
def in_order(dataset: Any, budget: int) -> Iterator[None]:
    """The dataset keeps its order, makes no noise and stays within a budget, unless its own says less."""
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


def _counted(value: Any) -> int:
    return unpacked(value).num_rows


def _cut(value: Any, begin: int) -> Any:
    return packed(unpacked(value).slice(begin))
