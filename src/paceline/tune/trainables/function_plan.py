"""Runs a function in a trial: one worker, which calls it with the trial's configuration."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from paceline._core.engine_choice import choose_engine
from paceline.train.checkpoint import Checkpoint
from paceline.train.config import RunConfig, ScalingConfig
from paceline.train.trainer import DataParallelTrainer
from paceline.tune.trainables.pickled_trainable import pickle_trainable
from paceline.tune.trainables.resources import TrialResources, make_single_worker_scaling, to_trial_needs
from paceline.tune.trainables.trainable_plan import TrialNeeds
from paceline.tune.trainables.trial_functions import FunctionTrial, TrialBackendConfig
from paceline.tune.trainables.wrapping import WrappedTrainable


class FunctionPlan:
    def __init__(self, wrapped: WrappedTrainable) -> None:
        function = wrapped.trainable
        self.name: str = getattr(function, "__name__", type(function).__name__)
        _check_signature(function, self.name, wrapped.shared.names if wrapped.shared is not None else ())
        self._function = function
        self._pickled = pickle_trainable(function, self.name)
        self._resources = wrapped.resources
        self._shared = wrapped.shared
        self.run_config: RunConfig | None = None

    def check(self, run_config: RunConfig) -> None:
        refuse_detached(run_config)
        config = run_config.checkpoint_config
        for name in ("checkpoint_frequency", "checkpoint_at_end"):
            if getattr(config, name, None):
                raise ValueError(
                    f"CheckpointConfig({name}={getattr(config, name)}) is for subclasses of tune.Trainable, and "
                    f"{self.name} is a function\n\nhint: tune.report(metrics, checkpoint=...) when you want one"
                )

    def resolve_needs(self, config: Mapping[str, Any]) -> TrialNeeds:
        return to_trial_needs(make_scaling(self._resources, config), is_explicit=self._resources is not None)

    def make_trainer(
        self, config: Mapping[str, Any], run_config: RunConfig, initial: Checkpoint | None
    ) -> DataParallelTrainer:
        self.check(run_config)
        choice = choose_engine(run_config.engine)
        # On a cluster the function is searched for references to objects there.
        function = self._function if choice.engine == "ray" else self._pickled
        handle = self._shared.make_handle(choice) if self._shared is not None else None
        return DataParallelTrainer(
            FunctionTrial(function, handle),
            train_loop_config=dict(config),
            backend_config=TrialBackendConfig(),
            scaling_config=make_scaling(self._resources, config),
            run_config=run_config,
            resume_from_checkpoint=initial,
        )


def make_scaling(resources: TrialResources | None, config: Mapping[str, Any]) -> ScalingConfig:
    return make_single_worker_scaling(resources, config) if resources is not None else ScalingConfig(num_workers=1)


def refuse_detached(run_config: RunConfig) -> None:
    if run_config.detached:
        raise ValueError(
            "RunConfig(detached=True) is for a single run: the trials of a search are driven by its script"
        )


def _check_signature(function: Any, name: str, shared: tuple[str, ...]) -> None:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return  # Written in C: the call itself will raise.
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL)]
    if not positional or positional[0].name in shared:
        raise ValueError(
            f"{name} takes no argument for the trial's configuration\n\nhint: def "
            f"{name}(config{_format_arguments(shared)}): ..."
        )
    needed = [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    missing = [p.name for p in needed[1 if needed[:1] == positional[:1] else 0 :] if p.name not in shared]
    if missing:
        raise ValueError(
            f"{name} needs {', '.join(missing)} beside the trial's configuration\n\n"
            f"hint: tune.with_parameters({name}, {missing[0]}=...) gives it to every trial"
        )


def _format_arguments(names: tuple[str, ...]) -> str:
    return "".join(f", {name}" for name in names)
