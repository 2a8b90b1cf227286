"""What workers request from a cluster, and how ranks are assigned to actors: values and arithmetic, without Ray."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from paceline._engine.base import WorkerSpec
from paceline._engine.ray.node_agent import ActorPlacement

_MIN_BUNDLE = {"memory": 1.0}
"""A bundle must request something: one byte of memory, which nodes without free CPUs have as well."""
_NODE_ID_LABEL = "ray.io/node-id"
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

    def bundle_selectors_without(self, size: int, nodes: Collection[str]) -> list[dict[str, str]]:
        """Return the same, such that no worker is placed on these nodes; who selects nodes by their ids gets those."""
        without = {_NODE_ID_LABEL: f"!in({','.join(sorted(nodes))})"} if nodes else {}
        return [{**without, **selector} for selector in self.bundle_selectors(size)]


def order_ranks(places: Sequence[ActorPlacement], driver_node: str = "") -> list[int]:
    """Return the actors in rank order: by node, then by device. The driver's own node comes first."""
    first_on: dict[str, int] = {}
    for index, place in enumerate(places):
        first_on.setdefault(place.node_id, index)

    def key(index: int) -> tuple[Any, ...]:
        place = places[index]
        return place.node_id != driver_node, first_on[place.node_id], sorted(map(_device_sort_key, place.gpus)), index

    return sorted(range(len(places)), key=key)


def place_workers(
    specs: Sequence[WorkerSpec], places: Sequence[ActorPlacement], placement_spec: PlacementSpec
) -> list[WorkerSpec]:
    """Fill in the workers' ranks, devices, threads and environment for their placements; all are in rank order."""
    ranks_on: dict[str, list[int]] = {}
    for rank, place in enumerate(places):
        ranks_on.setdefault(place.node_id, []).append(rank)
    placed: dict[int, WorkerSpec] = {}
    for node_rank, ranks in enumerate(ranks_on.values()):
        # Each worker sees all GPUs that the run has on its node, as collective libraries expect.
        gpus = sorted({gpu for rank in ranks for gpu in places[rank].gpus}, key=_device_sort_key)
        for local_rank, rank in enumerate(ranks):
            threads, num_threads = _choose_threads(places[rank], len(ranks), placement_spec)
            begin = replace(
                specs[rank].begin,
                local_rank=local_rank,
                local_world_size=len(ranks),
                node_rank=node_rank,
                num_nodes=len(ranks_on),
                node_address=places[rank].address,
                num_threads=num_threads,
                devices=tuple(gpus.index(gpu) for gpu in sorted(places[rank].gpus, key=_device_sort_key)),
            )
            env = {
                **specs[rank].env,
                "CUDA_VISIBLE_DEVICES": ",".join(gpus if places[rank].gpus else ()),
                **placement_spec.env,
                _THREADS_VARIABLE: threads,
            }
            placed[rank] = WorkerSpec(begin, specs[rank].log, env)
    return [placed[rank] for rank in range(len(specs))]


def _choose_threads(place: ActorPlacement, num_beside: int, placement_spec: PlacementSpec) -> tuple[str, int]:
    """Return the variable and the number: as the user set, else the requested CPUs, else a fair share of the cores."""
    variables = (placement_spec.runtime_env or {}).get("env_vars") or {}
    threads = str(variables.get(_THREADS_VARIABLE, "")) or placement_spec.env.get(_THREADS_VARIABLE, "")
    first = threads.split(",")[0]
    if first.isdigit() and int(first) > 0:
        return threads, int(first)
    num_cpus = int(placement_spec.resources.get("CPU", 0))
    num_threads = num_cpus if num_cpus > 1 else max(1, place.num_cores // max(1, num_beside))
    return threads or str(num_threads), num_threads


def _device_sort_key(gpu: str) -> tuple[int, str]:
    """Sort by index; GPUs without one come after, by name."""
    return (int(gpu), "") if gpu.isdigit() else (1 << 30, gpu)
