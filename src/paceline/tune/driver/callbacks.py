"""The callbacks of a search: which ones observe the search, and which ones observe a trial's run.

A logger holds the open resources of one run, so each run gets its own. Any other callback is one object shared by all
trials, called one call at a time; once it raises, it is not called again for any of them.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

from paceline._core.plain_values import from_plain, to_plain
from paceline.train.callbacks import (
    Callback,
    LoggedCheckpoint,
    LoggedReport,
    LoggedRun,
    LoggerCallback,
    TracingCallback,
    TrainingCallback,
    TrainRunContext,
    UserCallback,
)
from paceline.train.checkpoint import Checkpoint
from paceline.train.config import RunConfig
from paceline.train.loggers.trial_hooks import TrialHooksMixin
from paceline.tune.callback import Callback as SearchCallback
from paceline.tune.driver.events import (
    CallbackStatesSaved,
    Event,
    SearchEnded,
    TrialBegan,
    TrialEnded,
    TrialReported,
    TrialRetried,
    TrialSaved,
    decode_raw,
    encode_raw,
)
from paceline.tune.driver.search_state import Search
from paceline.tune.logger import LoggerCallback as TrialLoggerCallback
from paceline.tune.result import SHOULD_CHECKPOINT
from paceline.tune.trial import Trial

log = logging.getLogger("paceline")


class SearchCallbacks:
    """The callbacks of one search. Its loop calls `on_event`; any thread calls `for_trial` before a trial's run."""

    def __init__(
        self, callbacks: Sequence[Callback], search_name: str, *, can_save: bool = False, lock: Any = None
    ) -> None:
        """Raise `ValueError` for a logger that cannot be created once per trial.

        `can_save`: a checkpoint can be made of a trial whenever a callback asks for one. `lock`: held in each call of a
        callback, which other searches use too.
        """
        self._search_name = search_name
        self._trials: dict[str, Trial] = {}
        """What callbacks get: the same object for a trial during the whole search."""
        self._states: dict[str, Trial] = {}
        """What those were last updated from."""
        self._can_save = can_save
        self._save_requests: set[tuple[str, int]] = set()
        """The trials and reports of which callbacks want a checkpoint."""
        self._has_warned = False
        self._saved_states = encode_raw([])
        self._guarded = [_GuardedCallback(callback, lock) for callback in callbacks]
        self._search_callbacks = [guarded for guarded in self._guarded if isinstance(guarded.callback, SearchCallback)]
        self._iteration = 0
        for callback in callbacks:
            if isinstance(callback, LoggerCallback):
                self._copy_logger(callback, "trial_00000")

    def for_trial(self, run_config: RunConfig, trial: Trial | None = None, **changes: Any) -> RunConfig:
        """Return the run config for one run of a trial: with the callbacks that observe it, and with these changes."""
        name = changes.get("name", run_config.name)
        assert name is not None
        callbacks: list[Callback] = []
        for guarded in self._guarded:
            if guarded.handles_run_events:
                callbacks.append(_RunCallbackForwarder(guarded))
            if isinstance(guarded.callback, LoggerCallback):
                callbacks.append(self._copy_logger(guarded.callback, name, trial))
            if isinstance(guarded.callback, TracingCallback):
                callbacks.append(guarded.callback)  # It holds nothing open: each run gets its own watcher.
        return dataclasses.replace(run_config, callbacks=tuple(callbacks), **changes)

    def setup(self, stop: Any, num_samples: int | None, total_num_samples: int | None) -> None:
        for guarded in self._search_callbacks:
            guarded.call(lambda c: c.setup(stop=stop, num_samples=num_samples, total_num_samples=total_num_samples))

    def on_event(self, event: Event, search: Search) -> None:
        """Handle an event that has been applied to `search`."""
        if not self._search_callbacks or isinstance(event, CallbackStatesSaved):
            return
        self._iteration += 1
        self._update_trials(search)
        about: dict[str, Any] = {"iteration": self._iteration, "trials": list(self._trials.values())}
        trial = self._trials.get(getattr(event, "trial", ""))
        reported = (trial.last_result if trial is not None else None) or {}
        result = dict(reported)
        calls = list(_list_calls(event, trial, result, about))
        for guarded in self._search_callbacks:
            for call in calls:
                guarded.call(call)
        if isinstance(event, TrialReported) and result.get(SHOULD_CHECKPOINT) and not reported.get(SHOULD_CHECKPOINT):
            self._request_save(event)

    def _update_trials(self, search: Search) -> None:
        for trial_id, state in search.trials.items():
            if self._states.get(trial_id) is not state:
                self._states[trial_id] = state
                vars(self._trials.setdefault(trial_id, copy.copy(state))).update(vars(state))

    @property
    def can_request_saves(self) -> bool:
        """Whether trials must wait in their reports, because a callback may ask for a checkpoint."""
        hooks = (type(guarded.callback).on_trial_result for guarded in self._search_callbacks)
        return self._can_save and any(
            hook not in (SearchCallback.on_trial_result, TrialLoggerCallback.on_trial_result) for hook in hooks
        )

    def take_save_request(self, trial_id: str, seq: int) -> bool:
        """Whether a callback asked for a checkpoint of this report; only once."""
        if is_requested := (trial_id, seq) in self._save_requests:
            self._save_requests.remove((trial_id, seq))
        return is_requested

    def save_states(self, at: float) -> CallbackStatesSaved | None:
        """Return the states of the callbacks; None if none has changed."""
        states: list[tuple[str, Any]] = []
        for guarded in self._search_callbacks:
            if type(guarded.callback).get_state is not SearchCallback.get_state:
                name = type(guarded.callback).__name__
                guarded.call(functools.partial(_append_state, states, name))
        encoded = encode_raw(states)
        if encoded == self._saved_states:
            return None
        self._saved_states = encoded
        return CallbackStatesSaved(at, encoded)

    def restore_states(self, past: Sequence[Event]) -> None:
        """Give callbacks the states that an earlier driver saved last, by their class and order."""
        saved = next((event.states for event in reversed(past) if isinstance(event, CallbackStatesSaved)), None)
        left: list[tuple[str, Any]] = decode_raw(saved) if saved is not None else []
        for guarded in self._search_callbacks:
            name = type(guarded.callback).__name__
            at = next((at for at, (saved_name, _) in enumerate(left) if saved_name == name), None)
            if at is not None and (state := from_plain(left.pop(at)[1])) is not None:
                guarded.call(functools.partial(_set_state, state))

    def _request_save(self, event: TrialReported) -> None:
        if self._can_save:
            self._save_requests.add((event.trial, event.seq))
        elif not self._has_warned:
            self._has_warned = True
            log.warning(
                "a callback set should_checkpoint, but only a tune.Trainable with save_checkpoint() can be saved by "
                "request\n\nhint: use tune.report(metrics, checkpoint=...) in the function"
            )

    def tick(self, search: Search, now: float) -> None:
        """Do nothing: callbacks are not driven by the clock."""

    def _copy_logger(self, logger: LoggerCallback, run: str, trial: Trial | None = None) -> LoggerCallback:
        try:
            copied = logger.for_trial(self._search_name, run)
        except Exception as error:
            raise ValueError(
                f"cannot copy the {type(logger).__name__} in callbacks for each trial: "
                f"{type(error).__name__}: {error}\n\n"
                "hint: open its files in log_start(), or implement for_trial(search, run)"
            ) from error
        if isinstance(copied, TrialHooksMixin) and trial is not None:
            copied._identity = trial.trial_id, trial.trial_name
        if not isinstance(copied, UserCallback | TrainingCallback):
            return copied
        # If the class is of several kinds, keep only the logger: one shared object handles the others for all trials.
        only: type[_LoggerOnlyCallback] = type(type(logger).__name__, (_LoggerOnlyCallback,), {})
        return only(copied)


