"""What workers ask of a cluster, and who sits where: values and arithmetic, without Ray."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from paceline._engine.base import WorkerSpec
from paceline._engine.ray.shell import Where

_LEAST = {"CPU": 0.001}
"""A bundle has to ask for something."""


@dataclass(frozen=True)
class Wanted:
    """What one worker asks for, and how the workers are to lie."""

    resources: Mapping[str, float]
    strategy: str = "PACK"
    label_selector: Mapping[str, str] | None = None
    runtime_env: Mapping[str, Any] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables to set in every worker."""

    @property
    def bundle(self) -> dict[str, float]:
        return {name: amount for name, amount in self.resources.items() if amount} or dict(_LEAST)


def order_of(places: Sequence[Where]) -> list[int]:
    """The actors in the order of ranks: by node, then by device."""
    first_on: dict[str, int] = {}
    for index, place in enumerate(places):
        first_on.setdefault(place.node_id, index)
    return sorted(range(len(places)), key=lambda i: (first_on[places[i].node_id], _device(places[i]), i))


def seated(spec: WorkerSpec, rank: int, places: Sequence[Where], wanted: Wanted) -> WorkerSpec:
    """What a worker is told of its place; `places` in the order of ranks."""
    place = places[rank]
    nodes = list(dict.fromkeys(each.node_id for each in places))
    beside = [index for index, each in enumerate(places) if each.node_id == place.node_id]
    # All that the run has on the node is visible to each of its workers there, as collective libraries expect.
    gpus = list(dict.fromkeys(gpu for index in beside for gpu in places[index].gpus))
    num_threads = _num_threads(place, len(beside), wanted)
    begin = replace(
        spec.begin,
        local_rank=beside.index(rank),
        local_world_size=len(beside),
        node_rank=nodes.index(place.node_id),
        num_nodes=len(nodes),
        node_address=place.address,
        num_threads=num_threads,
        devices=tuple(gpus.index(gpu) for gpu in place.gpus),
    )
    env = {
        **spec.env,
        "CUDA_VISIBLE_DEVICES": ",".join(gpus),
        "OMP_NUM_THREADS": str(num_threads),
        **wanted.env,
    }
    return WorkerSpec(begin, spec.log, env)


def _num_threads(place: Where, num_beside: int, wanted: Wanted) -> int:
    asked = int(wanted.resources.get("CPU", 0))
    return asked if asked > 1 else max(1, place.num_cores // max(1, num_beside))


def _device(place: Where) -> tuple[int, str]:
    first = place.gpus[0] if place.gpus else ""
    return (int(first), "") if first.isdigit() else (0, first)
