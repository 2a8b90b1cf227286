"""`PlacementGroupFactory`: bundles of resources that are placed together, as Ray writes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline._core.arguments import bad_value, check_choice
from paceline.train.config import STRATEGIES, check_resource

_KNOWN = {"cpu": "CPU", "gpu": "GPU"}
_OF_SCALING = "a ScalingConfig in place of the dict"
_MISTAKEN = {
    **dict.fromkeys(("cpus", "CPUs", "CPUS", "num_cpus"), "'cpu'"),
    **dict.fromkeys(("gpus", "GPUs", "GPUS", "num_gpus"), "'gpu'"),
    **dict.fromkeys(("num_workers", "use_gpu", "resources_per_worker"), _OF_SCALING),
}
"""Names that no resource has. A resource of the user's may have any other."""


@dataclass(frozen=True)
class PlacementGroupFactory:
    """Bundles of resources for a trial: the first for its own process, the others for what that process starts.

    PlacementGroupFactory([{"CPU": 1}, {"CPU": 2, "GPU": 1}])
    """

    bundles: Sequence[Mapping[str, float]]
    strategy: str = "PACK"

    def __post_init__(self) -> None:
        if isinstance(self.bundles, str | bytes | Mapping) or not isinstance(self.bundles, Sequence):
            raise bad_value("bundles", "a list of dicts such as [{'CPU': 1}]", self.bundles)
        if not self.bundles:
            raise bad_value("bundles", "at least one dict such as {'CPU': 1}", self.bundles)
        check_choice("strategy", self.strategy, STRATEGIES)
        checked = tuple(check_bundle(bundle, f"bundles[{number}]") for number, bundle in enumerate(self.bundles))
        object.__setattr__(self, "bundles", checked)

    def to_placement_group(self) -> Any:
        """Reserve the bundles on the Ray cluster that this process is connected to: a `PlacementGroup` of Ray."""
        from paceline._engine.ray.connection import create_placement_group

        return create_placement_group([dict(bundle) for bundle in self.bundles], self.strategy)

    @property
    def required_resources(self) -> dict[str, float]:
        """The total of all bundles."""
        total: Counter[str] = Counter()
        for bundle in self.bundles:
            for name, amount in bundle.items():
                total[name] += amount  # type: ignore[assignment]
        return dict(total)

    @property
    def head_bundle_is_empty(self) -> bool:
        return not any(self.bundles[0].values())

    @property
    def head_cpus(self) -> float:
        return self.bundles[0].get("CPU", 0.0)


def check_bundle(bundle: Any, argument: str) -> dict[str, float]:
    if not isinstance(bundle, Mapping):
        raise bad_value(argument, "a dict such as {'CPU': 1}", bundle)
    amounts: dict[str, float] = {}
    for key, amount in bundle.items():
        if key == "custom_resources" and isinstance(amount, Mapping):
            amounts |= check_bundle(amount, f"{argument}['custom_resources']")
            continue
        if key in _MISTAKEN:
            raise ValueError(f"unknown resource {key!r} in {argument}\n\nhint: use {_MISTAKEN[key]}")
        check_resource(argument, key, amount)
        name: str = _KNOWN.get(key.lower()) or key
        if name in amounts:
            raise ValueError(f"{argument} has {name} twice: {dict(bundle)!r}")
        if name == "GPU" and amount > 1 and amount != int(amount):
            raise bad_value(f"{argument}[{key!r}]", "below 1 or an integer", amount)
        amounts[name] = float(amount)
    return amounts
