"""What the tasks of a dataset may use of a cluster, decided before the first one is started. Pure but for `seen`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline._engine.ray.connect import imported
from paceline.data.context import DataContext
from paceline.data.exec.gpus import check_gpus
from paceline.data.exec.pipeline import Pipeline, Stage

_BESIDE = 2
"""Processes on each node that read beside workers that have taken all cores."""


@dataclass(frozen=True)
class Cluster:
    """What there is, and what of it is free."""

    num_nodes: int
    num_cpus: float
    free_cpus: float
    num_gpus: float
    store_bytes: float


@dataclass(frozen=True)
class Means:
    budget: int
    """Bytes in flight."""
    with_cpus: bool
    """Tasks ask Ray for cores; else they run beside those who have them all."""
    most: int | None
    """How many units are read at a time; None: as many as there are cores for."""
    said: str | None = None
    """What a person should know of it."""


def seen() -> Cluster:
    ray = imported()
    there, free = ray.cluster_resources(), ray.available_resources()
    return Cluster(
        num_nodes=sum(1 for node in ray.nodes() if node["Alive"]),
        num_cpus=there.get("CPU", 0.0),
        free_cpus=free.get("CPU", 0.0),
        num_gpus=there.get("GPU", 0.0),
        store_bytes=there.get("object_store_memory", 0.0),
    )


def means_for(pipeline: Pipeline, cluster: Cluster, context: DataContext) -> Means:
    pools = [stage for stage in stages_of(pipeline) if stage.pool is not None]
    for stage in pools:
        check_gpus(stage.name, stage.pool, int(cluster.num_gpus))
    limits = context.execution_options.resource_limits
    budget = int(limits.object_store_memory if limits.object_store_memory is not None else cluster.store_bytes // 4)
    # Two of a unit's size may be in flight for each that is read: what was made of it, and what is being made.
    largest = max((task.unit.num_bytes or 0 for task in pipeline.tasks), default=0)
    fitting = max(1, budget // (2 * largest)) if largest else None
    needed = 1.0 + sum(stage.pool.least * stage.pool.num_cpus for stage in pools if stage.pool is not None)
    if cluster.free_cpus >= needed:
        return Means(budget, True, fitting)
    most = min(fitting or _BESIDE * cluster.num_nodes, _BESIDE * max(cluster.num_nodes, 1))
    return Means(
        budget,
        False,
        most,
        f"data: {cluster.free_cpus:g} of the cluster's {cluster.num_cpus:g} CPUs are free and {needed:g} are needed, "
        f"so rows are read by up to {most} processes beside those that have them",
    )


def stages_of(pipeline: Pipeline) -> Sequence[Stage]:
    used = sorted({task.chain for task in pipeline.tasks})
    return [stage for chain in used for stage in pipeline.stages(chain)]
