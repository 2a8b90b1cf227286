"""The interface of schedulers, which events they get and what they may decide; and a base of those that compare trials.

A scheduler has no effects: no clock, no files, and no randomness except its own seeded generator. When a search is
resumed, all events are replayed to rebuild its state; its answers are ignored, as the journal has the decisions.
"""

from __future__ import annotations

import functools
import inspect
import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from paceline._core.arguments import bad_value, check_choice, is_finite_number, is_number
from paceline._core.plain_values import get_metric
from paceline.tune.saved_state import restore_state, save_state
from paceline.tune.trial import Trial

if TYPE_CHECKING:
    from paceline.train.placement_group import PlacementGroupFactory

log = logging.getLogger("paceline")

WORST = -math.inf
"""The score of nan."""

_LARGEST = 10**300


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
    """Continue a trial with a different configuration, from the last committed checkpoint of a donor."""

    trial_id: str
    donor_id: str
    config: Mapping[str, Any]
    why: str


@dataclass(frozen=True)
class Reallocate:
    """Stop a trial at its report, and continue it from its last checkpoint with other resources."""

    trial_id: str
    resources: PlacementGroupFactory
    why: str


Action = Stop | Pause | Resume | Exploit | Reallocate


class TrialScheduler:
    """Base of schedulers; on its own, it lets every trial run to its end.

    Each method returns actions, about any trial; an empty result means that all continue. `on_trial_result` may also
    return `CONTINUE`, `PAUSE`, `STOP` or `NOOP` for the trial itself. `tune_controller` gives access to all trials; a
    method that has no such parameter is called without it. Built-in schedulers keep each constructor argument as an
    attribute of the same name, from which the journal describes them.
    """

    CONTINUE: ClassVar[str] = "CONTINUE"
    PAUSE: ClassVar[str] = "PAUSE"
    STOP: ClassVar[str] = "STOP"
    NOOP: ClassVar[str] = "NOOP"

    decides: ClassVar[bool] = True
    """If True, trials wait in each report for the decision on it."""
    waits_for_checkpoints: ClassVar[bool] = False
    """If True, a report with a checkpoint is delivered once the checkpoint is committed."""
    unsaved: ClassVar[tuple[str, ...]] = ()
    """Private attributes that `save` leaves out, because they only depend on the arguments."""
    metric: str | None = None
    mode: str | None = None

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        _adapt_hooks(cls)
        if "on_trial_result" in vars(cls) and "decides" not in vars(cls):
            cls.decides = True

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

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> Sequence[Action]:
        """A trial was created; it has not started."""
        return ()

    def on_trial_begin(self, trial: Trial) -> None:
        """A trial got capacity: it starts, or resumes after a pause or an interruption or as a clone."""

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: Mapping[str, Any]) -> str | Sequence[Action]:
        """A trial made a report that contains the metric. Called once per report."""
        return ()

    def on_trial_complete(
        self, tune_controller: Any, trial: Trial, result: Mapping[str, Any] | None
    ) -> Sequence[Action]:
        """A trial returned or was ended by a stopper."""
        return ()

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> Sequence[Action]:
        """A trial failed permanently."""
        return ()

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> Sequence[Action]:
        """A trial was ended by a person, or is not resumed, before it had reached its end."""
        return self.on_trial_complete(tune_controller, trial, trial.last_result)

    def on_no_more_trials(self) -> Sequence[Action]:
        """The searcher has no further trials: nothing should wait for more."""
        return ()

    def on_idle(self) -> Sequence[Action]:
        """Only paused trials are left, and no new ones come before one ends. Resume or stop one of them."""
        return ()

    def choose(self, waiting: Sequence[Trial]) -> Trial | None:
        """Choose the waiting trial to start next; None: start none yet."""
        return waiting[0] if waiting else None

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """Choose which trial to start or resume next, of `tune_controller.get_trials()`; by default, as `choose`."""
        return self.choose(tune_controller.get_waiting_trials())

    def debug_string(self) -> str:
        """One line about the scheduler, for messages."""
        return f"Using {type(self).__name__} scheduling algorithm."

    @property
    def supports_buffered_results(self) -> bool:
        """Whether trials may report further results before the scheduler has seen the last one."""
        return not self.decides

    def save(self, checkpoint_path: str | os.PathLike[str]) -> None:
        """Write what it has learned to a JSON file. A search keeps its own record of it: this is for your own use."""
        save_state(self, checkpoint_path)

    def restore(self, checkpoint_path: str | os.PathLike[str]) -> None:
        """Continue with what another scheduler of this class has saved."""
        restore_state(self, checkpoint_path)


def _adapt_hooks(cls: type[TrialScheduler]) -> None:
    """Let the hooks of a class be called with the controller and without it, whether or not they take it."""
    for name, num_parameters in (("add", 2), ("result", 3), ("complete", 3), ("error", 2), ("remove", 2)):
        if (hook := vars(cls).get(f"on_trial_{name}")) is not None:
            setattr(cls, f"on_trial_{name}", _adapt_hook(hook, num_parameters))


