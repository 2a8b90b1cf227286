"""What schedulers that compare trials share: the metric, its direction, and the progress of a trial.

Values are compared as scores, where more is better in either mode. nan is the worst score, and an infinite loss is as
bad. A report is not judged if the metric or `time_attr` is missing or not a number.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

from paceline._core.arguments import bad_value, check_choice, is_finite_number, is_number
from paceline._core.plain_values import get_metric
from paceline.tune.schedulers.scheduler import Action, TrialScheduler
from paceline.tune.trial import Trial

log = logging.getLogger("paceline")

WORST = -math.inf
"""The score of nan."""

_LARGEST = 10**300


class MetricScheduler(TrialScheduler):
    """Base of schedulers that compare trials by one metric at equal times."""

    def __init__(self, time_attr: str, metric: str | None, mode: str | None) -> None:
        if not isinstance(time_attr, str) or not time_attr:
            raise bad_value("time_attr", "the name of a reported number", time_attr)
        self.time_attr = time_attr
        self.metric = metric
        self.mode = mode
        check_metric(self.metric, self.mode)
        self._has_warned = False

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        agreed = super().set_search_properties(metric, mode, **spec)
        check_metric(self.metric, self.mode)
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
        time = get_number(result, self.time_attr)
        if is_finite_number(time):
            return time
        if not self._has_warned:
            self._has_warned = True
            text = "%s: a report of trial %s has no number for time_attr=%r and is not judged; it has %s"
            log.warning(text, type(self).__name__, trial_id, self.time_attr, ", ".join(map(str, result)))
        return None

    def get_score(self, result: Mapping[str, Any]) -> float | None:
        """Return the metric as a score, where more is better; None if there is none."""
        value = get_number(result, self.require_metric())
        if value is None:
            return None
        if value != value:
            return WORST
        return value if self.mode == "max" else -value

    def format_score(self, score: float) -> str:
        """Format a score as the metric's value."""
        if score == WORST:
            return "nan"
        return format_number(score if self.mode == "max" else -score)

    def format_report(self, result: Mapping[str, Any], time: float) -> str:
        """Format a report for messages: `loss 0.5 at training_iteration 4`."""
        value = get_number(result, self.require_metric())
        shown = "nan" if value is None else format_number(value)
        return f"{self.metric} {shown} at {self.time_attr} {format_number(time)}"

    def format_max_t(self, time: float, max_t: float) -> str:
        return f"reached max_t: {self.time_attr} {format_number(time)} of {format_number(max_t)}"

    def on_trial_complete(self, trial: Trial, result: Mapping[str, Any] | None) -> Sequence[Action]:
        return self._remove_trial(trial.trial_id)

    def on_trial_error(self, trial: Trial) -> Sequence[Action]:
        return self._remove_trial(trial.trial_id)

    def _remove_trial(self, trial_id: str) -> Sequence[Action]:
        """Forget a finished trial, so that others do not wait for it."""
        return ()


def get_number(result: Mapping[str, Any], name: str) -> float | None:
    """Look up a number in a report, by name or by a path such as `eval/loss`."""
    value = get_metric(result if isinstance(result, dict) else dict(result), name)
    return value if is_number(value) else None


def check_metric(metric: Any, mode: Any) -> None:
    if not isinstance(metric, str | None):
        raise bad_value("metric", "the name of one metric or None", metric)
    check_choice("mode", mode, ("min", "max", None))


def format_number(value: float) -> str:
    if isinstance(value, int) and abs(value) >= _LARGEST:  # Some integers exceed the range of floats.
        return "more than 1e300" if value > 0 else "less than -1e300"
    return str(value) if isinstance(value, int) and abs(value) < 10**15 else f"{value:.4g}"
