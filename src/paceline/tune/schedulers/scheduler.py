"""The interface of schedulers: which events they get and what they may decide.

A scheduler has no effects: no clock, no files, and no randomness except its own seeded generator. When a search is
resumed, all events are replayed to rebuild its state; its answers are ignored, as the journal has the decisions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from paceline.tune.search.searcher import RecordsInitArgs
from paceline.tune.trial import Trial


@dataclass(frozen=True)
class Stop:
    """End a trial permanently."""

    trial_id: str
    why: str


@dataclass(frozen=True)
class Pause:
    """Stop a trial at its report to free its resources; it waits for `Resume`."""

    trial_id: str
    why: str


@dataclass(frozen=True)
class Resume:
    """Resume a paused trial from its last checkpoint, when there is capacity."""

    trial_id: str


@dataclass(frozen=True)
class Exploit:
    """Continue a trial with another configuration, from the last committed checkpoint of a donor."""

    trial_id: str
    donor_id: str
    config: Mapping[str, Any]
    why: str


Action = Stop | Pause | Resume | Exploit


class TrialScheduler(RecordsInitArgs):
    """Base of schedulers; on its own, it lets every trial run to its end.

    Each method returns actions, about any trial; an empty result means that all continue. `on_trial_result` may also
    return `CONTINUE`, `PAUSE` or `STOP` for the trial itself.
    """

    CONTINUE: ClassVar[str] = "CONTINUE"
    PAUSE: ClassVar[str] = "PAUSE"
    STOP: ClassVar[str] = "STOP"

    decides: ClassVar[bool] = True
    """If True, trials wait in each report for the decision on it."""
    waits_for_checkpoints: ClassVar[bool] = False
    """If True, a report with a checkpoint is delivered once the checkpoint is committed."""
    metric: str | None = None
    mode: str | None = None

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        """Take the metric from `TuneConfig`; return False if the scheduler was given its own."""
        if self.metric is not None and metric is not None and metric != self.metric:
            return False
        if self.mode is not None and mode is not None and mode != self.mode:
            return False
        self.metric = self.metric or metric
        self.mode = self.mode or mode
        return True

    def completed(self, trial_id: str, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Complete a suggested configuration for a new trial: for schedulers that have hyperparameters of their own."""
        return config

    def on_trial_add(self, trial: Trial) -> Sequence[Action]:
        """A trial was created; it has not started."""
        return ()

    def on_trial_begin(self, trial: Trial) -> None:
        """A trial got capacity: it starts, or resumes after a pause or an interruption or as a clone."""

    def on_trial_result(self, trial: Trial, result: Mapping[str, Any]) -> str | Sequence[Action]:
        """A trial made a report that contains the metric. Called once per report."""
        return ()

    def on_trial_complete(self, trial: Trial, result: Mapping[str, Any] | None) -> Sequence[Action]:
        """A trial returned or was ended by a stopper."""
        return ()

    def on_trial_error(self, trial: Trial) -> Sequence[Action]:
        """A trial failed permanently."""
        return ()

    def on_no_more_trials(self) -> Sequence[Action]:
        """The searcher has no further trials: nothing should wait for more."""
        return ()

    def on_idle(self) -> Sequence[Action]:
        """Only paused trials are left, and no new ones come before one ends. Resume or stop one of them."""
        return ()

    def choose(self, waiting: Sequence[Trial]) -> Trial | None:
        """Choose which waiting trial to start next; None: none of them yet."""
        return waiting[0] if waiting else None


class FIFOScheduler(TrialScheduler):
    """Lets every trial run to its end. It decides nothing, so no trial ever waits in `report()`."""

    decides: ClassVar[bool] = False
