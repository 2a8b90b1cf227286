"""A trainer as what a trial runs: a copy of it, with the trial's configuration merged into its arguments."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from paceline.train.checkpoint import Checkpoint
from paceline.train.config import RunConfig, ScalingConfig, as_config
from paceline.train.trainer import DataParallelTrainer
from paceline.train.validation import ValidationConfig
from paceline.tune.trainables.functions import refuse_detached
from paceline.tune.trainables.planned import Bundle, TrialNeeds
from paceline.tune.trainables.resources import needs_of

_OURS = {
    "run_config": "each trial is kept in the search's own directory: give Tuner the run_config",
    "resume_from_checkpoint": "give it to the trainer itself, and every trial begins from it",
}
"""Arguments of trainers that are not a trial's to choose."""


class TrainerPlan:
    def __init__(self, trainer: DataParallelTrainer) -> None:
        self._trainer = trainer
        self.name = type(trainer).__name__
        self.run_config: RunConfig | None = trainer.run_config if "run_config" in trainer._arguments() else None
        """The trainer's own, if it was given one."""

    def check(self, run_config: RunConfig) -> None:
        refuse_detached(run_config)

    def needs(self, config: Mapping[str, Any]) -> TrialNeeds:
        scaling = self._scaling(config)
        resources = scaling.resources_per_worker or {}
        needs = needs_of(scaling, is_explicit="CPU" in resources)
        beside = config.get("validation_config", self._trainer.validation_config)
        if not isinstance(beside, ValidationConfig) or not (beside.num_cpus or beside.num_gpus):
            return needs
        return dataclasses.replace(needs, bundles=(*needs.bundles, Bundle(beside.num_cpus, beside.num_gpus)))

    def trainer(
        self, config: Mapping[str, Any], run_config: RunConfig, initial: Checkpoint | None
    ) -> DataParallelTrainer:
        self.check(run_config)
        changes = self._changes(config)
        changes["scaling_config"] = self._scaling(config)
        changes["run_config"] = run_config
        if initial is not None:
            changes["resume_from_checkpoint"] = initial
        return self._trainer._with(changes)

    def _changes(self, config: Mapping[str, Any]) -> dict[str, Any]:
        own = self._trainer._arguments()
        changes: dict[str, Any] = {}
        for name, value in config.items():
            if name in _OURS:
                raise ValueError(f"param_space cannot have {name!r}: {_OURS[name]}")
            if not self._trainer._takes(name):
                there = ", ".join(sorted({*self._trainer._parameters()} - {*_OURS}))
                raise ValueError(
                    f"param_space has {name!r}, which is no argument of {self.name}: it has {there}\n\n"
                    f"hint: what the train function is called with belongs into "
                    f"param_space={{'train_loop_config': {{{name!r}: ...}}}}"
                )
            both = isinstance(value, Mapping) and isinstance(own.get(name), Mapping)
            changes[name] = merged(own[name], value) if both else value
        return changes

    def _scaling(self, config: Mapping[str, Any]) -> ScalingConfig:
        """The trainer's own, with what the trial says of it."""
        given = config.get("scaling_config")
        scaling = self._trainer.scaling_config
        if isinstance(given, Mapping):
            as_config(ScalingConfig, given, "scaling_config")  # Names an argument that it does not have.
            scaling = dataclasses.replace(scaling, **given)
        elif given is not None:
            scaling = as_config(ScalingConfig, given, "scaling_config")
        if scaling.max_workers == 0:
            raise ValueError(
                "num_workers=0 runs in this very process, and a search may have several trials at once\n\n"
                "hint: use num_workers=1, or call fit() of the trainer itself in a debugger"
            )
        return scaling


def merged(own: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A dict over another one, and so for dicts in them."""
    result = dict(own)
    for name, value in changes.items():
        before = result.get(name)
        both = isinstance(value, Mapping) and isinstance(before, Mapping)
        result[name] = merged(before, value) if both else value  # type: ignore[arg-type]
    return result