def _list_calls(
    event: Event, trial: Trial | None, result: dict[str, Any], about: dict[str, Any]
) -> list[Callable[[SearchCallback], None]]:
    calls: list[Callable[[SearchCallback], None]] = [lambda c: c.on_step_begin(**about)]
    if trial is not None:
        of_trial = {**about, "trial": trial}
        match event:
            case TrialBegan():
                calls.append(lambda c: c.on_trial_start(**of_trial))
                if trial.checkpoint is not None:
                    calls.append(lambda c: c.on_trial_restore(**of_trial))
            case TrialReported():
                calls.append(lambda c: c.on_trial_result(**of_trial, result=result))
            case TrialSaved():
                calls.append(lambda c: c.on_trial_save(**of_trial))
                saved = trial.checkpoint
                if saved is not None:
                    calls.append(lambda c: c.on_checkpoint(**of_trial, checkpoint=saved))
            case TrialRetried():
                calls.append(lambda c: c.on_trial_recover(**of_trial))
            case TrialEnded(ending="returned" | "stopped"):
                calls.append(lambda c: c.on_trial_complete(**of_trial))
            case TrialEnded(ending="failed"):
                calls.append(lambda c: c.on_trial_error(**of_trial))
    if isinstance(event, SearchEnded):
        calls.append(lambda c: c.on_experiment_end(trials=about["trials"]))
    return [*calls, lambda c: c.on_step_end(**about)]


