"""What searcher, scheduler and stopper are told of an event, and what they say to it.

The same for an event that happens and for one that is read in a journal; of the latter, what they say was decided
already and is not asked for again. Whatever one of them raises is told with its name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from paceline._core.plain import looked_up
from paceline.tune.drive.events import (
    Act,
    Event,
    NoMoreTrials,
    SearchIdle,
    TrialBegan,
    TrialEnded,
    TrialMade,
    TrialReported,
    TrialReset,
    acts,
    raw,
)
from paceline.tune.drive.state import Search
from paceline.tune.error import TuneError
from paceline.tune.schedulers.scheduler import Action, Pause, Stop, TrialScheduler
from paceline.tune.search.searcher import Searcher
from paceline.tune.stoppers.given import FunctionStopper
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
        return self.scheduler.decides or (self.stopper is not None and self.stopper.decides)

    def heard(self, event: Event, search: Search, *, again: bool = False) -> tuple[Act, ...]:
        """An event took effect, and this is the search after it. `again`: it was read."""
        match event:
            case TrialMade(trial=trial_id):
                trial = search.trials[trial_id]
                if again:
                    with _asked(self.searcher, "rebuild", trial_id):
                        self.searcher.rebuild(trial_id, trial.config)
                return self._scheduler("on_trial_add", trial)
            case NoMoreTrials(why=""):
                return self._scheduler("on_no_more_trials")
            case SearchIdle():
                return self._scheduler("on_idle")
            case TrialBegan(trial=trial_id):
                with _asked(self.scheduler, "on_trial_begin", trial_id):
                    self.scheduler.on_trial_begin(search.trials[trial_id])
            case TrialReset(trial=trial_id, why=""):
                return self._scheduler("on_trial_add", search.trials[trial_id])
            case TrialReported(trial=trial_id):
                return self._reported(search.trials[trial_id], search)
            case TrialEnded():
                return self._ended(event, search.trials[event.trial])
        return ()

    def suggested(self, trial_id: str) -> msgspec.Raw | str | None:
        """The configuration of a new trial, in plain form; FINISHED, or None for not now."""
        with _asked(self.searcher, "suggest", trial_id):
            found = self.searcher.suggest(trial_id)
            if found is None or isinstance(found, str):
                return found
        with _asked(self.scheduler, "completed", trial_id):
            return raw(self._stored(self.scheduler.completed(trial_id, found)))

    def chosen(self, waiting: Sequence[Trial]) -> Trial | None:
        """Which of those that wait is tried next."""
        with _asked(self.scheduler, "choose"):
            return self.scheduler.choose(waiting)

    def ends_search(self) -> str:
        """Why the whole search is to end; empty where it is not."""
        if self.stopper is None:
            return ""
        with _asked(self.stopper, "stop_all"):
            return self.stopper.why if self.stopper.stop_all() else ""

    def continued(self, ran_s: float) -> None:
        """Earlier drivers have run the search for so long. Told before anything else is."""
        if self.stopper is not None:
            with _asked(self.stopper, "continued"):
                self.stopper.continued(ran_s)

    def _reported(self, trial: Trial, search: Search) -> tuple[Act, ...]:
        result = trial.last_result
        assert result is not None
        trial_id = trial.trial_id
        if search.standing[trial_id].leaving is not None:
            return ()
        if _has(result, self._searched):
            with _asked(self.searcher, "on_trial_result", trial_id):
                self.searcher.on_trial_result(trial_id, result)
        if self.stopper is not None:
            with _asked(self.stopper, "", trial_id):
                if self.stopper(trial_id, result):
                    return (Act("stop", trial_id, self.stopper.why, by="stopper"),)
        if not _has(result, self._scheduled):
            return ()
        with _asked(self.scheduler, "on_trial_result", trial_id):
            return self._acts(_meant(self.scheduler.on_trial_result(trial, result), trial_id, self.scheduler))

    def _ended(self, event: TrialEnded, trial: Trial) -> tuple[Act, ...]:
        if event.ending in ("paused", "interrupted"):
            return ()
        failed = event.ending == "failed"
        result = trial.last_result if _has(trial.last_result, self._searched) else None
        if event.ending == "stopped" and event.by != "stopper":
            with _asked(self.searcher, "on_trial_stopped", trial.trial_id):
                self.searcher.on_trial_stopped(trial.trial_id, result)
        else:
            with _asked(self.searcher, "on_trial_complete", trial.trial_id):
                self.searcher.on_trial_complete(trial.trial_id, result, error=failed)
        if failed:
            return self._scheduler("on_trial_error", trial)
        if event.ending == "returned" or event.by != "scheduler":
            return self._scheduler("on_trial_complete", trial, trial.last_result)
        return ()

    def _scheduler(self, method: str, *told: Any) -> tuple[Act, ...]:
        with _asked(self.scheduler, method, told[0].trial_id if told else ""):
            return self._acts(getattr(self.scheduler, method)(*told))

    def _acts(self, actions: Sequence[Action]) -> tuple[Act, ...]:
        return acts(actions, self._stored) if actions else ()


@contextlib.contextmanager
def _asked(adviser: Searcher | TrialScheduler | Stopper, method: str, trial_id: str = "") -> Iterator[None]:
    try:
        yield
    except Exception as problem:
        kinds = ((Searcher, "searcher"), (Stopper, "stopper"), (TrialScheduler, "scheduler"))
        who = next(told for kind, told in kinds if isinstance(adviser, kind))
        name = type(adviser).__name__
        if isinstance(adviser, FunctionStopper):
            name = getattr(adviser.function, "__name__", name)
        about = f" about trial {trial_id}" if trial_id else ""
        text = str(problem).strip().splitlines()
        raise TuneError(
            f"the {who} {name} raised {type(problem).__name__}{': ' + text[0] if text else ''} when it was asked"
            f"{about} ({method or '__call__'})\n\n"
            "hint: all trials were stopped; correct it and run the script again with the same name: the search goes on "
            "from there"
        ) from problem


def _meant(said: str | Sequence[Action] | None, trial_id: str, scheduler: TrialScheduler) -> Sequence[Action]:
    if said is None or said == TrialScheduler.CONTINUE:
        return ()
    if not isinstance(said, str):
        return said
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
