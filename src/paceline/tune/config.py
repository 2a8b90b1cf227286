"""The configuration classes of a search: those of a run, extended with settings for many trials.

Each one is accepted wherever the run's class is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from paceline._core.arguments import check_instance
from paceline.train import config as train_config
from paceline.train.config import SyncConfig as SyncConfig
from paceline.train.config import coerce_config, config_class
from paceline.tune.stopper import Stopper, stopper_of


class Verbosity(IntEnum):
    """The numbers that `RunConfig(verbose=...)` takes, by Ray's names."""

    V0_MINIMAL = 0
    V1_EXPERIMENT = 1
    V2_TRIAL_NORM = 2
    V3_TRIAL_DETAILS = 3


@config_class
@dataclass(frozen=True, repr=False)
class CheckpointConfig(train_config.CheckpointConfig):
    """Which checkpoints of a trial are kept and, for subclasses of `tune.Trainable`, when they are saved.

    `checkpoint_frequency=5` saves one after every fifth step; 0 saves none automatically. `checkpoint_at_end` saves one
    of the last step. Functions and trainers report their checkpoints themselves.
    """


@config_class
@dataclass(frozen=True, repr=False)
class FailureConfig(train_config.FailureConfig):
    """How failed trials are handled: each is retried up to `max_failures` times.

    With `fail_fast=True` the first failed trial ends the search; with `"raise"`, `fit()` raises its error.
    """


@config_class
@dataclass(frozen=True, repr=False)
class RunConfig(train_config.RunConfig):
    """The name and storage location of a search; the settings inherited from a run's config apply to each trial.

    `stop` ends trials: a dict of metrics and the values at which a trial ends, a function of the trial's id and its
    result, a `Stopper`, or a list of stoppers. `verbose` controls how much is printed: 0 or False only errors, 1 or
    True one line per event, 2 and 3 also every report; None follows `PACELINE_VERBOSITY`. A `progress_reporter` shows
    the trials in place of our table. The complete output of every trial is always in its directory.
    """

    failure_config: train_config.FailureConfig = field(default_factory=FailureConfig)
    checkpoint_config: train_config.CheckpointConfig = field(default_factory=CheckpointConfig)
    stop: Mapping[str, Any] | Callable[[str, Mapping[str, Any]], bool] | Stopper | Sequence[Stopper] | None = None
    local_dir: str | os.PathLike[str] | None = None
    """Ray's older name of `storage_path`."""

    def __post_init__(self) -> None:
        kinds = {"failure_config": FailureConfig, "checkpoint_config": CheckpointConfig}
        for name, kind in kinds.items():
            if not isinstance(getattr(self, name), getattr(train_config, kind.__name__)):
                object.__setattr__(self, name, coerce_config(kind, getattr(self, name), name))
        if self.local_dir is not None:
            check_instance("local_dir", self.local_dir, (str, os.PathLike), "a path")
            if self.storage_path is not None:
                raise ValueError("local_dir and storage_path are the same\n\nhint: use storage_path alone")
            object.__setattr__(self, "storage_path", self.local_dir)
            object.__setattr__(self, "local_dir", None)
        if isinstance(self.verbose, Verbosity):
            object.__setattr__(self, "verbose", int(self.verbose))
        stopper_of(self.stop)  # Raises for an invalid value.
        super().__post_init__()