def _adapt_hook(hook: Callable[..., Any], num_parameters: int) -> Callable[..., Any]:
    kinds = [parameter.kind for parameter in inspect.signature(hook).parameters.values()]
    num_positional = sum(kind <= inspect.Parameter.POSITIONAL_OR_KEYWORD for kind in kinds) - 1
    takes_controller = num_positional >= num_parameters or inspect.Parameter.VAR_POSITIONAL in kinds

    @functools.wraps(hook)
    def call_hook(self: TrialScheduler, *args: Any, **named: Any) -> Any:
        if not args:
            args = (named.pop("tune_controller", None),)
        elif isinstance(args[0], Trial):
            args = (None, *args)
        return hook(self, *(args if takes_controller else args[1:]), **named)

    return call_hook


_adapt_hooks(TrialScheduler)


class FIFOScheduler(TrialScheduler):
    """Lets every trial run to its end. It decides nothing, so no trial ever waits in `report()`."""

    decides: ClassVar[bool] = False


@dataclass(eq=False, repr=False)
class MetricScheduler(TrialScheduler):
    """Base of schedulers that compare trials by one metric at equal times.

    Values are compared as scores, where more is better in either mode. nan is the worst score, and an infinite loss is
    as bad. A report is not judged if the metric or `time_attr` is missing or not a number.
    """

    time_attr: str = "training_iteration"
    metric: str | None = None
    mode: str | None = None
    _has_warned: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if not isinstance(self.time_attr, str) or not self.time_attr:
            raise bad_value("time_attr", "the name of a reported number", self.time_attr)
        self._check_metric()

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        agreed = super().set_search_properties(metric, mode, **spec)
        self._check_metric()
        return agreed

    def require_metric(self) -> str:
        """Return the metric; raise if there is no metric or no mode."""
        if self.metric is None or self.mode is None:
            name = type(self).__name__
            raise ValueError(
                f"{name} needs a metric and a mode, got metric={self.metric!r}, mode={self.mode!r}\n\n"
                f"hint: use TuneConfig(metric='loss', mode='min') or {name}(metric='loss', mode='min')"
            )
        return self.metric

    def get_time(self, trial_id: str, result: Mapping[str, Any]) -> float | None:
        """Return the trial's progress; None if the report lacks it, which is logged once."""
        time = self.get_number(result, self.time_attr)
        if is_finite_number(time):
            return time
        if not self._has_warned:
            self._has_warned = True
            text = "%s: a report of trial %s has no number for time_attr=%r and is not judged; it has %s"
            log.warning(text, type(self).__name__, trial_id, self.time_attr, ", ".join(map(str, result)))
        return None

    def get_score(self, result: Mapping[str, Any]) -> float | None:
        """Return the metric as a score, where more is better; None if there is none."""
        value = self.get_number(result, self.require_metric())
        return self.to_score(value) if value is not None else None

    @staticmethod
    def get_number(result: Mapping[str, Any], name: str) -> float | None:
        """Look up a number in a report, by name or by a path such as `eval/loss`."""
        value = get_metric(result if isinstance(result, dict) else dict(result), name)
        return value if is_number(value) else None

    def to_score(self, value: float) -> float:
        return WORST if value != value else value if self.mode == "max" else -value

    def format_score(self, score: float) -> str:
        """Format a score as the metric's value."""
        return "nan" if score == WORST else format_number(score if self.mode == "max" else -score)

    def format_report(self, result: Mapping[str, Any], time: float) -> str:
        """Format a report for messages: `loss 0.5 at training_iteration 4`."""
        value = self.get_number(result, self.require_metric())
        shown = "nan" if value is None else format_number(value)
        return f"{self.metric} {shown} at {self.time_attr} {format_number(time)}"

    def on_trial_complete(
        self, tune_controller: Any, trial: Trial, result: Mapping[str, Any] | None
    ) -> Sequence[Action]:
        return self._remove_trial(trial.trial_id)

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> Sequence[Action]:
        return self._remove_trial(trial.trial_id)

    def _remove_trial(self, trial_id: str) -> Sequence[Action]:
        """Forget a finished trial, so that others do not wait for it."""
        return ()

    def _check_metric(self) -> None:
        if not isinstance(self.metric, str | None):
            raise bad_value("metric", "the name of one metric or None", self.metric)
        check_choice("mode", self.mode, ("min", "max", None))


def format_number(value: float) -> str:
    if isinstance(value, int) and abs(value) >= _LARGEST:  # Some integers exceed the range of floats.
        return "more than 1e300" if value > 0 else "less than -1e300"
    return str(value) if isinstance(value, int) and abs(value) < 10**15 else f"{value:.4g}"
