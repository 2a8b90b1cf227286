"""A subclass of `Trainable` as what a trial runs: one worker, which makes an object of it and lets it step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline._core.choice import chosen
from paceline.train.checkpoint import Checkpoint
from paceline.train.config import RunConfig, ScalingConfig
from paceline.train.trainer import DataParallelTrainer
from paceline.tune.trainables.carried import carried
from paceline.tune.trainables.functions import refuse_detached, scaling_of
from paceline.tune.trainables.planned import TrialNeeds
from paceline.tune.trainables.resources import Resources, needs_of
from paceline.tune.trainables.trainable import Trainable
from paceline.tune.trainables.work import InTrial, StepTrainable, can_save
from paceline.tune.trainables.wrapped import Wrapped


class ClassPlan:
    def __init__(self, wrapped: Wrapped) -> None:
        self._kind: type[Trainable] = wrapped.trainable
        self.name = self._kind.__name__
        if self._kind.step is Trainable.step:
            raise ValueError(f"{self.name} does not implement step(), which a trial calls for each of its results")
        self._carried = carried(self._kind, self.name)
        self._resources = wrapped.resources
        self._shared = wrapped.shared
        self.run_config: RunConfig | None = None

    def check(self, run_config: RunConfig) -> None:
        refuse_detached(run_config)
        frequency, at_end = _when(run_config)
        if (frequency or at_end) and not can_save(self._kind):
            raise ValueError(
                f"CheckpointConfig(checkpoint_frequency={frequency}, checkpoint_at_end={at_end}) asks for "
                f"checkpoints, and {self.name} does not implement save_checkpoint()"
            )

    def needs(self, config: Mapping[str, Any]) -> TrialNeeds:
        resources = self._resources_for(config)
        return needs_of(scaling_of(resources, config), is_explicit=resources is not None)

    def trainer(
        self, config: Mapping[str, Any], run_config: RunConfig, initial: Checkpoint | None
    ) -> DataParallelTrainer:
        self.check(run_config)
        choice = chosen(run_config.engine)
        kind = self._kind if choice.engine == "ray" else self._carried
        handle = self._shared.handle(choice) if self._shared is not None else None
        return DataParallelTrainer(
            StepTrainable(kind, handle, *_when(run_config), stop=_stop_of(run_config)),
            train_loop_config=dict(config),
            backend_config=InTrial(),
            scaling_config=self._scaling(config),
            run_config=run_config,
            resume_from_checkpoint=initial,
        )

    def _scaling(self, config: Mapping[str, Any]) -> ScalingConfig:
        return scaling_of(self._resources_for(config), config)

    def _resources_for(self, config: Mapping[str, Any]) -> Resources | None:
        return self._resources if self._resources is not None else self._kind.default_resource_request(dict(config))


def _when(run_config: RunConfig) -> tuple[int, bool]:
    config = run_config.checkpoint_config
    return getattr(config, "checkpoint_frequency", 0) or 0, bool(getattr(config, "checkpoint_at_end", False))


def _stop_of(run_config: RunConfig) -> Mapping[str, Any] | None:
    stop = getattr(run_config, "stop", None)
    return dict(stop) if isinstance(stop, Mapping) else None
