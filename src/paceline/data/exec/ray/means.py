"""What the tasks of a dataset may use of a cluster, decided before the first one is started. Pure but for `seen`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from paceline._engine.ray.connect import imported
from paceline.data.context import DataContext
from paceline.data.exec.gpus import check_gpus
from paceline.data.exec.pipeline import Pipeline, Stage

_BESIDE = 2
"""Processes on each node that read beside workers that have taken all cores."""


_MOMENT_S = 2.0
_LOOK_S = 0.05


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
    ahead: int
    """Bytes of one unit that may lie there before they are taken."""
    said: str | None = None
    """What a person should know of it."""


def seen(needed: float) -> Cluster:
    """The cluster now; if it has less than is needed free, after a moment in which those who are done may end."""
    ray = imported()
    from ray.util import placement_group_table

    there = ray.cluster_resources()
    # What is free is known with a delay, what is reserved at once.
    reserved = sum(
        bundle.get("CPU", 0.0)
        for group in placement_group_table().values()
        if group["state"] == "CREATED"
        for bundle in group["bundles"].values()
    )
    most = there.get("CPU", 0.0) - reserved
    free = min(ray.available_resources().get("CPU", 0.0), most)
    deadline = time.monotonic() + _MOMENT_S
    while free < needed <= most and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
        free = min(ray.available_resources().get("CPU", 0.0), most)
    return Cluster(
        num_nodes=sum(1 for node in ray.nodes() if node["Alive"]),
        num_cpus=there.get("CPU", 0.0),
        free_cpus=free,
        num_gpus=there.get("GPU", 0.0),
        store_bytes=there.get("object_store_memory", 0.0),
    )


def cpus_needed(pipeline: Pipeline) -> float:
    """For something of every stage to be done at a time: less would be waited for in vain."""
    pools = [stage.pool for stage in stages_of(pipeline) if stage.pool is not None]
    return 1.0 + sum(pool.least * pool.num_cpus for pool in pools)


def means_for(pipeline: Pipeline, cluster: Cluster, context: DataContext) -> Means:
    for stage in stages_of(pipeline):
        check_gpus(stage.name, stage.pool, int(cluster.num_gpus))
    limits = context.execution_options.resource_limits
    budget = int(limits.object_store_memory if limits.object_store_memory is not None else cluster.store_bytes // 4)
    # Two of a unit's size may be in flight for each that is read: what was made of it, and what is being made.
    largest = max((task.unit.num_bytes or 0 for task in pipeline.tasks), default=0)
    bounds = [budget // (2 * largest)] if largest else []
    if limits.cpu is not None:
        bounds.append(int(limits.cpu))
    fitting = max(1, min(bounds)) if bounds else None
    needed = cpus_needed(pipeline)
    if cluster.free_cpus >= needed:
        at_a_time = min(fitting or len(pipeline.tasks), len(pipeline.tasks), int(cluster.free_cpus))
        return Means(budget, True, fitting, budget // (2 * max(at_a_time, 1)))
    most = min(fitting or _BESIDE * cluster.num_nodes, _BESIDE * max(cluster.num_nodes, 1))
    return Means(
        budget,
        False,
        most,
        budget // (2 * min(most, max(len(pipeline.tasks), 1))),
        f"data: {cluster.free_cpus:g} of the cluster's {cluster.num_cpus:g} CPUs are free and {needed:g} are needed, "
        f"so rows are read by up to {most} processes beside those that have them",
    )


def stages_of(pipeline: Pipeline) -> Sequence[Stage]:
    used = sorted({task.chain for task in pipeline.tasks})
    return [stage for chain in used for stage in pipeline.stages(chain)]
