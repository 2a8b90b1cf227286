"""The configuration classes of a search: those of a run, extended with settings for many trials.

Each one is accepted wherever the run's class is.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.train import config as of_train
from paceline.train.config import _reject_unknown_arguments, coerce_config
from paceline.tune.stoppers.combined import stopper_of
from paceline.tune.stoppers.stopper import Stopper


@_reject_unknown_arguments
@dataclass(frozen=True, repr=False)
class CheckpointConfig(of_train.CheckpointConfig):
    """Which checkpoints of a trial are kept and, for subclasses of `tune.Trainable`, when they are made.

    `checkpoint_frequency=5` makes one after every fifth step; 0 makes none automatically. `checkpoint_at_end` makes one
    of the last step. Functions and trainers report their checkpoints themselves.
    """

    checkpoint_frequency: int | None = 0
    checkpoint_at_end: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        frequency = self.checkpoint_frequency
        if frequency is not None and (isinstance(frequency, bool) or not isinstance(frequency, int) or frequency < 0):
            raise ValueError(f"checkpoint_frequency={frequency!r} is not a whole number of 0 or more")
        if not isinstance(self.checkpoint_at_end, bool | None):
            raise ValueError(f"checkpoint_at_end={self.checkpoint_at_end!r} is not True, False or None")


@_reject_unknown_arguments
@dataclass(frozen=True, repr=False)
class FailureConfig(of_train.FailureConfig):
    """How failed trials are handled: each is retried up to `max_failures` times.

    With `fail_fast=True` the first failed trial ends the search; with `"raise"`, `fit()` raises its error.
    """

    fail_fast: bool | str = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.fail_fast, bool) and self.fail_fast != "raise":
            raise ValueError(f"fail_fast={self.fail_fast!r} is not True, False or 'raise'")
        if self.fail_fast and self.max_failures:
            raise ValueError(
                f"max_failures={self.max_failures} and fail_fast={self.fail_fast!r} contradict each other: "
                "a search that ends with the first failure tries no trial again"
            )


@_reject_unknown_arguments
@dataclass(frozen=True, repr=False)
class RunConfig(of_train.RunConfig):
    """The name and storage location of a search; the settings inherited from a run's config apply to each trial.

    `stop` ends trials: a dict of metrics and the values at which a trial ends, a function of the trial's id and its
    result, a `Stopper`, or a list of stoppers. `verbose` controls how much is printed: 0 only errors, 1 one line per
    event, 2 and 3 also every report; None follows `PACELINE_VERBOSITY`. The complete output of every trial is always in
    its directory.
    """

    failure_config: of_train.FailureConfig = field(default_factory=FailureConfig)
    checkpoint_config: of_train.CheckpointConfig = field(default_factory=CheckpointConfig)
    stop: Mapping[str, Any] | Callable[[str, Mapping[str, Any]], bool] | Stopper | Sequence[Stopper] | None = None
    verbose: int | None = None
    progress_reporter: Any = None
    log_to_file: bool | str | tuple[str, str] = False
    sync_config: Any = None

    def __post_init__(self) -> None:
        _convert_to_own_kind(self, "failure_config", FailureConfig, of_train.FailureConfig)
        _convert_to_own_kind(self, "checkpoint_config", CheckpointConfig, of_train.CheckpointConfig)
        super().__post_init__()
        stopper_of(self.stop)  # Raises for an invalid value.
        if isinstance(self.verbose, bool) or self.verbose not in (None, 0, 1, 2, 3):
            raise ValueError(f"verbose={self.verbose!r} is not 0, 1, 2, 3 or None")
        for name, instead in (
            ("progress_reporter", "callbacks hear of every result, and verbose says how much is printed"),
            ("sync_config", "files go to storage_path directly, and nothing is synced"),
        ):
            if getattr(self, name) is not None:
                warnings.warn(
                    f"{name}={getattr(self, name)!r} has no effect here: {instead}", UserWarning, stacklevel=4
                )
        if self.log_to_file is not False and self.log_to_file is not True:
            warnings.warn(
                f"log_to_file={self.log_to_file!r} has no effect here: all output of a trial is in its log_dir",
                UserWarning,
                stacklevel=4,
            )


def _convert_to_own_kind(config: RunConfig, name: str, kind: type[Any], also: type[Any]) -> None:
    given = getattr(config, name)
    if not isinstance(given, also):
        object.__setattr__(config, name, coerce_config(kind, given, name))
