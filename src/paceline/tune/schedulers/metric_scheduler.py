"""What schedulers that compare trials share: the metric, its direction, and the progress of a trial.

Values are compared as scores, where more is better in either mode. nan is the worst score, and an infinite loss is as
bad. A report is not judged if the metric or `time_attr` is missing or not a number.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

from paceline._core.plain_values import get_metric
from paceline.tune.schedulers.scheduler import TrialScheduler

log = logging.getLogger("paceline")

WORST = -math.inf
"""The score of nan."""

_LARGEST = 10**300


class MetricScheduler(TrialScheduler):
    """Base of schedulers that compare trials by one metric at equal times."""

    def __init__(self, time_attr: str, metric: str | None, mode: str | None) -> None:
        if not isinstance(time_attr, str) or not time_attr:
            raise ValueError(f"time_attr={time_attr!r} is not the name of a number in the reports")
        self.time_attr = time_attr
        self.metric = metric
        self.mode = mode
        self._check_metric()
        self._has_warned = False

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        agreed = super().set_search_properties(metric, mode, **spec)
        self._check_metric()
        return agreed

    def require_metric(self) -> str:
        """Return the metric; raise if there is no metric or no mode."""
        if self.metric is None or self.mode is None:
            name = type(self).__name__
            raise ValueError(
                f"{name} compares trials, and has metric={self.metric!r}, mode={self.mode!r}\n\n"
                f"hint: TuneConfig(metric='loss', mode='min'), or {name}(metric='loss', mode='min')"
            )
        return self.metric

    def get_time(self, trial_id: str, result: Mapping[str, Any]) -> float | None:
        """Return the trial's progress; None if the report lacks it, which is logged once."""
        time = get_number(result, self.time_attr)
        if time is not None and is_finite(time):
            return time
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "%s: a report of trial %s has no number under time_attr=%r, so it is not judged. It has %s",
                type(self).__name__,
                trial_id,
                self.time_attr,
                ", ".join(map(str, result)),
            )
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
        return (
            f"{self.metric} {'nan' if value is None else format_number(value)} at {self.time_attr} "
            f"{format_number(time)}"
        )

    def _check_metric(self) -> None:
        if not isinstance(self.metric, str | None):
            raise ValueError(f"metric={self.metric!r}: {type(self).__name__} compares trials by the name of one metric")
        if self.mode not in (None, "min", "max"):
            raise ValueError(f"mode={self.mode!r} is neither 'min' nor 'max'")


def get_number(result: Mapping[str, Any], name: str) -> float | None:
    """Look up a number in a report, by name or by a path such as `eval/loss`."""
    value = get_metric(result if isinstance(result, dict) else dict(result), name)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value


def is_finite(value: float) -> bool:
    """Like `math.isfinite`, which raises for integers beyond the range of floats."""
    return value == value and abs(value) != math.inf


def format_number(value: float) -> str:
    if isinstance(value, int):
        if abs(value) >= _LARGEST:  # Some integers exceed the range of floats.
            return "more than 1e300" if value > 0 else "less than -1e300"
        return str(value) if abs(value) < 10**15 else f"{value:.4g}"
    return f"{value:.4g}"


def check_number(name: str, value: Any, least: float, *, above: bool = False, whole: bool = False) -> Any:
    """Return a numeric argument, or raise a `ValueError` that states the requirement."""
    kind = int if whole else (int, float)
    is_number = not isinstance(value, bool) and isinstance(value, kind) and is_finite(value)
    if is_number and (value > least or (value == least and not above)):
        return value
    what = "a whole number" if whole else "a number"
    raise ValueError(f"{name}={value!r} is not {what} {f'above {least:g}' if above else f'of {least:g} or more'}")
