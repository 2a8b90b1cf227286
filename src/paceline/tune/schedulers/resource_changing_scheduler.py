"""Changes the resources of trials while they train: `ResourceChangingScheduler`, and the functions that allocate.

Another scheduler decides which trials continue. One that continues, and whose state is in a checkpoint, may get other
resources: it stops at that report and goes on from the checkpoint once they are free.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from paceline._core.arguments import bad_value, check_bool, check_callable, check_choice, check_instance, is_number
from paceline._core.plain_values import get_metric
from paceline.train.placement_group import PlacementGroupFactory
from paceline.tune.schedulers.scheduler import Action, FIFOScheduler, Reallocate, TrialScheduler
from paceline.tune.trial import Trial

_TINY = 1e-6


class DistributeResources:
    """Shares the resources of the machine or cluster evenly among the unfinished trials, beyond what each requested.

    A trial is given resources in steps of `increase_by`, such as `{"CPU": 1, "GPU": 1}`: by default one core, and a GPU
    if it requested GPUs; with `add_bundles`, one more bundle like its last one. It gets at most `increase_by_times`
    steps; -1 means no limit. `reserve_resources` are left alone.
    """

    def __init__(
        self,
        add_bundles: bool = False,
        increase_by: Mapping[str, float] | None = None,
        increase_by_times: int = -1,
        reserve_resources: Mapping[str, float] | None = None,
    ) -> None:
        check_bool("add_bundles", add_bundles)
        for name, amounts in (("increase_by", increase_by), ("reserve_resources", reserve_resources)):
            if not isinstance(amounts or {}, Mapping) or not all(
                is_number(amount) and amount >= 0 for amount in (amounts or {}).values()
            ):
                raise bad_value(name, "a dict of amounts such as {'CPU': 1}", amounts)
        self.add_bundles = add_bundles
        self.increase_by = dict(increase_by or {})
        self.increase_by_times = increase_by_times
        self.reserve_resources = dict(reserve_resources or {})

    def __call__(
        self, tune_controller: Any, trial: Trial, result: Mapping[str, Any], scheduler: ResourceChangingScheduler
    ) -> PlacementGroupFactory | None:
        """Return the resources that a trial should have; None if these are unknown."""
        base = scheduler.base_trial_resources or trial.resources
        if base is None:
            return None
        step = self._step(base)
        live = tune_controller.get_live_trials()
        num_steps = self._count_steps(tune_controller.get_total_resources(), base, step, len(live))
        num_steps = self._share(num_steps, trial, live)
        if self.increase_by_times >= 0:
            num_steps = min(num_steps, self.increase_by_times)
        if self.add_bundles:
            return PlacementGroupFactory([*base.bundles, *[step] * num_steps], base.strategy)
        head, *others = base.bundles
        grown = {name: head.get(name, 0) + num_steps * step.get(name, 0) for name in {**head, **step}}
        return PlacementGroupFactory([grown, *others], base.strategy)

    def _step(self, base: PlacementGroupFactory) -> dict[str, float]:
        if self.increase_by:
            return self.increase_by
        if self.add_bundles:
            return dict(base.bundles[-1])
        return {name: 1.0 for name in ("CPU", "GPU") if base.required_resources.get(name)}

    def _count_steps(
        self, total: Mapping[str, float], base: PlacementGroupFactory, step: Mapping[str, float], num_trials: int
    ) -> int:
        """Return how many steps there are for all trials together, once each has what it asked for."""
        required = base.required_resources
        counts = []
        for name, amount in step.items():
            free = total.get(name, 0) - self.reserve_resources.get(name, 0) - num_trials * required.get(name, 0)
            if amount:
                counts.append(max(0, math.floor(free / amount + _TINY)))
        return min(counts, default=0)

    def _share(self, num_steps: int, trial: Trial, live: Sequence[Trial]) -> int:
        return num_steps // max(1, len(live))


class DistributeResourcesToTopJob(DistributeResources):
    """As `DistributeResources`, but all that is free goes to the best trial, by its last result."""

    def __init__(
        self,
        add_bundles: bool = False,
        increase_by: Mapping[str, float] | None = None,
        increase_by_times: int = -1,
        reserve_resources: Mapping[str, float] | None = None,
        metric: str | None = None,
        mode: str | None = None,
    ) -> None:
        super().__init__(add_bundles, increase_by, increase_by_times, reserve_resources)
        check_choice("mode", mode, ("min", "max", None))
        self.metric, self.mode = metric, mode

    def __call__(
        self, tune_controller: Any, trial: Trial, result: Mapping[str, Any], scheduler: ResourceChangingScheduler
    ) -> PlacementGroupFactory | None:
        self.metric, self.mode = self.metric or scheduler.metric, self.mode or scheduler.mode
        if self.metric is None or self.mode is None:
            raise ValueError(
                "DistributeResourcesToTopJob needs a metric and a mode\n\n"
                "hint: use TuneConfig(metric='loss', mode='min') or DistributeResourcesToTopJob(metric=..., mode=...)"
            )
        return super().__call__(tune_controller, trial, result, scheduler)

    def _share(self, num_steps: int, trial: Trial, live: Sequence[Trial]) -> int:
        scored = [(value, one) for one in live if is_number(value := self._get_value(one)) and value == value]
        if not scored:
            return 0
        best = (max if self.mode == "max" else min)(scored, key=lambda pair: pair[0])[1]
        return num_steps if best == trial else 0

    def _get_value(self, trial: Trial) -> Any:
        assert self.metric is not None
        return get_metric(dict(trial.last_result or {}), self.metric)


_distribute_evenly = DistributeResources()


def evenly_distribute_cpus_gpus(
    tune_controller: Any, trial: Trial, result: Mapping[str, Any], scheduler: ResourceChangingScheduler
) -> PlacementGroupFactory | None:
    """Share all cores, and the GPUs if trials have any, evenly: `DistributeResources()`."""
    return _distribute_evenly(tune_controller, trial, result, scheduler)


AllocationFunction = Callable[
    [Any, Trial, Mapping[str, Any], "ResourceChangingScheduler"], PlacementGroupFactory | Mapping[str, float] | None
]


class ResourceChangingScheduler(TrialScheduler):
    """Lets `base_scheduler` decide which trials continue, and changes the resources of those that do.

    `resources_allocation_function(tune_controller, trial, result, scheduler)` returns what a trial should have: a
    `PlacementGroupFactory`, a dict, or None for no change. It is called at each report with a checkpoint, because the
    trial continues from that one; a trial that reports none keeps what it has. `tune.get_context()
    .get_trial_resources()` returns what the trial has now.
    """

    waits_for_checkpoints: ClassVar[bool] = True

    def __init__(
        self,
        base_scheduler: TrialScheduler | None = None,
        resources_allocation_function: AllocationFunction | None = _distribute_evenly,
    ) -> None:
        check_instance(
            "base_scheduler", base_scheduler, TrialScheduler, "a scheduler such as ASHAScheduler()", optional=True
        )
        check_callable("resources_allocation_function", resources_allocation_function, optional=True)
        self.base_scheduler = base_scheduler or FIFOScheduler()
        self.resources_allocation_function = resources_allocation_function
        self._base_resources: PlacementGroupFactory | None = None

    @property
    def metric(self) -> str | None:  # type: ignore[override]
        return self.base_scheduler.metric or self._metric

    @property
    def mode(self) -> str | None:  # type: ignore[override]
        return self.base_scheduler.mode or self._mode

    _metric: str | None = None
    _mode: str | None = None

    @property
    def base_trial_resources(self) -> PlacementGroupFactory | None:
        """What the first trial requested."""
        return self._base_resources

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        self._metric, self._mode = metric, mode
        return self.base_scheduler.set_search_properties(metric, mode, **spec)

    def set_trial_resources(self, trial: Trial, new_resources: PlacementGroupFactory | Mapping[str, float]) -> bool:
        """Whether a trial has other resources than these, so that it has to be paused to get them."""
        return trial.resources is None or not _is_same(trial.resources, _to_factory(new_resources))

    def reallocate_trial_resources_if_needed(
        self, tune_controller: Any, trial: Trial, result: Mapping[str, Any]
    ) -> PlacementGroupFactory | None:
        """Return the resources that a trial should have, if it has others."""
        if self.resources_allocation_function is None or tune_controller is None:
            return None
        new = self.resources_allocation_function(tune_controller, trial, result, self)
        return _to_factory(new) if new is not None and self.set_trial_resources(trial, new) else None

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> Sequence[Action]:
        self._base_resources = self._base_resources or trial.resources
        return self.base_scheduler.on_trial_add(tune_controller, trial)

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: Mapping[str, Any]) -> str | Sequence[Action]:
        answer = self.base_scheduler.on_trial_result(tune_controller, trial, result)
        saved = trial.checkpoint
        if (answer and answer != self.CONTINUE) or saved is None or saved.iteration < trial.iteration:
            return answer or ()
        new = self.reallocate_trial_resources_if_needed(tune_controller, trial, result)
        if new is None:
            return answer or ()
        why = f"continues with {_format_resources(new)}"
        return (Reallocate(trial.trial_id, new, why),)

    def completed(self, trial_id: str, config: Mapping[str, Any]) -> Mapping[str, Any]:
        return self.base_scheduler.completed(trial_id, config)

    def on_trial_begin(self, trial: Trial) -> None:
        self.base_scheduler.on_trial_begin(trial)

    def on_trial_complete(
        self, tune_controller: Any, trial: Trial, result: Mapping[str, Any] | None
    ) -> Sequence[Action]:
        return self.base_scheduler.on_trial_complete(tune_controller, trial, result)

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> Sequence[Action]:
        return self.base_scheduler.on_trial_error(tune_controller, trial)

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> Sequence[Action]:
        return self.base_scheduler.on_trial_remove(tune_controller, trial)

    def on_no_more_trials(self) -> Sequence[Action]:
        return self.base_scheduler.on_no_more_trials()

    def on_idle(self) -> Sequence[Action]:
        return self.base_scheduler.on_idle()

    def choose(self, waiting: Sequence[Trial]) -> Trial | None:
        return self.base_scheduler.choose(waiting)

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        return self.base_scheduler.choose_trial_to_run(tune_controller)

    def debug_string(self) -> str:
        return f"(ResourceChangingScheduler) {self.base_scheduler.debug_string()}"

    def save(self, checkpoint_path: Any) -> None:
        self.base_scheduler.save(checkpoint_path)

    def restore(self, checkpoint_path: Any) -> None:
        self.base_scheduler.restore(checkpoint_path)


def _to_factory(resources: Any) -> PlacementGroupFactory:
    return resources if isinstance(resources, PlacementGroupFactory) else PlacementGroupFactory([resources])


def _is_same(one: PlacementGroupFactory, other: PlacementGroupFactory) -> bool:
    def amounts(factory: PlacementGroupFactory) -> list[dict[str, float]]:
        return [{name: amount for name, amount in bundle.items() if amount} for bundle in factory.bundles]

    return amounts(one) == amounts(other) and one.strategy == other.strategy


def _format_resources(factory: PlacementGroupFactory) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in factory.required_resources.items() if amount)
