"""Turns the trainable given to `Tuner` into a plan, which makes the trainer of each trial's run.

One worker runs a function or a `Trainable`. Of a trainer, each trial runs a copy with its configuration as arguments.
`find_preloads` finds the libraries to import once, before the processes of trials fork: importing torch takes seconds.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from paceline._core.arguments import bad_value
from paceline._core.engine_choice import choose_engine
from paceline._core.resource_planner import ResourceBundle
from paceline.train.backend import BackendConfig, is_installed
from paceline.train.checkpoint import Checkpoint
from paceline.train.config import RunConfig, ScalingConfig, coerce_config
from paceline.train.driver.job import iter_global_names, pickle_job
from paceline.train.driver.validation import ValidationConfig
from paceline.train.placement_group import PlacementGroupFactory
from paceline.train.trainer import DataParallelTrainer
from paceline.tune.driver.resource_ledger import TrialNeeds
from paceline.tune.space.space import Space
from paceline.tune.trainables.resources import TrialResources, make_single_worker_scaling, to_trial_needs
from paceline.tune.trainables.shared_objects import SharedObjectsHandle, pickle_trainable
from paceline.tune.trainables.trainable import Trainable
from paceline.tune.trainables.trial_functions import FunctionTrial, TrainableTrial, TrialBackendConfig, can_save
from paceline.tune.trainables.wrapping import WrappedTrainable, as_wrapped

_ALLOWED = "a function of the trial's config, a subclass of tune.Trainable or a trainer such as TorchTrainer(...)"


class TrainablePlan:
    name: str
    can_save = False
    """Whether a checkpoint can be made after any report, not only when the trainable makes one."""

    def check(self, run_config: RunConfig) -> None:
        """Raise `ValueError` for settings this cannot run with."""

    def check_space(self, space: Space) -> None:
        """Raise for values in a search space that no trial could be given."""

    def resolve_needs(self, config: Mapping[str, Any], resources: PlacementGroupFactory | None = None) -> TrialNeeds:
        """Return what a trial with this configuration needs; `resources` are in place of what it asks for itself.

        Raises `ValueError` for one that cannot run at all.
        """
        raise NotImplementedError

    def make_trainer(
        self,
        config: Mapping[str, Any],
        run_config: RunConfig,
        initial: Checkpoint | None,
        resources: PlacementGroupFactory | None = None,
    ) -> DataParallelTrainer:
        """Return the trainer of a trial's run; `initial` is what `get_checkpoint()` returns at its start."""
        raise NotImplementedError


def make_trainable_plan(trainable: Any) -> TrainablePlan:
    """Return the plan for a trainable; raise for one that cannot be run."""
    wrapped = as_wrapped(trainable)
    trainable = wrapped.trainable
    if isinstance(trainable, DataParallelTrainer):
        return TrainerPlan(trainable)
    if isinstance(trainable, type) and issubclass(trainable, Trainable) and trainable is not Trainable:
        return ClassPlan(wrapped)
    if callable(trainable) and not isinstance(trainable, type):
        return FunctionPlan(wrapped)
    raise bad_value("trainable", _ALLOWED, trainable)


_ONE_WORKER = ScalingConfig()


class _SingleWorkerPlan(TrainablePlan):
    """A trainable that one worker runs: a function or a class."""

    def __init__(self, wrapped: WrappedTrainable, name: str) -> None:
        self.name = name
        self._trainable = wrapped.trainable
        self._pickled = pickle_trainable(wrapped.trainable, name)
        self._resources = wrapped.resources
        self._shared = wrapped.shared
        self._initial = wrapped.initial
        self._export_formats = wrapped.export_formats

    def check_space(self, space: Space) -> None:
        for path, value in space.fixed_objects.items():
            try:
                pickle_job(None, value, BackendConfig())
            except TypeError as error:
                text = str(error).replace("train_loop_config", path).replace("train_loop_per_worker", self.name)
                raise TypeError(text) from error.__cause__

    def resolve_needs(self, config: Mapping[str, Any], resources: PlacementGroupFactory | None = None) -> TrialNeeds:
        is_explicit = resources is not None or self._resources_for(config) is not None
        hint = "lower what tune.with_resources() or default_resource_request() asks for"
        return to_trial_needs(self._make_scaling(config, resources), is_explicit=is_explicit, hint=hint)

    def make_trainer(
        self,
        config: Mapping[str, Any],
        run_config: RunConfig,
        initial: Checkpoint | None,
        resources: PlacementGroupFactory | None = None,
    ) -> DataParallelTrainer:
        choice = choose_engine(run_config.engine)
        # On a cluster the trainable is searched for references to objects there.
        trainable = self._trainable if choice.engine == "ray" else self._pickled
        handle = self._shared.make_handle(choice) if self._shared is not None else None
        return DataParallelTrainer(
            self._make_trial(trainable, handle, run_config),
            train_loop_config=dict(config),
            backend_config=TrialBackendConfig(),
            scaling_config=self._make_scaling(config, resources),
            run_config=run_config,
            resume_from_checkpoint=initial if initial is not None else self._initial,
        )

    def _make_scaling(self, config: Mapping[str, Any], decided: PlacementGroupFactory | None) -> ScalingConfig:
        resources = decided if decided is not None else self._resources_for(config)
        return make_single_worker_scaling(resources, config) if resources is not None else _ONE_WORKER

    def _resources_for(self, config: Mapping[str, Any]) -> TrialResources | None:
        return self._resources

    def _make_trial(self, trainable: Any, handle: SharedObjectsHandle | None, run_config: RunConfig) -> Any:
        """Return the train function of the trial's run."""
        raise NotImplementedError


