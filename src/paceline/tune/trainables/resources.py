"""A trial's resource request: a dict, a `ScalingConfig`, bundles, or a function of the configuration.

A trial that is not a trainer has one process, which gets all requested resources and shares them with what it starts,
such as an inner run. So all bundles of a trial are placed together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from paceline._core.arguments import bad_value
from paceline._core.resource_planner import ResourceBundle
from paceline.train.config import ScalingConfig, check_not_searched
from paceline.train.placement_group import PlacementGroupFactory, check_bundle
from paceline.tune.driver.resource_ledger import TrialNeeds

ResourceRequest = Mapping[str, float] | ScalingConfig | PlacementGroupFactory
TrialResources = ResourceRequest | Callable[[Mapping[str, Any]], ResourceRequest]
"""The argument of `with_resources`."""


def check_resources(resources: Any) -> TrialResources:
    """Return the resources as given, checked as far as possible without a configuration."""
    if not callable(resources) or isinstance(resources, type):
        _to_placement_group(resources, "resources")
    return resources  # type: ignore[no-any-return]


def make_single_worker_scaling(resources: TrialResources, config: Mapping[str, Any]) -> ScalingConfig:
    """Return the scaling for one worker that has all resources."""
    name = "resources"
    if callable(resources):
        name = f"{getattr(resources, '__name__', 'resources')}(config)"
        try:
            resources = resources(config)
        except Exception as problem:
            text = f"{type(problem).__name__}: {problem}"
            raise ValueError(f"the resources of a trial: {name} raised {text}; config is {dict(config)!r}") from problem
    request = _to_placement_group(resources, name)
    if isinstance(resources, ScalingConfig) and resources.num_workers == 1:
        return resources
    total = {name: float(amount) for name, amount in request.required_resources.items() if amount or name == "CPU"}
    num_gpus = total.get("GPU", 0.0)
    if num_gpus > 1:
        total["GPU"] = float(math.ceil(num_gpus))
    return ScalingConfig(
        num_workers=1,
        use_gpu=num_gpus > 0,
        resources_per_worker=total,
        placement_strategy=request.strategy,
        accelerator_type=resources.accelerator_type if isinstance(resources, ScalingConfig) else None,
    )


def to_trial_needs(scaling: ScalingConfig, *, is_explicit: bool, hint: str = TrialNeeds.hint) -> TrialNeeds:
    """Return what the workers of a run need, one bundle each. For an elastic run, the maximum number of workers."""
    others = dict(scaling.additional_resources_per_worker)
    if scaling.accelerator_type is not None:
        others[f"accelerator_type:{scaling.accelerator_type}"] = 0.001
    bundle = ResourceBundle(scaling.num_cpus_per_worker, scaling.num_gpus_per_worker, tuple(sorted(others.items())))
    return TrialNeeds((bundle,) * scaling.max_workers, is_explicit, scaling.placement_strategy, hint)


def to_placement_group(needs: TrialNeeds) -> PlacementGroupFactory:
    """Return the bundles that a trial needs, as its scheduler and callbacks see them."""
    bundles = []
    for bundle in needs.bundles:
        amounts = {"CPU": bundle.num_cpus, "GPU": bundle.num_gpus, **dict(bundle.others)}
        bundles.append({name: amount for name, amount in amounts.items() if amount})
    return PlacementGroupFactory(bundles, needs.strategy)


def _to_placement_group(resources: Any, name: str) -> PlacementGroupFactory:
    if isinstance(resources, PlacementGroupFactory):
        return resources
    if isinstance(resources, ScalingConfig):
        check_not_searched(resources)
        if resources.max_workers == 0:
            raise bad_value(name, "a ScalingConfig with at least one worker", resources)
        own = {"CPU": resources.num_cpus_per_worker, "GPU": resources.num_gpus_per_worker}
        bundles = [{**own, **resources.additional_resources_per_worker}] * resources.max_workers
        return PlacementGroupFactory(bundles, resources.placement_strategy)
    if isinstance(resources, Mapping):
        return PlacementGroupFactory([check_bundle(resources, name)])
    others = "a ScalingConfig, a PlacementGroupFactory, or a function of the config"
    raise bad_value(name, f"a dict such as {{'cpu': 2, 'gpu': 0.5}}, {others}", resources)
