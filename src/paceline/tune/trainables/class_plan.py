"""Runs a `Trainable` subclass in a trial: one worker, which creates an instance and calls `step` repeatedly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline._core.engine_choice import choose_engine
from paceline.train.checkpoint import Checkpoint
from paceline.train.config import RunConfig, ScalingConfig
from paceline.train.trainer import DataParallelTrainer
from paceline.tune.trainables.function_plan import make_scaling, refuse_detached
from paceline.tune.trainables.pickled_trainable import pickle_trainable
from paceline.tune.trainables.resources import TrialResources, to_trial_needs
from paceline.tune.trainables.trainable import Trainable
from paceline.tune.trainables.trainable_plan import TrialNeeds
from paceline.tune.trainables.trial_functions import TrainableTrial, TrialBackendConfig, can_save
from paceline.tune.trainables.wrapping import WrappedTrainable


class ClassPlan:
    def __init__(self, wrapped: WrappedTrainable) -> None:
        self._kind: type[Trainable] = wrapped.trainable
        self.name = self._kind.__name__
        if self._kind.step is Trainable.step:
            raise ValueError(f"{self.name} does not implement step(), which a trial calls for each of its results")
        self._pickled = pickle_trainable(self._kind, self.name)
        self._resources = wrapped.resources
        self._shared = wrapped.shared
        self.run_config: RunConfig | None = None

    def check(self, run_config: RunConfig) -> None:
        refuse_detached(run_config)
        frequency, at_end = _checkpoint_times(run_config)
        if (frequency or at_end) and not can_save(self._kind):
            raise ValueError(
                f"CheckpointConfig(checkpoint_frequency={frequency}, checkpoint_at_end={at_end}) asks for "
                f"checkpoints, and {self.name} does not implement save_checkpoint()"
            )

    def resolve_needs(self, config: Mapping[str, Any]) -> TrialNeeds:
        resources = self._resources_for(config)
        return to_trial_needs(make_scaling(resources, config), is_explicit=resources is not None)

    def make_trainer(
        self, config: Mapping[str, Any], run_config: RunConfig, initial: Checkpoint | None
    ) -> DataParallelTrainer:
        self.check(run_config)
        choice = choose_engine(run_config.engine)
        kind = self._kind if choice.engine == "ray" else self._pickled
        handle = self._shared.make_handle(choice) if self._shared is not None else None
        return DataParallelTrainer(
            TrainableTrial(kind, handle, *_checkpoint_times(run_config), stop=_stop_criteria(run_config)),
            train_loop_config=dict(config),
            backend_config=TrialBackendConfig(),
            scaling_config=self._make_scaling(config),
            run_config=run_config,
            resume_from_checkpoint=initial,
        )

    def _make_scaling(self, config: Mapping[str, Any]) -> ScalingConfig:
        return make_scaling(self._resources_for(config), config)

    def _resources_for(self, config: Mapping[str, Any]) -> TrialResources | None:
        return self._resources if self._resources is not None else self._kind.default_resource_request(dict(config))


def _checkpoint_times(run_config: RunConfig) -> tuple[int, bool]:
    config = run_config.checkpoint_config
    return getattr(config, "checkpoint_frequency", 0) or 0, bool(getattr(config, "checkpoint_at_end", False))


def _stop_criteria(run_config: RunConfig) -> Mapping[str, Any] | None:
    stop = getattr(run_config, "stop", None)
    return dict(stop) if isinstance(stop, Mapping) else None