class FunctionPlan(_SingleWorkerPlan):
    def __init__(self, wrapped: WrappedTrainable) -> None:
        name = getattr(wrapped.trainable, "__name__", type(wrapped.trainable).__name__)
        _check_signature(wrapped.trainable, name, wrapped.shared.names if wrapped.shared is not None else ())
        super().__init__(wrapped, name)

    def check(self, run_config: RunConfig) -> None:
        for name in ("checkpoint_frequency", "checkpoint_at_end"):
            if value := getattr(run_config.checkpoint_config, name, None):
                raise ValueError(
                    f"CheckpointConfig({name}={value}) needs a tune.Trainable, and {self.name} is a function\n\n"
                    "hint: use tune.report(metrics, checkpoint=...)"
                )

    def _make_trial(self, trainable: Any, handle: SharedObjectsHandle | None, run_config: RunConfig) -> Any:
        return FunctionTrial(trainable, handle)


class ClassPlan(_SingleWorkerPlan):
    def __init__(self, wrapped: WrappedTrainable) -> None:
        kind: type[Trainable] = wrapped.trainable
        if kind.step is Trainable.step:
            raise ValueError(f"{kind.__name__} must implement step()")
        super().__init__(wrapped, kind.__name__)
        self.can_save = can_save(kind)

    def check(self, run_config: RunConfig) -> None:
        frequency, at_end = _checkpoint_times(run_config)
        if (frequency or at_end) and not self.can_save:
            raise ValueError(
                f"CheckpointConfig(checkpoint_frequency={frequency}, checkpoint_at_end={at_end}) needs checkpoints, "
                f"and {self.name} does not implement save_checkpoint()"
            )

    def _resources_for(self, config: Mapping[str, Any]) -> TrialResources | None:
        if self._resources is not None:
            return self._resources
        resources: TrialResources | None = self._trainable.default_resource_request(dict(config))
        return resources

    def _make_trial(self, trainable: Any, handle: SharedObjectsHandle | None, run_config: RunConfig) -> Any:
        stop = getattr(run_config, "stop", None)
        stop = dict(stop) if isinstance(stop, Mapping) else None
        times = _checkpoint_times(run_config)
        return TrainableTrial(trainable, handle, *times, stop=stop, export_formats=self._export_formats)


