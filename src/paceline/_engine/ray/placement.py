"""What workers request from a cluster, and how ranks are assigned to actors: values and arithmetic, without Ray."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from paceline._engine.base import WorkerSpec
from paceline._engine.ray.worker_actor import ActorPlacement

_MIN_BUNDLE = {"memory": 1.0}
"""A bundle must request something: one byte of memory, which nodes without free CPUs have as well."""
_THREADS_VARIABLE = "OMP_NUM_THREADS"


@dataclass(frozen=True)
class PlacementSpec:
    """What one worker requests, and how the workers are placed."""

    resources: Mapping[str, float]
    strategy: str = "PACK"
    label_selector: Mapping[str, str] | Sequence[Mapping[str, str]] | None = None
    """Node labels for all workers, or for each worker in bundle order."""
    runtime_env: Mapping[str, Any] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables to set in every worker."""

    @property
    def bundle(self) -> dict[str, float]:
        return {name: amount for name, amount in self.resources.items() if amount} or dict(_MIN_BUNDLE)

    def bundle_selectors(self, size: int) -> list[dict[str, str]]:
        """Return the labels that each worker's node must have."""
        selectors = self.label_selector or {}
        if isinstance(selectors, Mapping):
            return [dict(selectors)] * size
        return [dict(each) for each in selectors]

    @property
    def actor_options(self) -> dict[str, Any]:
        """What the actor in a bundle requests: everything but memory, which the bundle reserves for it."""
        rest = {name: amount for name, amount in self.bundle.items() if name != "memory"}
        return {"num_cpus": rest.pop("CPU", 0), "num_gpus": rest.pop("GPU", 0), "resources": rest}


def order_ranks(places: Sequence[ActorPlacement], driver_node: str = "") -> list[int]:
    """Return the actors in rank order: by node, then by device. The driver's own node comes first."""
    first_on: dict[str, int] = {}
    for index, place in enumerate(places):
        first_on.setdefault(place.node_id, index)

    def key(index: int) -> tuple[Any, ...]:
        place = places[index]
        return place.node_id != driver_node, first_on[place.node_id], sorted(map(_device_sort_key, place.gpus)), index

    return sorted(range(len(places)), key=key)


def place_worker(
    spec: WorkerSpec, rank: int, places: Sequence[ActorPlacement], placement_spec: PlacementSpec
) -> WorkerSpec:
    """Fill in a worker's ranks, devices, threads and environment for its placement; `places` is in rank order."""
    place = places[rank]
    nodes = list(dict.fromkeys(each.node_id for each in places))
    local_ranks = [index for index, each in enumerate(places) if each.node_id == place.node_id]
    # Each worker sees all GPUs that the run has on its node, as collective libraries expect.
    gpus = (
        sorted({gpu for index in local_ranks for gpu in places[index].gpus}, key=_device_sort_key) if place.gpus else []
    )
    variables = (placement_spec.runtime_env or {}).get("env_vars") or {}
    threads = str(variables.get(_THREADS_VARIABLE, "")) or placement_spec.env.get(_THREADS_VARIABLE, "")
    num_threads = _num_threads(threads, place, len(local_ranks), placement_spec)
    begin = replace(
        spec.begin,
        local_rank=local_ranks.index(rank),
        local_world_size=len(local_ranks),
        node_rank=nodes.index(place.node_id),
        num_nodes=len(nodes),
        node_address=place.address,
        num_threads=num_threads,
        devices=tuple(gpus.index(gpu) for gpu in sorted(place.gpus, key=_device_sort_key)),
    )
    env = {
        **spec.env,
        "CUDA_VISIBLE_DEVICES": ",".join(gpus),
        **placement_spec.env,
        _THREADS_VARIABLE: threads or str(num_threads),
    }
    return WorkerSpec(begin, spec.log, env)


def _num_threads(threads: str, place: ActorPlacement, num_beside: int, placement_spec: PlacementSpec) -> int:
    """Return the number that the user set, else the requested CPUs, else a fair share of the node's cores."""
    first = threads.split(",")[0]
    if first.isdigit() and int(first) > 0:
        return int(first)
    num_cpus = int(placement_spec.resources.get("CPU", 0))
    return num_cpus if num_cpus > 1 else max(1, place.num_cores // max(1, num_beside))


def _device_sort_key(gpu: str) -> tuple[int, str]:
    """Sort by index; GPUs without one come after, by name."""
    return (int(gpu), "") if gpu.isdigit() else (1 << 30, gpu)