class _GuardedCallback:
    """Serializes calls to one callback and drops it once it raises."""

    def __init__(self, callback: Any, lock: Any = None) -> None:
        self.callback = callback
        self._lock = lock if lock is not None else threading.RLock()
        self._is_dropped = False

    @property
    def handles_run_events(self) -> bool:
        """False if everything it implements concerns the search only."""
        if isinstance(self.callback, TrainingCallback):
            return True
        kind = type(self.callback)
        return isinstance(self.callback, UserCallback) and (
            kind.after_report is not UserCallback.after_report
            or kind.after_exception is not UserCallback.after_exception
        )

    def call(self, function: Callable[[Any], None]) -> None:
        with self._lock:
            if self._is_dropped:
                return
            try:
                function(self.callback)
            except (Exception, SystemExit):  # `sys.exit()` in a callback must not end the search.
                self._is_dropped = True
                log.exception("callback %s raised and is disabled", type(self.callback).__name__)


class _RunCallbackForwarder(UserCallback, TrainingCallback):
    def __init__(self, guarded: _GuardedCallback) -> None:
        self._guarded = guarded
        self._is_user = isinstance(guarded.callback, UserCallback)
        self._is_older = isinstance(guarded.callback, TrainingCallback)

    def after_report(
        self, run_context: TrainRunContext, metrics: list[dict[str, Any]], checkpoint: Checkpoint | None
    ) -> None:
        if self._is_user:
            self._guarded.call(lambda c: c.after_report(run_context, metrics, checkpoint))

    def after_exception(self, run_context: TrainRunContext, worker_exceptions: dict[int, BaseException]) -> None:
        if self._is_user:
            self._guarded.call(lambda c: c.after_exception(run_context, worker_exceptions))

    def start_training(self, logdir: str, config: dict[str, Any], **info: Any) -> None:
        if self._is_older:
            self._guarded.call(lambda c: c.start_training(logdir=logdir, config=config, **info))

    def handle_result(self, results: list[dict[str, Any]], **info: Any) -> None:
        if self._is_older:
            self._guarded.call(lambda c: c.handle_result(results, **info))

    def finish_training(self, error: bool = False, **info: Any) -> None:
        if self._is_older:
            self._guarded.call(lambda c: c.finish_training(error=error, **info))


def _append_state(states: list[tuple[str, Any]], name: str, callback: SearchCallback) -> None:
    states.append((name, to_plain(callback.get_state(), f"{name}.get_state()")))


def _set_state(state: dict[str, Any], callback: SearchCallback) -> None:
    callback.set_state(state)


class _LoggerOnlyCallback(LoggerCallback):
    def __init__(self, logger: LoggerCallback) -> None:
        self._logger = logger

    def log_start(self, run: LoggedRun) -> None:
        self._logger.log_start(run)

    def log_report(self, report: LoggedReport) -> None:
        self._logger.log_report(report)

    def log_checkpoint(self, checkpoint: LoggedCheckpoint) -> None:
        self._logger.log_checkpoint(checkpoint)

    def log_end(self, failed: bool) -> None:
        self._logger.log_end(failed)
