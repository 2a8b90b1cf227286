"""What a user's own code may watch of a search: `RunConfig(callbacks=[...])`."""

from __future__ import annotations

from typing import Any

from paceline.train.callbacks import UserCallback
from paceline.tune.trial import Trial


class Callback(UserCallback):
    """Subclass this and pass it in `RunConfig(callbacks=[...])` of a search. It runs in the driver.

    Each method is called after what it tells of, one at a time. `iteration` counts what has happened in the search,
    `trials` are all that there are. `after_report` and `after_exception`, which it has from `UserCallback`, tell of the
    single runs. The search does not wait for a callback's opinion: one that raises is dropped with its traceback.
    """

    def setup(
        self,
        stop: Any = None,
        num_samples: int | None = None,
        total_num_samples: int | None = None,
        **info: Any,
    ) -> None:
        """Once, before all else. `total_num_samples` counts grids in; None where it is not known before the end."""

    def on_step_begin(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        """Something has happened; the methods below are next."""

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        """All are told of it."""

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """A trial has begun, or goes on."""

    def on_trial_restore(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """The trial that has begun does so from a checkpoint: its own, or that of the trial it was cloned from."""

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        """A trial has made a report. Searcher and scheduler know of it already."""

    def on_trial_save(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """A checkpoint of a trial is committed: `trial.checkpoint`."""

    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """A trial has returned, or was stopped: then `trial.why` says why."""

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """A trial has failed for good: `trial.why` has the error."""

    def on_experiment_end(self, trials: list[Trial], **info: Any) -> None:
        """The search has ended."""
