"""Callbacks that let user code observe a search: `RunConfig(callbacks=[...])`."""

from __future__ import annotations

from typing import Any

from paceline.train.callbacks import UserCallback
from paceline.tune.trial import Trial, TrialCheckpoint


class Callback(UserCallback):
    """Subclass this and pass it in `RunConfig(callbacks=[...])` of a search. It runs in the driver.

    Each method is called after the event it describes, one call at a time. `iteration` counts the events of the search;
    `trials` holds all trials. `after_report` and `after_exception`, inherited from `UserCallback`, report on individual
    runs. One that raises is logged with its traceback and dropped; the search continues.
    """

    _is_for_searches = True

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
        """The trial that just started resumes from a checkpoint: its own, or that of the trial it was cloned from."""

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        """A trial has reported. Searcher and scheduler have already seen the report.

        `result["should_checkpoint"] = True` saves a checkpoint of a `Trainable`, which waits for this method.
        """

    def on_trial_save(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """A checkpoint of the trial has been committed: `trial.checkpoint`."""

    def on_checkpoint(
        self, iteration: int, trials: list[Trial], trial: Trial, checkpoint: TrialCheckpoint, **info: Any
    ) -> None:
        """As `on_trial_save`, with the checkpoint."""

    def on_trial_recover(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """The trial has failed and is retried: `FailureConfig(max_failures=...)`."""

    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """A trial has returned or was stopped; if stopped, `trial.why` gives the reason."""

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """A trial has failed permanently: `trial.why` holds the error."""

    def on_experiment_end(self, trials: list[Trial], **info: Any) -> None:
        """The search has ended."""

    def get_state(self) -> dict[str, Any] | None:
        """Return what `set_state` gets when the search is resumed: a dict of numbers, texts, lists and dicts.

        Called every ten seconds and at the end; a killed driver loses what changed since.
        """
        return None

    def set_state(self, state: dict[str, Any]) -> None:
        """Called after `setup` when a search is resumed, with the last result of `get_state`."""
