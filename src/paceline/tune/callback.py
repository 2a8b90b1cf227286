"""Callbacks that let user code observe a search: `RunConfig(callbacks=[...])`."""

from __future__ import annotations

from typing import Any

from paceline.train.callbacks import UserCallback
from paceline.tune.trial import Trial


class Callback(UserCallback):
    """Subclass this and pass it in `RunConfig(callbacks=[...])` of a search. It runs in the driver.

    Each method is called after the event it describes, one call at a time. `iteration` counts the events of the search;
    `trials` holds all trials. `after_report` and `after_exception`, inherited from `UserCallback`, report on individual
    runs. A callback cannot influence the search: one that raises is logged with its traceback and dropped.
    """

    def setup(
        self,
        stop: Any = None,
        num_samples: int | None = None,
        total_num_samples: int | None = None,
        **info: Any,
    ) -> None:
        """Called once, first. `total_num_samples` includes grid combinations; None if not known in advance."""

    def on_step_begin(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        """Called when an event occurs, before the methods below."""

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        """Called after all other methods for the event."""

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """A trial has started or resumed."""

    def on_trial_restore(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """The trial that just started does so from a checkpoint: its own, or that of the trial it was cloned from."""

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        """A trial has reported. Searcher and scheduler have already seen the report."""

    def on_trial_save(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """A checkpoint of the trial has been committed: `trial.checkpoint`."""

    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """A trial has returned or was stopped; if stopped, `trial.why` gives the reason."""

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """A trial has failed permanently: `trial.why` holds the error."""

    def on_experiment_end(self, trials: list[Trial], **info: Any) -> None:
        """The search has ended."""
