"""What searcher, scheduler and stopper are told of an event, and what they say to it.

The same for an event that happens and for one that is read in a journal; of the latter, what they say was decided
already and is not asked for again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paceline._core.plain import looked_up
from paceline.tune.drive.events import (
    Act,
    Event,
    NoMoreTrials,
    TrialEnded,
    TrialMade,
    TrialReported,
    TrialReset,
    acts,
)
from paceline.tune.drive.state import Search
from paceline.tune.schedulers.scheduler import Action, Pause, Stop, TrialScheduler
from paceline.tune.search.searcher import Searcher
from paceline.tune.stoppers.stopper import Stopper
from paceline.tune.trial import Trial


class Advice:
    def __init__(
        self,
        searcher: Searcher,
        scheduler: TrialScheduler,
        stopper: Stopper | None,
        stored: Callable[[Mapping[str, Any]], Any],
    ) -> None:
        self.searcher = searcher
        self.scheduler = scheduler
        self.stopper = stopper
        self._stored = stored
        self._searched = _names(searcher.metric)
        self._scheduled = _names(scheduler.metric)

    @property
    def is_waited_for(self) -> bool:
        """Whether a report has to wait for what is decided about it."""
        return self.scheduler.decides or self.stopper is not None

    def heard(self, event: Event, search: Search, *, again: bool = False) -> tuple[Act, ...]:
        """An event took effect, and this is the search after it. `again`: it was read."""
        match event:
            case TrialMade(trial=trial_id):
                trial = search.trials[trial_id]
                if again:
                    self.searcher.rebuild(trial_id, trial.config)
                return self._acts(self.scheduler.on_trial_add(trial))
            case NoMoreTrials():
                return self._acts(self.scheduler.on_no_more_trials())
            case TrialReset(trial=trial_id, why=""):
                return self._acts(self.scheduler.on_trial_add(search.trials[trial_id]))
            case TrialReported(trial=trial_id):
                return self._reported(search.trials[trial_id], search)
            case TrialEnded():
                return self._ended(event, search.trials[event.trial])
        return ()

    def ends_search(self) -> str:
        """Why the whole search is to end; empty where it is not."""
        return self.stopper.why if self.stopper is not None and self.stopper.stop_all() else ""

    def _reported(self, trial: Trial, search: Search) -> tuple[Act, ...]:
        result = trial.last_result
        assert result is not None
        trial_id = trial.trial_id
        if search.standing[trial_id].leaving is not None:
            return ()
        if _has(result, self._searched):
            self.searcher.on_trial_result(trial_id, result)
        if self.stopper is not None and self.stopper(trial_id, result):
            return (Act("stop", trial_id, self.stopper.why, by="stopper"),)
        if not _has(result, self._scheduled):
            return ()
        return self._acts(_meant(self.scheduler.on_trial_result(trial, result), trial_id, self.scheduler))

    def _ended(self, event: TrialEnded, trial: Trial) -> tuple[Act, ...]:
        if event.ending in ("paused", "interrupted"):
            return ()
        failed = event.ending == "failed"
        result = trial.last_result if _has(trial.last_result, self._searched) else None
        if event.ending == "stopped" and event.by == "scheduler":
            self.searcher.on_trial_stopped(trial.trial_id, result)
        else:
            self.searcher.on_trial_complete(trial.trial_id, result, error=failed)
        if failed:
            return self._acts(self.scheduler.on_trial_error(trial))
        if event.ending == "returned" or event.by == "stopper":
            return self._acts(self.scheduler.on_trial_complete(trial, trial.last_result))
        return ()

    def _acts(self, actions: Sequence[Action]) -> tuple[Act, ...]:
        return acts(actions, self._stored) if actions else ()


def _meant(said: str | Sequence[Action], trial_id: str, scheduler: TrialScheduler) -> Sequence[Action]:
    if not isinstance(said, str):
        return said
    if said == TrialScheduler.CONTINUE:
        return ()
    why = f"by {type(scheduler).__name__}"
    if said == TrialScheduler.STOP:
        return (Stop(trial_id, why),)
    if said == TrialScheduler.PAUSE:
        return (Pause(trial_id, why),)
    raise ValueError(f"{type(scheduler).__name__}.on_trial_result returned {said!r}: it is CONTINUE, PAUSE or STOP")


def _names(metric: str | list[str] | None) -> tuple[str, ...]:
    return () if metric is None else (metric,) if isinstance(metric, str) else tuple(metric)


def _has(result: Mapping[str, Any] | None, names: tuple[str, ...]) -> bool:
    return result is not None and all(_is_number(looked_up(result, name)) for name in names)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