def _check_signature(function: Any, name: str, shared: tuple[str, ...]) -> None:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return  # Written in C: the call itself will raise.
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL)]
    if not positional or positional[0].name in shared:
        raise ValueError(
            f"{name} must take the trial's configuration as its first argument\n\n"
            f"hint: def {name}({', '.join(('config', *shared))}): ..."
        )
    needed = [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    missing = [p.name for p in needed[1 if needed[:1] == positional[:1] else 0 :] if p.name not in shared]
    if missing:
        raise ValueError(
            f"{name} needs {', '.join(missing)} besides the trial's configuration\n\n"
            f"hint: use tune.with_parameters({name}, {missing[0]}=...)"
        )


def _checkpoint_times(run_config: RunConfig) -> tuple[int, bool]:
    config = run_config.checkpoint_config
    return getattr(config, "checkpoint_frequency", 0) or 0, bool(getattr(config, "checkpoint_at_end", False))


_OURS = {
    "run_config": "each trial is stored in the search's directory; pass run_config to Tuner",
    "resume_from_checkpoint": "pass it to the trainer, and every trial starts from it",
}
"""Trainer arguments that a trial cannot set."""


class TrainerPlan(TrainablePlan):
    def __init__(self, trainer: DataParallelTrainer) -> None:
        self._trainer = trainer
        self.name = type(trainer).__name__

    def resolve_needs(self, config: Mapping[str, Any], resources: PlacementGroupFactory | None = None) -> TrialNeeds:
        scaling = self._scaling(config)
        if resources is not None:
            return to_trial_needs(_replace_resources(scaling, resources), is_explicit=True)
        needs = to_trial_needs(scaling, is_explicit="CPU" in (scaling.resources_per_worker or {}))
        validation = config.get("validation_config", self._trainer.validation_config)
        if not isinstance(validation, ValidationConfig) or not (validation.num_cpus or validation.num_gpus):
            return needs
        bundle = ResourceBundle(validation.num_cpus, validation.num_gpus)
        return dataclasses.replace(needs, bundles=(*needs.bundles, bundle))

    def make_trainer(
        self,
        config: Mapping[str, Any],
        run_config: RunConfig,
        initial: Checkpoint | None,
        resources: PlacementGroupFactory | None = None,
    ) -> DataParallelTrainer:
        scaling = self._scaling(config)
        if resources is not None:
            scaling = _replace_resources(scaling, resources)
        changes = {**self._trainer_changes(config), "scaling_config": scaling, "run_config": run_config}
        if initial is not None:
            changes["resume_from_checkpoint"] = initial
        return self._trainer.replace_arguments(**changes)

    def check_space(self, space: Space) -> None:
        self._check_arguments(space.keys)

    def _trainer_changes(self, config: Mapping[str, Any]) -> dict[str, Any]:
        self._check_arguments(config)
        return merge_dicts({name: getattr(self._trainer, name, None) for name in config}, config)

    def _check_arguments(self, names: Iterable[str]) -> None:
        parameters = [*inspect.signature(type(self._trainer).__init__).parameters.values()][1:]
        named = {p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
        for name in names:
            if name in _OURS:
                raise ValueError(f"param_space cannot have {name!r}: {_OURS[name]}")
            if name not in named and not takes_any:
                known = ", ".join(sorted(named - {*_OURS}))
                raise ValueError(
                    f"unknown argument {name!r} in param_space; the arguments of {self.name} are {known}\n\n"
                    f"hint: arguments of the train function go into "
                    f"param_space={{'train_loop_config': {{{name!r}: ...}}}}"
                )

    def _scaling(self, config: Mapping[str, Any]) -> ScalingConfig:
        changes = config.get("scaling_config")
        scaling = self._trainer.scaling_config
        if isinstance(changes, Mapping):
            coerce_config(ScalingConfig, changes, "scaling_config")  # The error names an unknown argument.
            scaling = dataclasses.replace(scaling, **changes)
        elif changes is not None:
            scaling = coerce_config(ScalingConfig, changes, "scaling_config")
        if scaling.max_workers == 0:
            raise ValueError(
                "num_workers must be at least 1 in a search, got 0, which runs in the driver's process\n\n"
                "hint: use num_workers=1, or call the trainer's fit() in a debugger"
            )
        return scaling


def _replace_resources(scaling: ScalingConfig, resources: PlacementGroupFactory) -> ScalingConfig:
    """Return the scaling with one worker for each bundle. Workers are alike: each has what the last bundle has."""
    per_worker = dict(resources.bundles[-1])
    return dataclasses.replace(
        scaling,
        num_workers=len(resources.bundles),
        use_gpu=per_worker.get("GPU", 0.0) > 0,
        resources_per_worker=per_worker,
        placement_strategy=resources.strategy,
    )


def merge_dicts(own: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Merge `changes` into `own`, recursively."""
    result = dict(own)
    for name, value in changes.items():
        before = result.get(name)
        both = isinstance(value, Mapping) and isinstance(before, Mapping)
        result[name] = merge_dicts(before, value) if both else value  # type: ignore[arg-type]
    return result


FORKABLE = ("numpy", "pandas", "scipy", "sklearn", "torch")
"""Libraries known to survive a fork after import."""


def find_preloads(function: Any) -> tuple[str, ...]:
    """Return the forkable libraries that a function uses: as a module, through a name from it, or in an import."""
    used = {name for each in _iter_functions(function) for name in _iter_top_level_modules(each)}
    return tuple(name for name in FORKABLE if name in used and (name in sys.modules or is_installed(name)))


def _iter_functions(function: Any) -> Iterator[types.FunctionType]:
    """Iterate over the function, the methods of a class, and the functions it calls in the same module."""
    waiting, visited = [function], set()
    while waiting:
        each = waiting.pop()
        each = getattr(each, "__func__", each)
        if id(each) in visited:
            continue
        visited.add(id(each))
        if isinstance(each, type):
            waiting += [value for value in vars(each).values() if isinstance(value, types.FunctionType)]
        elif isinstance(each, types.FunctionType):
            yield each
            named = (each.__globals__.get(name) for name in iter_global_names(each.__code__))
            waiting += [value for value in named if getattr(value, "__module__", None) == each.__module__]
        elif not isinstance(each, types.ModuleType) and callable(each):
            waiting += [getattr(each, "func", None), vars(type(each)).get("__call__")]  # A partial; a callable.


def _iter_top_level_modules(function: types.FunctionType) -> Iterator[str]:
    for name in iter_global_names(function.__code__):
        yield name.partition(".")[0]  # An import inside the function.
        value = function.__globals__.get(name)
        module = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
        if isinstance(module, str):
            yield module.partition(".")[0]
