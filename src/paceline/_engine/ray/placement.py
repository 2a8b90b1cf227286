"""What workers ask of a cluster, and who sits where: values and arithmetic, without Ray."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from paceline._engine.base import WorkerSpec
from paceline._engine.ray.shell import Where

_LEAST = {"memory": 1.0}
"""A bundle has to ask for something: a byte, which nodes without free CPUs have as well."""
_THREADS = "OMP_NUM_THREADS"


@dataclass(frozen=True)
class Wanted:
    """What one worker asks for, and how the workers are to lie."""

    resources: Mapping[str, float]
    strategy: str = "PACK"
    label_selector: Mapping[str, str] | Sequence[Mapping[str, str]] | None = None
    """Labels of the node, for all workers, or for each of them in the order of bundles."""
    runtime_env: Mapping[str, Any] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables to set in every worker."""

    @property
    def bundle(self) -> dict[str, float]:
        return {name: amount for name, amount in self.resources.items() if amount} or dict(_LEAST)

    def selectors(self, size: int) -> list[dict[str, str]]:
        """The labels that each worker's node has to have."""
        asked = self.label_selector or {}
        if isinstance(asked, Mapping):
            return [dict(asked)] * size
        return [dict(selector) for selector in asked]

    @property
    def options(self) -> dict[str, Any]:
        """What the actor in a bundle asks for: all of it but memory, which the bundle keeps for it."""
        asked = {name: amount for name, amount in self.bundle.items() if name != "memory"}
        return {"num_cpus": asked.pop("CPU", 0), "num_gpus": asked.pop("GPU", 0), "resources": asked}


def order_of(places: Sequence[Where], home: str = "") -> list[int]:
    """The actors in the order of ranks: by node, then by device. `home` is the driver's own node, which comes first."""
    first_on: dict[str, int] = {}
    for index, place in enumerate(places):
        first_on.setdefault(place.node_id, index)

    def key(index: int) -> tuple[Any, ...]:
        place = places[index]
        return place.node_id != home, first_on[place.node_id], sorted(map(_device, place.gpus)), index

    return sorted(range(len(places)), key=key)


def seated(spec: WorkerSpec, rank: int, places: Sequence[Where], wanted: Wanted) -> WorkerSpec:
    """What a worker is told of its place; `places` in the order of ranks."""
    place = places[rank]
    nodes = list(dict.fromkeys(each.node_id for each in places))
    beside = [index for index, each in enumerate(places) if each.node_id == place.node_id]
    # All that the run has on the node is visible to each of its workers there, as collective libraries expect.
    gpus = sorted({gpu for index in beside for gpu in places[index].gpus}, key=_device) if place.gpus else []
    threads = _from_runtime_env(wanted) or wanted.env.get(_THREADS, "")
    num_threads = _num_threads(threads, place, len(beside), wanted)
    begin = replace(
        spec.begin,
        local_rank=beside.index(rank),
        local_world_size=len(beside),
        node_rank=nodes.index(place.node_id),
        num_nodes=len(nodes),
        node_address=place.address,
        num_threads=num_threads,
        devices=tuple(gpus.index(gpu) for gpu in sorted(place.gpus, key=_device)),
    )
    env = {
        **spec.env,
        "CUDA_VISIBLE_DEVICES": ",".join(gpus),
        **wanted.env,
        _THREADS: threads or str(num_threads),
    }
    return WorkerSpec(begin, spec.log, env)


def _num_threads(told: str, place: Where, num_beside: int, wanted: Wanted) -> int:
    """As the user has set it, or by the CPUs that were asked for, or a fair part of the node's cores."""
    first = told.split(",")[0]
    if first.isdigit() and int(first) > 0:
        return int(first)
    asked = int(wanted.resources.get("CPU", 0))
    return asked if asked > 1 else max(1, place.num_cores // max(1, num_beside))


def _from_runtime_env(wanted: Wanted) -> str:
    variables = (wanted.runtime_env or {}).get("env_vars") or {}
    return str(variables.get(_THREADS, ""))


def _device(gpu: str) -> tuple[int, str]:
    """By index where they have one; those named otherwise come after, by name."""
    return (int(gpu), "") if gpu.isdigit() else (1 << 30, gpu)
