"""A subclass of `Trainable` as what a trial runs: one worker, which makes an object of it and lets it step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline._core.choice import chosen
from paceline.train import session as train_session
from paceline.train.checkpoint import Checkpoint
from paceline.train.config import RunConfig, ScalingConfig
from paceline.train.trainer import DataParallelTrainer
from paceline.tune import session
from paceline.tune.trainables.carried import Carried, carried
from paceline.tune.trainables.functions import refuse_detached, scaling_of
from paceline.tune.trainables.planned import TrialNeeds
from paceline.tune.trainables.resources import Resources, needs_of
from paceline.tune.trainables.shared import Handle
from paceline.tune.trainables.trainable import Trainable
from paceline.tune.trainables.wrapped import Wrapped


@dataclass(frozen=True)
class StepTrainable:
    """What the worker of a trial runs."""

    kind: Any
    """The class, or as it was `Carried`."""
    handle: Handle | None
    frequency: int
    at_end: bool

    @property
    def inner_function(self) -> Any:
        return self._class.step

    @property
    def _class(self) -> type[Trainable]:
        kind: type[Trainable] = self.kind.value if isinstance(self.kind, Carried) else self.kind
        return kind

    def __call__(self, config: dict[str, Any]) -> None:
        session.begin_trial()
        objects = self.handle.load() if self.handle is not None else None
        trainable = self._class(config) if objects is None else self._class(config, parameters=objects)
        try:
            checkpoint = session.get_checkpoint()
            if checkpoint is not None:
                trainable.restore(checkpoint)
            # Of a trial that was lost right after its last checkpoint nothing is left to be done.
            while not (trainable.is_done and session.num_reports()):
                self._step(trainable)
        finally:
            trainable.stop()

    def _step(self, trainable: Trainable) -> None:
        result = dict(trainable.train())
        wanted = bool(result.pop("should_checkpoint", False))
        wanted |= self.frequency > 0 and trainable.iteration % self.frequency == 0
        wanted |= self.at_end and trainable.is_done
        if wanted:
            train_session.report(result, checkpoint=_saved(trainable))
        elif can_save(type(trainable)):
            train_session.report(result, checkpoint_on_stop=lambda: _saved(trainable))
        else:
            train_session.report(result)


def _saved(trainable: Trainable) -> Checkpoint:
    return trainable.save(train_session.staging_directory())


def can_save(kind: type[Trainable]) -> bool:
    return kind.save_checkpoint is not Trainable.save_checkpoint


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
            StepTrainable(kind, handle, *_when(run_config)),
            train_loop_config=dict(config),
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
