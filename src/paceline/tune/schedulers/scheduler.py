"""What a scheduler is told, and what it may decide.

A scheduler is a plain object without effects: it has no clock, no files and no randomness but its own seeded one. Told
the same in the same order it decides the same, which is how its knowledge is rebuilt when a search is continued: it is
told everything once more, and what it answers then is not acted upon, since what was decided is in the journal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from paceline.tune.made import Made
from paceline.tune.trial import Trial


@dataclass(frozen=True)
class Stop:
    """End a trial for good."""

    trial_id: str
    why: str


@dataclass(frozen=True)
class Pause:
    """Stop a trial at its report, so that others have its room; it waits for `Resume`."""

    trial_id: str
    why: str


@dataclass(frozen=True)
class Resume:
    """Let a paused trial go on from its last checkpoint, when there is room."""

    trial_id: str


@dataclass(frozen=True)
class Exploit:
    """Let a trial go on with another configuration, from the last committed checkpoint of a donor."""

    trial_id: str
    donor_id: str
    config: Mapping[str, Any]
    why: str


Action = Stop | Pause | Resume | Exploit


class TrialScheduler(Made):
    """Base of schedulers, which itself lets every trial run to its end.

    Each method returns what is to be done, about any trial; nothing means that all go on. `on_trial_result` may also
    return `CONTINUE`, `PAUSE` or `STOP` about the trial itself.
    """

    CONTINUE: ClassVar[str] = "CONTINUE"
    PAUSE: ClassVar[str] = "PAUSE"
    STOP: ClassVar[str] = "STOP"

    decides: ClassVar[bool] = True
    """Trials wait in each report for what is decided about it. False: they never do."""
    waits_for_checkpoints: ClassVar[bool] = False
    """A report that brings a checkpoint is told once that is committed."""
    metric: str | None = None
    mode: str | None = None

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        """Take what `TuneConfig` says about the metric; False where the scheduler was given another one itself."""
        if self.metric is not None and metric is not None and metric != self.metric:
            return False
        if self.mode is not None and mode is not None and mode != self.mode:
            return False
        self.metric = self.metric or metric
        self.mode = self.mode or mode
        return True

    def completed(self, trial_id: str, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """What a new trial is made with, of what was suggested: for a scheduler that has hyperparameters of its own."""
        return config

    def on_trial_add(self, trial: Trial) -> Sequence[Action]:
        """A trial was made; it has not begun."""
        return ()

    def on_trial_begin(self, trial: Trial) -> None:
        """A trial has been given room: it begins, or goes on after a pause, an interruption or as a clone."""

    def on_trial_result(self, trial: Trial, result: Mapping[str, Any]) -> str | Sequence[Action]:
        """A trial has made its next report, with the metric in it. Each report is told once."""
        return ()

    def on_trial_complete(self, trial: Trial, result: Mapping[str, Any] | None) -> Sequence[Action]:
        """A trial has returned, or was stopped by a stopper."""
        return ()

    def on_trial_error(self, trial: Trial) -> Sequence[Action]:
        """A trial has failed for good."""
        return ()

    def on_no_more_trials(self) -> Sequence[Action]:
        """The searcher has no further trial to add: whoever waits for more waits in vain."""
        return ()

    def on_idle(self) -> Sequence[Action]:
        """Nothing runs, nothing waits for room, and the searcher has nothing to add before a trial is over.

        Only paused trials are left then. Whoever keeps them has to let one go on, or end it.
        """
        return ()

    def choose(self, waiting: Sequence[Trial]) -> Trial | None:
        """Which of the trials that wait for room is tried next; None: none of them yet."""
        return waiting[0] if waiting else None
