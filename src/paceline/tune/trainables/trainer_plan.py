"""Runs a trainer in a trial: a copy of it, with the trial's configuration merged into its arguments."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from paceline.train.checkpoint import Checkpoint
from paceline.train.config import RunConfig, ScalingConfig, coerce_config
from paceline.train.trainer import DataParallelTrainer
from paceline.train.validation import ValidationConfig
from paceline.tune.trainables.function_plan import refuse_detached
from paceline.tune.trainables.resources import to_trial_needs
from paceline.tune.trainables.trainable_plan import TrialBundle, TrialNeeds

_OURS = {
    "run_config": "each trial is kept in the search's own directory: give Tuner the run_config",
    "resume_from_checkpoint": "give it to the trainer itself, and every trial begins from it",
}
"""Trainer arguments that a trial cannot set."""


class TrainerPlan:
    def __init__(self, trainer: DataParallelTrainer) -> None:
        self._trainer = trainer
        self.name = type(trainer).__name__
        self.run_config: RunConfig | None = trainer.run_config if "run_config" in trainer._named_init_args() else None
        """The trainer's own, if it was given one."""

    def check(self, run_config: RunConfig) -> None:
        refuse_detached(run_config)

    def resolve_needs(self, config: Mapping[str, Any]) -> TrialNeeds:
        scaling = self._scaling(config)
        resources = scaling.resources_per_worker or {}
        needs = to_trial_needs(scaling, is_explicit="CPU" in resources)
        beside = config.get("validation_config", self._trainer.validation_config)
        if not isinstance(beside, ValidationConfig) or not (beside.num_cpus or beside.num_gpus):
            return needs
        return dataclasses.replace(needs, bundles=(*needs.bundles, TrialBundle(beside.num_cpus, beside.num_gpus)))

    def make_trainer(
        self, config: Mapping[str, Any], run_config: RunConfig, initial: Checkpoint | None
    ) -> DataParallelTrainer:
        self.check(run_config)
        changes = self._trainer_changes(config)
        changes["scaling_config"] = self._scaling(config)
        changes["run_config"] = run_config
        if initial is not None:
            changes["resume_from_checkpoint"] = initial
        return self._trainer._copy_with(changes)

    def _trainer_changes(self, config: Mapping[str, Any]) -> dict[str, Any]:
        own = self._trainer._named_init_args()
        changes: dict[str, Any] = {}
        for name, value in config.items():
            if name in _OURS:
                raise ValueError(f"param_space cannot have {name!r}: {_OURS[name]}")
            if not self._trainer._accepts_argument(name):
                there = ", ".join(sorted({*self._trainer._parameter_names()} - {*_OURS}))
                raise ValueError(
                    f"param_space has {name!r}, which is no argument of {self.name}: it has {there}\n\n"
                    f"hint: what the train function is called with belongs into "
                    f"param_space={{'train_loop_config': {{{name!r}: ...}}}}"
                )
            both = isinstance(value, Mapping) and isinstance(own.get(name), Mapping)
            changes[name] = merge_dicts(own[name], value) if both else value
        return changes

    def _scaling(self, config: Mapping[str, Any]) -> ScalingConfig:
        """The trainer's own scaling, with the trial's changes."""
        given = config.get("scaling_config")
        scaling = self._trainer.scaling_config
        if isinstance(given, Mapping):
            coerce_config(ScalingConfig, given, "scaling_config")  # The error names an unknown argument.
            scaling = dataclasses.replace(scaling, **given)
        elif given is not None:
            scaling = coerce_config(ScalingConfig, given, "scaling_config")
        if scaling.max_workers == 0:
            raise ValueError(
                "num_workers=0 runs in this very process, and a search may have several trials at once\n\n"
                "hint: use num_workers=1, or call fit() of the trainer itself in a debugger"
            )
        return scaling


def merge_dicts(own: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Merge `changes` into `own`, recursively."""
    result = dict(own)
    for name, value in changes.items():
        before = result.get(name)
        both = isinstance(value, Mapping) and isinstance(before, Mapping)
        result[name] = merge_dicts(before, value) if both else value  # type: ignore[arg-type]
    return result
