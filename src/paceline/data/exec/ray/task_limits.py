"""What the tasks of a dataset may use of a cluster, decided before the first task. Pure, except `observe_cluster`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from paceline._engine.ray.connection import import_ray
from paceline.data.context import DataContext
from paceline.data.exec.pipeline import Pipeline, PipelineStage, check_gpus

_READERS_PER_BUSY_NODE = 2
"""Read tasks per node when the workers hold all cores."""
_SETTLE_TIMEOUT_S = 2.0
_POLL_S = 0.05


@dataclass(frozen=True)
class ClusterResources:
    """The cluster's total and free resources."""

    num_nodes: int
    num_cpus: float
    free_cpus: float
    num_gpus: float
    store_bytes: float


@dataclass(frozen=True)
class TaskLimits:
    budget: int
    """Bytes in flight."""
    requests_cpus: bool
    """Whether tasks request cores from Ray; otherwise they run beside the workers that hold all cores."""
    max_concurrency: int | None
    """How many units are read at a time; None: as many as there are cores."""
    max_ahead_bytes: int
    """Bytes of one unit that may be stored before they are taken."""
    notice: str | None = None


_released: tuple[float, float] = (-_SETTLE_TIMEOUT_S, 0.0)
"""When tasks of ours ended last, and how many CPUs were free before they began."""


def note_finished_tasks(cluster: ClusterResources) -> None:
    """Remember that tasks have ended: Ray reports their CPUs as taken for half a second more."""
    global _released
    _released = time.monotonic(), cluster.free_cpus


def observe_cluster(needed: float) -> ClusterResources:
    """The cluster now. If too few CPUs are free, waits a moment for finished tasks to release theirs.

    If those tasks were our own, it does not wait.
    """
    ray = import_ray()
    from ray.util import placement_group_table

    resources = ray.cluster_resources()
    # Ray reports free CPUs with a delay, and reservations at once.
    reserved = sum(
        bundle.get("CPU", 0.0)
        for group in placement_group_table().values()
        if group["state"] == "CREATED"
        for bundle in group["bundles"].values()
    )
    most = resources.get("CPU", 0.0) - reserved
    free = min(ray.available_resources().get("CPU", 0.0), most)
    deadline = time.monotonic() + _SETTLE_TIMEOUT_S
    ended_at, num_freed = _released
    if time.monotonic() - ended_at < _SETTLE_TIMEOUT_S:
        free = max(free, min(num_freed, most))
    while free < needed <= most and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        free = min(ray.available_resources().get("CPU", 0.0), most)
    return ClusterResources(
        num_nodes=sum(1 for node in ray.nodes() if node["Alive"]),
        num_cpus=resources.get("CPU", 0.0),
        free_cpus=free,
        num_gpus=resources.get("GPU", 0.0),
        store_bytes=resources.get("object_store_memory", 0.0),
    )


def num_cpus_needed(pipeline: Pipeline) -> float:
    """CPUs to run one task of every stage at a time: with fewer, the pipeline would never progress."""
    pools = [stage.pool for stage in used_stages(pipeline) if stage.pool is not None]
    return 1.0 + sum(pool.min_size * pool.num_cpus for pool in pools)


def decide_task_limits(pipeline: Pipeline, cluster: ClusterResources, context: DataContext) -> TaskLimits:
    for stage in used_stages(pipeline):
        check_gpus(stage.name, stage.pool, int(cluster.num_gpus))
    limits = context.execution_options.resource_limits
    budget = int(limits.object_store_memory if limits.object_store_memory is not None else cluster.store_bytes // 4)
    # Each unit being read may have twice its size in flight: finished output, and output being written.
    largest = max((task.unit.num_bytes or 0 for task in pipeline.tasks), default=0)
    bounds = [budget // (2 * largest)] if largest else []
    if limits.cpu is not None:
        bounds.append(int(limits.cpu))
    fitting = max(1, min(bounds)) if bounds else None
    needed = num_cpus_needed(pipeline)
    if cluster.free_cpus >= needed:
        at_a_time = min(fitting or len(pipeline.tasks), len(pipeline.tasks), int(cluster.free_cpus))
        return TaskLimits(budget, True, fitting, budget // (2 * max(at_a_time, 1)))
    most = min(
        fitting or _READERS_PER_BUSY_NODE * cluster.num_nodes, _READERS_PER_BUSY_NODE * max(cluster.num_nodes, 1)
    )
    return TaskLimits(
        budget,
        False,
        most,
        budget // (2 * min(most, max(len(pipeline.tasks), 1))),
        f"data: {needed:g} CPUs are needed, and {cluster.free_cpus:g} of the cluster's {cluster.num_cpus:g} are free: "
        f"up to {most} processes read rows beside the workers",
    )


def used_stages(pipeline: Pipeline) -> Sequence[PipelineStage]:
    used = sorted({task.chain for task in pipeline.tasks})
    return [stage for chain in used for stage in pipeline.stages(chain)]
