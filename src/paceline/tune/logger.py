"""Loggers of a search: one object with hooks for all trials, and the loggers that each trial has by default.

The latter log one run each and are those of `paceline.train.loggers`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from paceline._core import settings
from paceline._core.lazy_imports import make_lazy_getattr
from paceline.train.backend import is_installed
from paceline.tune.callback import Callback
from paceline.tune.trial import Trial

if TYPE_CHECKING:
    from paceline.train.loggers import (
        CSVLoggerCallback,
        JsonLoggerCallback,
        MLflowLoggerCallback,
        TBXLoggerCallback,
        WandbLoggerCallback,
    )

__all__ = [
    "CSVLoggerCallback",
    "JsonLoggerCallback",
    "LoggerCallback",
    "MLflowLoggerCallback",
    "TBXLoggerCallback",
    "WandbLoggerCallback",
]

__path__: list[str] = []
"""Ray's is a package: `paceline.tune.logger.aim` is found with `ray_names`."""


class LoggerCallback(Callback):
    """Subclass this to log the results of all trials; `trial.local_path` is a directory for the files of a trial.

    A driver that resumes a search calls the hooks for what happens from then on.
    """

    def log_trial_start(self, trial: Trial) -> None:
        """A trial has started or resumed."""

    def log_trial_restore(self, trial: Trial) -> None:
        """The trial that just started does so from a checkpoint."""

    def log_trial_save(self, trial: Trial) -> None:
        """A checkpoint of the trial has been committed: `trial.checkpoint`."""

    def log_trial_result(self, iteration: int, trial: Trial, result: dict[str, Any]) -> None:
        """A trial has reported."""

    def log_trial_end(self, trial: Trial, failed: bool = False) -> None:
        """A trial has ended for good."""

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        os.makedirs(trial.local_path, exist_ok=True)
        self.log_trial_start(trial)

    def on_trial_restore(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self.log_trial_restore(trial)

    def on_trial_save(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self.log_trial_save(trial)

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        self.log_trial_result(iteration, trial, result)

    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self.log_trial_end(trial, failed=False)

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self.log_trial_end(trial, failed=True)


def make_default_loggers(callbacks: Iterable[Any]) -> list[Any]:
    """Make the loggers that each trial has besides these callbacks."""
    if not settings.load().auto_loggers:
        return []
    from paceline.train import loggers

    kinds: list[Any] = [loggers.CSVLoggerCallback, loggers.JsonLoggerCallback]
    if is_installed("tensorboard") or is_installed("tensorboardX"):
        kinds.append(loggers.TBXLoggerCallback)
    made = [kind() for kind in kinds if not any(isinstance(callback, kind) for callback in callbacks)]
    for logger in made:
        # Cheap, since nobody asked for them: no thread for each trial, and no wait for the disk.
        logger.is_synchronous, logger.is_durable = True, False
    return made


__getattr__ = make_lazy_getattr(
    __name__,
    {
        "paceline.train.loggers": (
            "CSVLoggerCallback",
            "JsonLoggerCallback",
            "MLflowLoggerCallback",
            "TBXLoggerCallback",
            "WandbLoggerCallback",
        )
    },
)
