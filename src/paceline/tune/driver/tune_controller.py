"""The search as a scheduler sees it: its trials and its resources, and what it may do about any of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from paceline.tune.driver.search_state import Search
from paceline.tune.schedulers.scheduler import Action, Pause, Stop, TrialScheduler
from paceline.tune.search.searcher import Searcher
from paceline.tune.trial import Trial


class TuneController:
    """Passed to the hooks of a scheduler. What it does takes effect after the hook has returned."""

    def __init__(self, search_alg: Searcher, scheduler_alg: TrialScheduler) -> None:
        self.search_alg = search_alg
        self.scheduler_alg = scheduler_alg
        self.search = Search()
        self.get_total_resources: Callable[[], Mapping[str, float]] = dict
        """Returns what the machine or cluster has, such as `{"CPU": 8.0, "GPU": 1.0}`."""
        self._actions: list[Action] = []

    def get_trials(self) -> list[Trial]:
        """All trials, in the order they were created."""
        return list(self.search.trials.values())

    def get_live_trials(self) -> list[Trial]:
        """The trials that have not ended."""
        return [trial for trial in self.search.trials.values() if not trial.is_over]

    def get_waiting_trials(self) -> list[Trial]:
        """The trials that can be started or resumed now."""
        return self.search.waiting_trials()

    def get_trial(self, tid: str) -> Trial | None:
        return self.search.trials.get(tid)

    def stop_trial(self, trial: Trial) -> None:
        self._actions.append(Stop(trial.trial_id, f"by {type(self.scheduler_alg).__name__}"))

    request_stop_trial = stop_trial

    def pause_trial(self, trial: Trial, should_checkpoint: bool = True) -> None:
        """Stop a trial at its next report; it resumes from its last checkpoint."""
        self._actions.append(Pause(trial.trial_id, f"by {type(self.scheduler_alg).__name__}"))

    def take_actions(self) -> list[Action]:
        actions, self._actions = self._actions, []
        return actions
