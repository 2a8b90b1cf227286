"""Passes events to the searcher, scheduler and stopper, and collects their decisions.

Live events and events replayed from a journal take the same path; decisions on replayed events are discarded, since the
journal already has them. An exception raised by one of them is reported with its name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from paceline._core.arguments import bad_value, is_number
from paceline._core.plain_values import get_metric
from paceline.tune.driver import events
from paceline.tune.driver.search_state import Search
from paceline.tune.driver.tune_controller import TuneController
from paceline.tune.error import TuneError
from paceline.tune.schedulers.scheduler import Action, Pause, Stop, TrialScheduler
from paceline.tune.search.searcher import Searcher
from paceline.tune.stopper import FunctionStopper, Stopper
from paceline.tune.trial import Trial


class SearchAdvisers:
    def __init__(
        self,
        searcher: Searcher,
        scheduler: TrialScheduler,
        stopper: Stopper | None,
        encode_config: Callable[[Mapping[str, Any]], Any],
    ) -> None:
        self.searcher = searcher
        self.scheduler = scheduler
        self.stopper = stopper
        self._encode_config = encode_config
        self._controller = TuneController(searcher, scheduler)
        self._paused_trials: set[str] = set()
        self._searcher_metrics = _metric_names(searcher.metric)
        self._scheduler_metrics = _metric_names(scheduler.metric)

    @property
    def must_wait_for_decisions(self) -> bool:
        """Whether a report must block until a decision about it is made."""
        return self.scheduler.decides or (self.stopper is not None and self.stopper.decides)

    def handle_event(
        self, event: events.Event, search: Search, *, again: bool = False
    ) -> tuple[events.TrialDecision, ...]:
        """Handle an event that has been applied to `search`. `again`: it was replayed from the journal."""
        self._controller.search = search
        match event:
            case events.TrialMade(trial=trial_id):
                trial = search.trials[trial_id]
                if again:
                    with _naming_adviser(self.searcher, "rebuild", trial_id):
                        self.searcher.rebuild(trial_id, trial.config)
                return self._ask_scheduler("on_trial_add", self._controller, trial)
            case events.NoMoreTrials(why=""):
                return self._ask_scheduler("on_no_more_trials")
            case events.SearchIdle():
                return self._ask_scheduler("on_idle")
            case events.TrialBegan(trial=trial_id):
                if trial_id in self._paused_trials:
                    self._paused_trials.remove(trial_id)
                    with _naming_adviser(self.searcher, "on_unpause", trial_id):
                        self.searcher.on_unpause(trial_id)
                with _naming_adviser(self.scheduler, "on_trial_begin", trial_id):
                    self.scheduler.on_trial_begin(search.trials[trial_id])
            case events.TrialReset(trial=trial_id, why=""):
                return self._ask_scheduler("on_trial_add", self._controller, search.trials[trial_id])
            case events.TrialReported(trial=trial_id):
                return self._on_reported(search.trials[trial_id], search)
            case events.TrialEnded():
                return self._on_ended(event, search.trials[event.trial])
        return ()

    def suggest_config(self, trial_id: str) -> msgspec.Raw | str | None:
        """Return the configuration of a new trial in plain form, FINISHED, or None for "not now"."""
        with _naming_adviser(self.searcher, "suggest", trial_id):
            config = self.searcher.suggest(trial_id)
            if config is None or isinstance(config, str):
                return config
        with _naming_adviser(self.scheduler, "completed", trial_id):
            return events.encode_raw(self._encode_config(self.scheduler.completed(trial_id, config)))

    def use_capacity(self, get_total_resources: Callable[[], Mapping[str, float]]) -> None:
        """Let the scheduler know what the machine or cluster has."""
        self._controller.get_total_resources = get_total_resources

    def choose_trial(self, waiting: Sequence[Trial]) -> Trial | None:
        """Choose which trial to start next: one that waits, or, if the scheduler chooses it itself, a paused one."""
        if type(self.scheduler).choose_trial_to_run is TrialScheduler.choose_trial_to_run:
            with _naming_adviser(self.scheduler, "choose"):
                return self.scheduler.choose(waiting)
        with _naming_adviser(self.scheduler, "choose_trial_to_run"):
            chosen = self.scheduler.choose_trial_to_run(self._controller)
        if chosen is None or chosen.status == Trial.PAUSED or chosen in waiting:
            return chosen
        return None  # It runs, it has ended, or it is about to be stopped.

    def reason_to_end(self) -> str:
        """Return why the whole search should end; empty if it should not."""
        if self.stopper is None:
            return ""
        with _naming_adviser(self.stopper, "stop_all"):
            return self.stopper.why if self.stopper.stop_all() else ""

    def on_search_resumed(self, ran_s: float) -> None:
        """Pass on how long earlier drivers ran the search. Called before anything else."""
        if self.stopper is not None:
            with _naming_adviser(self.stopper, "continued"):
                self.stopper.continued(ran_s)

    def _on_reported(self, trial: Trial, search: Search) -> tuple[events.TrialDecision, ...]:
        result = trial.last_result
        assert result is not None
        trial_id = trial.trial_id
        if search.trial_records[trial_id].pending_decision is not None:
            return ()
        if _has_metrics(result, self._searcher_metrics):
            with _naming_adviser(self.searcher, "on_trial_result", trial_id):
                self.searcher.on_trial_result(trial_id, result)
        if self.stopper is not None:
            with _naming_adviser(self.stopper, "", trial_id):
                if self.stopper(trial_id, result):
                    return (events.TrialDecision("stop", trial_id, self.stopper.why, by="stopper"),)
        if not _has_metrics(result, self._scheduler_metrics):
            return ()
        return self._ask_scheduler("on_trial_result", self._controller, trial, result)

    def _on_ended(self, event: events.TrialEnded, trial: Trial) -> tuple[events.TrialDecision, ...]:
        if event.ending == "paused":
            self._paused_trials.add(trial.trial_id)
            with _naming_adviser(self.searcher, "on_pause", trial.trial_id):
                self.searcher.on_pause(trial.trial_id)
        if event.ending in ("paused", "interrupted"):
            return ()
        failed = event.ending == "failed"
        result = trial.last_result if _has_metrics(trial.last_result, self._searcher_metrics) else None
        if event.ending == "stopped" and event.by != "stopper":
            with _naming_adviser(self.searcher, "on_trial_stopped", trial.trial_id):
                self.searcher.on_trial_stopped(trial.trial_id, result)
        else:
            with _naming_adviser(self.searcher, "on_trial_complete", trial.trial_id):
                self.searcher.on_trial_complete(trial.trial_id, result, error=failed)
        if failed:
            return self._ask_scheduler("on_trial_error", self._controller, trial)
        if event.ending == "stopped" and event.by == "search":
            return self._ask_scheduler("on_trial_remove", self._controller, trial)
        if event.ending == "returned" or event.by != "scheduler":
            return self._ask_scheduler("on_trial_complete", self._controller, trial, trial.last_result)
        return ()

    def _ask_scheduler(self, method: str, *args: Any) -> tuple[events.TrialDecision, ...]:
        trial_id = args[1].trial_id if args else ""
        with _naming_adviser(self.scheduler, method, trial_id):
            actions = _to_actions(getattr(self.scheduler, method)(*args), trial_id, self.scheduler)
            return self._to_decisions((*actions, *self._controller.take_actions()))

    def _to_decisions(self, actions: Sequence[Action]) -> tuple[events.TrialDecision, ...]:
        return events.to_decisions(actions, self._encode_config) if actions else ()


@contextlib.contextmanager
def _naming_adviser(adviser: Searcher | TrialScheduler | Stopper, method: str, trial_id: str = "") -> Iterator[None]:
    try:
        yield
    except Exception as problem:
        kinds = ((Searcher, "searcher"), (Stopper, "stopper"), (TrialScheduler, "scheduler"))
        role = next(role for kind, role in kinds if isinstance(adviser, kind))
        name = type(adviser).__name__
        if isinstance(adviser, FunctionStopper):
            name = getattr(adviser.function, "__name__", name)
        trial = f" for trial {trial_id}" if trial_id else ""
        text = str(problem).strip().splitlines()
        where = "".join(f" ({note})" for note in getattr(problem, "__notes__", ())[:1])
        raise TuneError(
            f"the {role} {name} raised {type(problem).__name__}{': ' + text[0] if text else ''}{where} in "
            f"{method or '__call__'}(){trial}\n\n"
            "hint: all trials were stopped; fix it and run the script again with the same name to continue the search"
        ) from problem


def _to_actions(answer: str | Sequence[Action] | None, trial_id: str, scheduler: TrialScheduler) -> Sequence[Action]:
    if answer is None or answer in (TrialScheduler.CONTINUE, TrialScheduler.NOOP):
        return ()
    if not isinstance(answer, str):
        return answer
    kinds: dict[str, Callable[[str, str], Action]] = {TrialScheduler.STOP: Stop, TrialScheduler.PAUSE: Pause}
    if answer not in kinds:
        raise bad_value("the answer of a scheduler", "CONTINUE, PAUSE, STOP or NOOP", answer)
    return (kinds[answer](trial_id, f"by {type(scheduler).__name__}"),) if trial_id else ()


def _metric_names(metric: str | list[str] | None) -> tuple[str, ...]:
    return () if metric is None else (metric,) if isinstance(metric, str) else tuple(metric)


def _has_metrics(result: Mapping[str, Any] | None, names: tuple[str, ...]) -> bool:
    return result is not None and all(is_number(get_metric(result, name)) for name in names)
